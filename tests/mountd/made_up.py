"""Statistics of mounts that never were, for tests of what is made from statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlfs.engine.page_watch import PageWatchStatistics
from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.planner import PlannerStatistics
from mlfs.engine.ranges import RangesStatistics
from mlfs.engine.statistics import EngineStatistics, TreeStatistics
from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.follow.agreement import NO_RANK, Share
from mlfs.follow.job_statistics import (
    LEARNED,
    REGISTERED,
    UNKNOWN,
    FindingsStatistics,
    JobState,
    JobStatistics,
    Known,
    LoaderStatistics,
    RankStatistics,
    ReadersStatistics,
)
from mlfs.measure.refine import Measured
from mlfs.measure.speeds import PlaceSpeeds, SpeedsStatistics
from mlfs.places.place import PlaceStatistics
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.rank_load import Imbalance, RankLoad, StepLimit
from mlfs.plan.scheduler.fetching import PoolStatistics
from mlfs.plan.scheduler.keeping import KeepingStatistics
from mlfs.plan.scheduler.look_ahead import Ahead
from mlfs.plan.scheduler.neighbours import NeighboursStatistics
from mlfs.plan.scheduler.reading_times import ReadingTime
from mlfs.plan.scheduler.routing import RoutingStatistics
from mlfs.plan.scheduler.statistics import Statistics as SchedulerStatistics
from mlfs.stats import ROUTES, CounterStatistics, SpanStatistics, StallStatistics, Tally
from mountd.statistics import About, MountStatistics, ProcessOfMount, ProcessStatistics

GB = 10**9


def span(stalls: StallStatistics | None = None, **routes: tuple[int, int]) -> SpanStatistics:
    """Reads by route as (count, bytes); what did not come from the page cache or RAM was fetched as well."""
    reads = {route: Tally(*routes.get(route, (0, 0))) for route in ROUTES}
    fetches = {route: tally if route not in ("page_cache", "ram") else Tally() for route, tally in reads.items()}
    taken_back = {route: Tally() for route in ROUTES}
    return SpanStatistics(reads, reads["page_cache"], taken_back, fetches, stalls or StallStatistics())


def job(**changed: Any) -> JobStatistics:
    """A job of two ranks in its second epoch, of which every open was predicted but for 10 of 1,000."""
    made = JobStatistics(
        name="train",
        inferred=False,
        state=JobState.RUNNING,
        given_up=False,
        share=Share(990, 1000),
        recent=Share(256, 256),
        shares={
            0: {NO_RANK: Share(0, 10), 0: Share(390, 390), 1: Share(400, 400)},
            1: {0: Share(100, 100), 1: Share(100, 100)},
        },
        loader=LoaderStatistics(
            2,
            Known(32, REGISTERED),
            Known(2, LEARNED),
            Known(None, UNKNOWN),
            depth_at_least=2,
            depth_at_most=None,
            early=0,
        ),
        findings=FindingsStatistics((), "", 0),
        epochs=3,
        epoch=1,
        ranks=(RankStatistics(0, 1, 100, 400, True, 50.0), RankStatistics(1, 1, 100, 400, True, 0.0)),
        batch_files=32,
        files_per_sample=1,
        stream_bytes=8 * GB,
        pfs_bytes_by_epoch={0: 8 * GB, 1: GB},
        specification={"sampler": "torch-distributed", "seed": 7},
        readers=ReadersStatistics(),
    )
    return replace(made, **changed)


def load(limit: StepLimit = StepLimit.TRAINING, **changed: Any) -> JobLoad:
    """Two ranks of two workers each: the second one preprocesses for longer."""
    usual = RankLoad(0, 2, 16, 1e6, 0.02, 0.1, 0.01, 0.3, 0.2, 0.065, limit=limit)
    ranks = (replace(usual, **changed), replace(usual, rank=1, preprocess_s=0.3, next_s=0.165, **changed))
    return JobLoad(ranks, Imbalance(0.6, 0.25), 16, 1, {4: 2e-7})


def engine(*jobs: JobStatistics, reading: Mapping[str, ReadingTime] | None = None, **changed: Any) -> EngineStatistics:
    """An engine with RAM for 2 GB and a disk for 4 GB."""
    counted = span(StallStatistics(3, 1.5, 1.0), page_cache=(900, 9 * GB), ssd=(60, GB), pfs=(40, GB))
    made = EngineStatistics(
        tree=TreeStatistics(800, 9 * GB, 0),
        jobs=jobs,
        ahead={one.name: (Ahead(10, 100), Ahead(20, 200)) for one in jobs},
        loads={one.name: load() for one in jobs},
        scheduler=SchedulerStatistics(
            window_bytes=1, window_capacity_bytes=2 * GB, dropping=0, waiting=0, waited_s=1.5, fetches=0, looking=False,
            stopped=False, pools={0: PoolStatistics(0, 0, 4)},
            routing=RoutingStatistics((False, False, False), (None, None, None)),
            keeping=KeepingStatistics(False, {}, 0, (200, 200, 400)),
            reading=reading or {},
            peers_missed=0,
            neighbours=NeighboursStatistics(),
        ),
        planner=PlannerStatistics((), 0),
        ranges=RangesStatistics(0, 0),
        page_watch=PageWatchStatistics(0, 0),
        peering=PeeringStatistics(),
        places=(
            PlaceStatistics(PlaceKind.RAM, "ram", 2 * GB, 2 * GB, 0),
            PlaceStatistics(PlaceKind.SSD, "ssd:/scratch", 4 * GB, 4 * GB, 1),
        ),
        speeds=SpeedsStatistics(
            {
                "pfs": PlaceSpeeds((Measured(4, 1.2e8, 9),), ((1.0, 5e7),), ((1.0, 5e7), (4.0, 1.2e8))),
                "ram": PlaceSpeeds((), (), ()),
                "ssd:/scratch": PlaceSpeeds((), (), ()),
            },
            None,
        ),
        counters=CounterStatistics(counted, span(), Tally(), {"source_retried": 2}),
        under_way={"fetches": 0, "drops": 0},
    )  # fmt: skip
    return replace(made, **changed)


def mount(of: EngineStatistics, **changed: Any) -> MountStatistics:
    """A mount of such an engine."""
    made = MountStatistics(
        about=About("/pfs/set", "/data/set", "scanned in 0.1 s", 0.0),
        process=ProcessStatistics("0.1", 4711, 90.0, 1 << 26, 4),
        engine=of,
        explainer=ExplainerStatistics(InferenceStatistics(InferenceState.IDLE), {}),
        requests={"open": 1000},
        directories_to_list=0,
        processes=(ProcessOfMount("server", 4711, 1, "was killed by SIGKILL", 1 << 26, 3.5),),
    )
    return replace(made, **changed)
