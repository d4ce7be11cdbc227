"""What a driver tells the scheduler. One record an event; times stand in `step(now_s, ...)`, not in the events.

Pure. Samples, places and fetches are numbers: place 0 is the source, then come this node's tiers, then its peers
(`PlaceInfo` in mlfs.plan.scheduler.config). A driver gives a ticket's number to whoever waits; the scheduler gives a
fetch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.followed import EpochStreams, FollowedJob
from mlfs.plan.scheduler.keeping import Plan


class ReadSeen(NamedTuple):
    """A reader holds the sample open since `at_s`.

    Attributes:
        process: who reads. parent: that one's parent process. source_bytes: what the source gave for this very read,
            because the reader had to wait for it; 0 where the bytes were there, or came from elsewhere.
        more: whether further reads follow at once: predictions are judged with the last one.
    """

    sample: int
    process: int
    parent: int
    at_s: float
    source_bytes: int = 0
    more: bool = False


class Released(NamedTuple):
    """A reader closed the sample."""

    sample: int


class ReadWaits(NamedTuple):
    """A reader opened a sample that is not in place; the ticket is to be answered."""

    ticket: int
    sample: int


class Touched(NamedTuple):
    """A reader opened a sample that is DROPPING: rescue it."""

    sample: int


class Landed(NamedTuple):
    """What became of one sample of a fetch.

    Attributes:
        place: where the bytes came from. size_bytes: of the content that was fetched. staged: whether all of it lies in
            the page cache. error: an errno, 0 for none; then nothing else holds.
    """

    fetch: int
    sample: int
    place: int = 0
    size_bytes: int = 0
    staged: bool = False
    error: int = 0


class FetchEnded(NamedTuple):
    """A fetch is over: its samples' ends (those that were told before once more), and what it took a thread.

    Attributes:
        wall_s: seconds in all. cpu_s: of these computing. keeping_s: of these giving copies to tiers.
    """

    fetch: int
    landed: Sequence[Landed]
    wall_s: float = 0.0
    cpu_s: float = 0.0
    keeping_s: float = 0.0


class Recalled(NamedTuple):
    """The driver took a sample back from a lane that had not begun it (the answer to `Recall`)."""

    fetch: int
    sample: int


class Kept(NamedTuple):
    """A fetch's sample was to be kept; its copy is in `place` now, 0 for nowhere. used_bytes: of that place."""

    fetch: int
    sample: int
    place: int
    used_bytes: int = 0


class CopiesFound(NamedTuple):
    """A place holds copies of these samples from before."""

    place: int
    samples: Sequence[int]


class CopyLost(NamedTuple):
    """No place of this node holds the sample any more."""

    sample: int


class Dropped(NamedTuple):
    """The pages of these samples are gone (the end of a `Drop`)."""

    samples: Sequence[int]


class Outdated(NamedTuple):
    """What is in place of the sample is of the past: the next reader shall get what the source has now."""

    sample: int


class SourceHung(NamedTuple):
    """The source did not answer a READ request in time."""


class Resized(NamedTuple):
    """The sample has another size at the source; the table's `sizes` have the new one already."""

    sample: int
    old_bytes: int
    new_bytes: int


class JobInstalled(NamedTuple):
    """A job begins, or goes on in another way, in place of one of the same name."""

    job: FollowedJob


class JobEnded(NamedTuple):
    """The job of that name has ended."""

    name: str


class EpochKnown(NamedTuple):
    """The order of an epoch was computed (the end of a `LoadEpoch`)."""

    job: FollowedJob
    streams: EpochStreams


class EpochUnknown(NamedTuple):
    """The order of an epoch could not be computed."""

    job: FollowedJob
    epoch: int


class JobBroken(NamedTuple):
    """A bug showed in computing for a job (an order of another package, perhaps): it is given up."""

    job: FollowedJob
    error: Exception


class Planned(NamedTuple):
    """What this node shall keep, and who owns the rest; None: keep what comes first."""

    plan: Plan | None


class PlacesMeasured(NamedTuple):
    """What each place gives as far as it is known, bytes a second by place, 0 for not known."""

    bytes_per_s: Sequence[float]


class PeersJoined(NamedTuple):
    """This node has joined others: they are places from now on, numbered behind those that are there.

    It is told once; a node whose agent dies and that joins again says PeerBack of the same places.
    """

    places: Sequence[PlaceInfo]


class PeerAsks(NamedTuple):
    """Another node wants a sample that this one owns; the ticket is answered once it is in place here.

    It is refused where the source fails, or where this node's plan says that a third one owns it. However it ends, the
    driver tells Released when it is done with the sample.
    """

    ticket: int
    sample: int


class PeerLost(NamedTuple):
    """A peer does not answer: nothing is asked of it any more."""

    place: int


class PeerBack(NamedTuple):
    """A peer answers again."""

    place: int


class Stopped(NamedTuple):
    """Fetch nothing ahead any more; or, with False, go on after all."""

    stop: bool


class TimePassed(NamedTuple):
    """The time of the last `WakeAt` has come."""


Event = (
    ReadSeen | Released | ReadWaits | Touched | Landed | FetchEnded | Recalled | Kept | CopiesFound
    | CopyLost | Dropped | Outdated | Resized | JobInstalled | JobEnded | EpochKnown | EpochUnknown | Planned
    | JobBroken | SourceHung | PlacesMeasured | PeersJoined | PeerAsks | PeerLost | PeerBack | Stopped | TimePassed
)  # fmt: skip
