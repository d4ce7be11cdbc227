"""Events: what a driver tells the scheduler.

Pure. Each event is a record; its time is that of `step(now_s, ...)`. Samples, places and fetches are numbers: place 0
is the source, then come this node's tiers, then its peers (`PlaceInfo` in mlfs.plan.scheduler.config). The scheduler
numbers fetches. Whoever waits for a sample is an object of the driver's, of which the scheduler knows a `Waiter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.keeping import Plan


class Waiter:
    """Whoever waits for a sample: a reader of this node whose open is not answered yet, or another node that asks.

    It is one object from the request to its answer. A driver makes it, of a class that knows how it is answered. The
    scheduler holds it while it waits, and names it in the one command that answers it.

    Attributes:
        sample: what it waits for. since_s: since when.
        is_peer: whether it is another node, which gets the sample's bytes and not its pages.
        in_read: whether it is a READ of a file that was opened before: its wait is told by ReadersWaited.
    """

    __slots__ = ("in_read", "is_peer", "sample", "since_s")

    def __init__(self, sample: int, since_s: float, is_peer: bool = False, in_read: bool = False) -> None:
        self.sample = sample
        self.since_s = since_s
        self.is_peer = is_peer
        self.in_read = in_read


class ReadsSeen(NamedTuple):
    """Readers open samples, and close some, all in a moment.

    Reads are told in the order in which readers ask: a thread that waits is not overtaken by the others of its process.

    Attributes:
        reads: of readers who open a sample each, in their order, and hold it open from now on, until it is released, or
            Refused is told.
        released: samples that readers have closed; some of them may be among those that were opened.
        waits: whether the samples are not in place: then Opened is told of each read when it is, or Refused.
    """

    reads: Sequence[Read]
    released: Sequence[int] = ()
    waits: bool = False


class Opened(NamedTuple):
    """A reader who waited for the sample goes on at `at_s`.

    Attributes:
        process: as the read had it.
        source_bytes: what the source gave for this very read; 0 where the bytes came from elsewhere.
    """

    sample: int
    process: int
    at_s: float
    source_bytes: int = 0


class Refused(NamedTuple):
    """A reader who waited for the sample gets an error: he holds it open no more.

    Attributes:
        process: as the read had it.
    """

    sample: int
    process: int


class Released(NamedTuple):
    """A reader closed the sample, or another node has got it."""

    sample: int


class Waits(NamedTuple):
    """Somebody waits for a sample: `Answer`, `OpenDirect` or `Refuse` follows, once.

    A reader of this node has opened what is not in place. Another node wants what this one owns: it is refused where
    the source fails, or where this node's plan says that a third node owns the sample. However that ends, the driver
    reports Released when it is done with the sample for a node.
    """

    waiter: Waiter


class ReadersWaited(NamedTuple):
    """Readers have waited so long for bytes of a file that they had opened before, and that this sample is in."""

    sample: int
    seconds: float


class SourceGave(NamedTuple):
    """The source gave bytes of a sample to a reader who had opened it before."""

    sample: int
    size_bytes: int


class BlockReached(NamedTuple):
    """A reader of a file has come to this block of it.

    Attributes:
        lost: pages of it that were to be in place are not.
    """

    sample: int
    lost: bool = False


class AheadOfReader(NamedTuple):
    """This block is fetched for a reader who goes through its file, before he has come to it."""

    sample: int


class MostWasAsked(NamedTuple):
    """Readers of small ranges have asked for most of a file in blocks: what is missing may come while nobody wants the
    source.

    Attributes:
        blocks: of the file.
    """

    blocks: range


class Touched(NamedTuple):
    """A reader opened a sample that is DROPPING: it must be rescued."""

    sample: int


class Landed(NamedTuple):
    """The end of one sample of a fetch.

    Attributes:
        place: where the bytes came from.
        size_bytes: the size of the content that was fetched.
        staged: whether all of it lies in the page cache.
        error: an errno, 0 for none. With an error the other attributes mean nothing.
        blocks: of a file in blocks, the ends of those that were got. Then `place` is the farthest that any came from,
            and `size_bytes` what came from there.
        read_before_bytes: of the content, what the source had given before, for reads of ranges.
    """

    fetch: int
    sample: int
    place: int = 0
    size_bytes: int = 0
    staged: bool = False
    error: int = 0
    blocks: tuple[Landed, ...] = ()
    read_before_bytes: int = 0


class FetchEnded(NamedTuple):
    """A fetch is over.

    Attributes:
        landed: the end of each sample, also of those that were reported before.
        wall_s: seconds that it took its thread. cpu_s: how many of these it computed; of a mover also those that it
            waited for a processor. keeping_s: how many of these it gave copies to tiers.
        kept: what became of copies that were to be kept, if it is known by now.
    """

    fetch: int
    landed: Sequence[Landed]
    wall_s: float = 0.0
    cpu_s: float = 0.0
    keeping_s: float = 0.0
    kept: Sequence[Kept] = ()


class Recalled(NamedTuple):
    """The driver took a sample back from a lane that had not begun it: the answer to `Recall`."""

    fetch: int
    sample: int


class Kept(NamedTuple):
    """A fetch's sample was to be kept: its copy is in `place` now, 0 for nowhere.

    Attributes:
        used_bytes: what that place holds now.
    """

    fetch: int
    sample: int
    place: int
    used_bytes: int = 0


class CopiesFound(NamedTuple):
    """A place holds copies of these samples from an earlier mount."""

    place: int
    samples: Sequence[int]


class CopyLost(NamedTuple):
    """No place of this node holds the sample any more."""

    sample: int


class Dropped(NamedTuple):
    """The pages of these samples are gone (the end of a `Drop`)."""

    samples: Sequence[int]


class PagesLost(NamedTuple):
    """The kernel has taken pages of these samples back, which were staged; the soonest needed first."""

    samples: Sequence[int]


class ReadAside(NamedTuple):
    """The sample's whole content was got without a fetch, for a READ request that found its pages gone.

    KeepCopy follows if a copy is wanted here and there is none.
    """

    sample: int


class Evicted(NamedTuple):
    """A place has given up the copies that it was told to (the end of an `Evict`), and holds so many bytes now."""

    place: int
    used_bytes: int


class Holds(NamedTuple):
    """A place holds so many bytes now, as it has given up copies of files that have changed or are gone."""

    place: int
    used_bytes: int


class Outdated(NamedTuple):
    """The sample has changed at the source: the next reader must get the new content, not what is in place."""

    sample: int


class SourceHung(NamedTuple):
    """The source did not answer a READ request in time."""


class Resized(NamedTuple):
    """The sample has another size at the source; `SampleTable.sizes` has the new one already."""

    sample: int
    old_bytes: int
    new_bytes: int


class JobInstalled(NamedTuple):
    """A job begins, in place of a job of the same name if there is one."""

    job: JobRun


class JobEnded(NamedTuple):
    """The job of that name has ended."""

    name: str


class EpochKnown(NamedTuple):
    """The order of an epoch was computed (the end of a `LoadEpoch`)."""

    job: JobRun
    streams: EpochIndex


class EpochUnknown(NamedTuple):
    """The order of an epoch could not be computed."""

    job: JobRun
    epoch: int


class JobBroken(NamedTuple):
    """A bug showed in computing for a job, perhaps in another package's order: the job is given up."""

    job: JobRun
    error: Exception


