"""What an engine tells of itself: frozen figures, made by `mlfs.engine.engine` from those of its parts.

Nothing here changes when the engine goes on. The status and the metrics are made from it, and what is kept for the next
mount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlfs.engine.page_watch import PageWatchStatistics
from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.planner import PlannerStatistics
from mlfs.engine.ranges import RangesStatistics
from mlfs.follow.job_statistics import JobStatistics
from mlfs.measure.speeds import SpeedsStatistics
from mlfs.places.place import PlaceStatistics
from mlfs.plan.scheduler.look_ahead import Ahead
from mlfs.plan.scheduler.statistics import Statistics as SchedulerStatistics
from mlfs.stats import CounterStatistics


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """The data set: how many files and bytes it has, and how many files were found to have changed at the source."""

    files: int
    bytes: int
    changed_files: int


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """An engine.

    Attributes:
        jobs: in the order in which they were installed.
        ahead: by the job's name, what is staged ahead of each of its local ranks.
        places: those that store, in the order of their numbers.
        under_way: what is not settled yet, by what it is. All zero: nobody waits, and what was fetched is kept.
    """

    tree: TreeStatistics
    jobs: tuple[JobStatistics, ...]
    ahead: Mapping[str, tuple[Ahead, ...]]
    scheduler: SchedulerStatistics
    planner: PlannerStatistics
    ranges: RangesStatistics
    page_watch: PageWatchStatistics
    places: tuple[PlaceStatistics, ...]
    speeds: SpeedsStatistics
    counters: CounterStatistics
    peering: PeeringStatistics
    under_way: Mapping[str, int]
