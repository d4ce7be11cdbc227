"""One queue a pool of lanes: samples that wait for a lane, the lanes that are at work, and how many may be.

Pure. In: samples in the order of need, ends of fetches. Out: batches for lanes. A pool is a place's prefetch threads
(NoPFS, Section 4: the p_j threads of class j); all peers share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfs.plan.lane_governor import LaneGovernor
from mlfs.plan.scheduler.followed import FollowedJob

# A hop to a thread and back costs about as much as a sample from memory: a batch takes this long, so that the hop is
# cheap beside it. A reader who needs a sample behind others of its batch takes it back, so he does not wait for them.
# With 2 ms a local source gave 8,000 samples a second, with 4 ms 9,300, with 8 ms 10,200 (medians of 5, 2 cores).
BATCH_S = 0.004
MOST_IN_BATCH = 64
# A new observation's weight in the smoothed time that a sample takes.
SMOOTHING = 0.2


class Wanted(NamedTuple):
    """A sample to fetch, where from, and for whom: the job and the epoch that the source's bytes count for.

    A stranger has no job.
    """

    sample: int
    place: int
    job: FollowedJob | None
    epoch: int


@dataclass(eq=False, slots=True)
class Running:
    """A fetch that a lane is at. One that hangs does not count as working: another lane takes its place."""

    fetch: int
    queue: PoolQueue
    wanted: dict[int, Wanted]
    lanes: int
    hangs: bool = False


@dataclass(eq=False, slots=True)
class PoolQueue:
    """Samples to fetch by one pool of lanes.

    Attributes:
        sample_s: smoothed seconds that a sample takes a lane; decides how many make a batch.
        working: lanes that are at work and do not hang.
    """

    pool: int
    lanes: int
    items: deque[Wanted] = field(default_factory=deque)
    sample_s: float = 0.001
    working: int = 0
    governor: LaneGovernor = field(init=False)

    def __post_init__(self) -> None:
        self.governor = LaneGovernor(self.lanes)

    @property
    def has_lane(self) -> bool:
        """Whether another lane may work."""
        return self.working < self.governor.allowed

    def take(self, may_begin: Callable[[Wanted], bool]) -> dict[int, Wanted]:
        """The next batch, by sample: about BATCH_S of work, of those that may begin; the others leave the queue."""
        batch: dict[int, Wanted] = {}
        most = max(1, min(MOST_IN_BATCH, int(BATCH_S / self.sample_s)))
        while self.items and len(batch) < most:
            wanted = self.items.popleft()
            if may_begin(wanted):
                batch[wanted.sample] = wanted
        return batch

    def ended(self, samples: int, wall_s: float, cpu_s: float, now_s: float) -> None:
        """A batch is over: have it tell how many lanes pay."""
        if samples:
            self.sample_s += SMOOTHING * (wall_s / samples - self.sample_s)
        if self.items:
            self.governor.done(samples, wall_s, cpu_s, now_s)
        else:
            self.governor.idle()
