"""Commands: what the scheduler tells its driver to do.

Pure. Each command is a record. A driver carries them out in their order, each as soon as it can, and reports the end of
one by the event that the record names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlfs.follow.job import JobRun
from mlfs.plan.scheduler.events import Event, Waiter


class Item(NamedTuple):
    """A sample to fetch.

    Attributes:
        place: where to get it. instead: the place of this node that holds a copy, for when the source fails; 0: none.
        keep_in: places that shall keep a copy, the first that takes it; empty for none.
        blocks: of a file in blocks, each of them: it is got and kept by blocks, and pushed whole.
        part_bytes: of a block that is kept, the source gives no more than the parts of so many bytes that a row lies
            in, and it is kept once all are there; 0: all of it comes.
    """

    sample: int
    place: int
    instead: int = 0
    keep_in: tuple[int, ...] = ()
    blocks: tuple[Item, ...] = ()
    part_bytes: int = 0


class Fetch(NamedTuple):
    """Get these samples and push them into the page cache, one after the other, in one thread of the pool.

    Ends with FetchEnded; Landed tells earlier of a sample that somebody waits for. Kept follows for each item
    with `keep_in` whose bytes came from another place than this node's own.

    Attributes:
        fetch: its number. pool: the place whose threads do it. waited_for: readers wait for it, in threads of their
            own; they may go on as soon as the bytes are in place.
        stage: whether they are pushed at all; without it the samples are only to be kept, and land unstaged.
    """

    fetch: int
    pool: int
    items: Sequence[Item]
    waited_for: bool = False
    stage: bool = True


class KeepCopy(NamedTuple):
    """Keep a copy of what ReadAside told of, in the first of these places that takes it. Ends with Kept.

    Attributes:
        fetch: the number of a fetch, for Kept: nothing was fetched under it.
    """

    fetch: int
    sample: int
    keep_in: tuple[int, ...]


class Abandon(NamedTuple):
    """Nobody waits for this fetch any more. The driver may forget it; the scheduler ignores what it still reports."""

    fetch: int


class Recall(NamedTuple):
    """Take a sample back from a lane that has not begun it (then Recalled), as a reader waits or the lane hangs."""

    fetch: int
    sample: int


class Drop(NamedTuple):
    """Drop these samples' pages. Ends with Dropped."""

    samples: Sequence[int]


class LayTripwires(NamedTuple):
    """Drop the pages of rows that their readers have just had, as the rows stay in place for their next reads."""

    rows: Sequence[int]


class Evict(NamedTuple):
    """Have a place of this node give up its copies of these samples. Ends with Evicted."""

    place: int
    samples: Sequence[int]


class Answer(NamedTuple):
    """The sample is in place: whoever waits for it may go on."""

    waiter: Waiter


class OpenDirect(NamedTuple):
    """A reader reads the source by himself, range by range: open it for him alone.

    Attributes:
        unstaged: open nothing, and let the reader go on: his READ requests are answered from this node's copy.
    """

    waiter: Waiter
    unstaged: bool = False


class Refuse(NamedTuple):
    """Whoever waits gets an error, an errno.

    Attributes:
        timed_out: the error is that the source did not answer, twice.
    """

    waiter: Waiter
    error: int
    timed_out: bool = False


class LoadEpoch(NamedTuple):
    """Compute the order of a job's epoch. Ends with EpochKnown or EpochUnknown."""

    job: JobRun
    epoch: int


class CountReads(NamedTuple):
    """Count how often this node reads each sample of the job, and plan what to keep. Ends with Planned."""

    job: JobRun


class ForgetReads(NamedTuple):
    """A job whose reads may have been counted has ended: plan anew without it. Ends with Planned."""

    name: str


class EpochBegan(NamedTuple):
    """A job's fastest rank has come to an epoch. PlacesMeasured may follow."""

    job: JobRun
    epoch: int


class EpochLeft(NamedTuple):
    """All ranks of a job have left an epoch."""

    job: JobRun
    epoch: int


class AnotherLeads(NamedTuple):
    """A job's reads fit another hypothesis better than the one by which it is followed: another run of the script,
    or the job as it was registered. The driver decides, and installs the job anew.
    """

    job: JobRun


class JobFailed(NamedTuple):
    """A bug showed while the job was followed. The job is given up: its reads are served as they come."""

    job: JobRun
    error: Exception


class Fault(NamedTuple):
    """A bug of the scheduler showed while it took in this event, or with None while it decided.

    A scheduler that was made with `goes_on` reports bugs by this command and goes on; any other raises.
    """

    event: Event | None
    error: Exception


class Digested(NamedTuple):
    """All reads of this step were taken in, and the predictions of all jobs were judged."""


class Warn(NamedTuple):
    """A person should know this: the driver logs it."""

    text: str


class WakeAt(NamedTuple):
    """Report TimePassed at this time (or as soon as possible, if it has passed). Replaces the WakeAt before."""

    at_s: float


class Count(NamedTuple):
    """Count a failure of this kind."""

    kind: str


Command = (
    Fetch | KeepCopy | Abandon | Recall | Drop | LayTripwires
    | Evict | Answer | OpenDirect | Refuse | LoadEpoch | CountReads
    | ForgetReads | EpochBegan | EpochLeft | AnotherLeads | JobFailed | Fault | Digested | Warn | WakeAt | Count
)  # fmt: skip