class Planned(NamedTuple):
    """A plan was made of what this node keeps and who owns the rest; None: it keeps what comes first."""

    plan: Plan | None


class HeldBy(NamedTuple):
    """A node holds samples that the plan gives to others, or is about to: it owns them. Its number, -1 for this one."""

    node: int
    samples: npt.NDArray[np.int64]


class PlacesMeasured(NamedTuple):
    """The bandwidth of each place was measured anew: bytes a second by place, 0 where it is not known."""

    bytes_per_s: Sequence[float]


class PeersJoined(NamedTuple):
    """This node has joined others: they are places from now on, numbered behind those that are there.

    It is told once; a node whose agent dies and that joins again says PeerBack of the same places.
    """

    places: Sequence[PlaceInfo]


class PeerLost(NamedTuple):
    """A peer does not answer: nothing is asked of it until PeerBack."""

    place: int


class PeerBack(NamedTuple):
    """A peer answers again."""

    place: int


class Helped(NamedTuple):
    """So many lanes of a pool, but for the peers', may have processes of their own compute for them from now on."""

    movers: int


class WarmUp(NamedTuple):
    """Have this node's places keep these samples, in the order of need; None: have them keep no more of them."""

    samples: npt.NDArray[Any] | None


class Stopped(NamedTuple):
    """Nothing is fetched ahead from now on; with False, fetching ahead goes on after all."""

    stop: bool


class TimePassed(NamedTuple):
    """The time of the last `WakeAt` has come."""


Event = (
    ReadsSeen | Opened | Refused | Released | Waits | ReadersWaited | SourceGave | BlockReached | AheadOfReader
    | MostWasAsked
    | Touched | Landed | FetchEnded | Recalled | Kept | CopiesFound | CopyLost | Dropped | Evicted | Holds | PagesLost
    | ReadAside | Outdated | Resized | JobInstalled | JobEnded | EpochKnown | EpochUnknown | Planned | HeldBy
    | JobBroken | SourceHung | PlacesMeasured | PeersJoined | PeerLost | PeerBack | Helped | WarmUp | Stopped
    | TimePassed
)  # fmt: skip


def together(events: Iterable[Event]) -> list[Event]:
    """The events in their order: reads of samples in place that follow each other are one event; releases come last.

    So what readers opened in the same moment is counted before that they closed it.
    """
    joined: list[Event] = []
    reads, released = list[Read](), list[int]()
    for event in events:
        if isinstance(event, Released):
            released.append(event.sample)
        elif isinstance(event, ReadsSeen) and not event.waits:
            reads += event.reads
            released += event.released
        else:
            if reads:
                joined.append(ReadsSeen(reads))
                reads = []
            joined.append(event)
    if reads or released:
        joined.append(ReadsSeen(reads, released))
    return joined
