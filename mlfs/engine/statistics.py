"""An engine's figures, frozen: made by `mlfs.engine.engine` from those of its parts.

Nothing here changes when the engine goes on. The status and the metrics are made from it, and what is kept for the next
mount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlfs.engine.background import BackgroundFault
from mlfs.engine.page_watch import PageWatchStatistics
from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.planner import PlannerStatistics
from mlfs.engine.ranges import RangesStatistics
from mlfs.engine.shortages import Shortage
from mlfs.follow.job_statistics import JobStatistics
from mlfs.measure.speeds import SpeedsStatistics
from mlfs.places.place import PlaceStatistics
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.placement import pfs_bound_bytes
from mlfs.plan.scheduler.look_ahead import Ahead
from mlfs.plan.scheduler.statistics import Statistics as SchedulerStatistics
from mlfs.stats import CounterStatistics


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """The data set: how many files and bytes it has, and how many files were found to have changed at the source."""

    files: int
    bytes: int
    changed_files: int = field(metadata={"key": "changed"})


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """An engine.

    Attributes:
        jobs: in the order in which they were installed.
        ahead: by the job's name, what is staged ahead of each of its local ranks.
        loads: by the job's name, what its ranks' loaders do with their time; jobs of which no batch was read yet are
            missing.
        places: those that store, in the order of their numbers.
        shortages: what the process was short of. faults: tasks beside the readers' way that failed.
        nameless_opens: opens by readers who cannot be told apart: they are in another pid namespace.
        under_way: what is not settled yet, by what it is. All zero: nobody waits, and what was fetched is kept.
    """

    tree: TreeStatistics
    jobs: tuple[JobStatistics, ...]
    ahead: Mapping[str, tuple[Ahead, ...]]
    loads: Mapping[str, JobLoad]
    scheduler: SchedulerStatistics
    planner: PlannerStatistics
    ranges: RangesStatistics
    page_watch: PageWatchStatistics
    places: tuple[PlaceStatistics, ...]
    speeds: SpeedsStatistics
    counters: CounterStatistics
    peering: PeeringStatistics
    under_way: Mapping[str, int]
    shortages: tuple[Shortage, ...] = ()
    faults: tuple[BackgroundFault, ...] = ()
    nameless_opens: int = 0

    def bound_bytes(self, stream_bytes: int) -> int:
        """The least that the source gives in an epoch after the first for jobs that read so much in each, of which
        bytes that they read several times, such as a chunk for each of its rows, come once."""
        capacity_bytes = sum(place.capacity_bytes for place in self.places)
        return pfs_bound_bytes(min(stream_bytes, self.tree.bytes), capacity_bytes)

    @property
    def errors(self) -> dict[str, int]:
        """All that went wrong, by kind, with what the process was short of and tasks that failed."""
        found = dict(self.counters.errors)
        found |= {f"{one.resource}_short": one.times for one in self.shortages}
        more = {
            "background_fault": sum(one.times for one in self.faults),
            "tier_error": sum(one.errors for one in self.places),
        }
        return found | {kind: times for kind, times in more.items() if times}
