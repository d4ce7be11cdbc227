"""The scheduler's frozen figures, for the status of a mount.

Pure; made by `mlfs.plan.scheduler.scheduler` of what each of its parts tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlfs.plan.scheduler.fetching import PoolStatistics
from mlfs.plan.scheduler.keeping import KeepingStatistics
from mlfs.plan.scheduler.neighbours import NeighboursStatistics
from mlfs.plan.scheduler.reading_times import ReadingTime
from mlfs.plan.scheduler.routing import RoutingStatistics
from mlfs.plan.scheduler.warming import WarmingStatistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of all parts of the scheduler, at one moment.

    Attributes:
        window_bytes, window_capacity_bytes: the staging window. window_full_bytes: what was asked for; it is smaller
            while the kernel takes its pages back (`Pressure`). dropping: samples on their way out of it.
        waiting: readers who wait. waited_s: seconds that readers have waited, all together.
        fetches: samples whose fetch is queued or under way. looking: whether the look-ahead has more to do at once.
        stopped: whether nothing is fetched ahead. peers_missed: samples asked of peers in vain.
        pools: by number. reading: by job, how long it reads. neighbours: what was learned of reads that no job follows.
        warming: the last warm-up.
        rank_waits: by job and index of the rank, how long its readers have waited; ranks that never waited are missing.
    """

    window_bytes: int
    window_capacity_bytes: int
    dropping: int
    waiting: int
    waited_s: float
    fetches: int
    looking: bool
    stopped: bool
    peers_missed: int
    pools: Mapping[int, PoolStatistics]
    routing: RoutingStatistics
    keeping: KeepingStatistics
    reading: Mapping[str, ReadingTime]
    neighbours: NeighboursStatistics
    window_full_bytes: int = 0
    warming: WarmingStatistics = field(default_factory=WarmingStatistics)
    rank_waits: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
