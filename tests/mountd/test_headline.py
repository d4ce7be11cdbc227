"""The sentence that the status begins with, situation by situation, with numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from made_up import engine, job, load, mount, span

from mlfs.explain.statistics import (
    CaseStatistics,
    ExplainerStatistics,
    InferenceState,
    InferenceStatistics,
    Instead,
)
from mlfs.follow.agreement import Share
from mlfs.follow.job_statistics import FindingsStatistics, JobState, JobStatistics, RankStatistics
from mlfs.plan.epochs import EpochCost
from mlfs.plan.rank_load import StepLimit
from mlfs.plan.scheduler.neighbours import NeighboursStatistics, Rule
from mlfs.plan.scheduler.reading_times import EpochTime, ReadingTime
from mlfs.plan.scheduler.routing import RoutingStatistics
from mlfs.stats import CounterStatistics, StallStatistics, Tally
from mountd.headline import headline

GIB = 1 << 30


def waiting(share: float, epoch: int = 1, seconds: float = 100.0, whole: float | None = None) -> ReadingTime:
    """Two readers who wait that share of an epoch, of which all 800 samples were read."""
    told = EpochTime(epoch, seconds, 2 * seconds * share, 2, 800)
    all_s = 1000.0
    return ReadingTime(all_s, 2 * all_s * (share if whole is None else whole), (told,))


def reads(brought: dict[int, int], stream_bytes: int = 8 * GIB, **changed: Any) -> JobStatistics:
    """A job of one rank here, and what the source gave for its epochs."""
    ranks = (RankStatistics(0, 1, 800, 800, True, 9.0), RankStatistics(1, 0, 0, 800, False, 0.0))
    made = job(ranks=ranks, pfs_bytes_by_epoch=brought, stream_bytes=stream_bytes)
    return replace(made, **changed)


NO_TIME, IDLE = ReadingTime(), InferenceStatistics(InferenceState.IDLE)
NO_STALLS = StallStatistics()


@dataclass(frozen=True)
class Case:
    """A situation, and what is said of it."""

    said: str
    job: JobStatistics | None
    time: ReadingTime = NO_TIME
    engine: Any = None
    inference: InferenceStatistics = IDLE


AT_REST = engine()
SLOW = replace(AT_REST.scheduler, routing=RoutingStatistics((False, False, True), (None, None, None)))
FULL = replace(AT_REST.scheduler, window_bytes=AT_REST.scheduler.window_capacity_bytes)

LEARNED = replace(
    AT_REST.scheduler, neighbours=NeighboursStatistics(900, ((Rule.ADJACENT, 0.1), (Rule.EARLIER, 0.9)), Rule.EARLIER)
)


def errors(stalls: StallStatistics = NO_STALLS, **counted: int) -> dict[str, CounterStatistics]:
    """Counters with errors in them: of 1,500 reads."""
    return {"counters": CounterStatistics(span(page_cache=(1500, 9)), span(stalls), Tally(), counted)}


# The caches hold 6 GB; 8 GiB are read in an epoch.
CASES = {
    "all is well": Case("training waited 0.4 % of the time; nothing to do", reads({0: GIB}), waiting(0.004)),
    "it was worse before": Case(
        "epoch 1 waits 0.4 %, and all epochs so far 20 %; nothing to do", reads({0: GIB}), waiting(0.004, whole=0.2)
    ),
    # In 25 s the source gave 2 GiB; in the 18.75 s without waiting it gives 1.5: the rest has to be kept.
    "the source is slow": Case(
        "epoch 3 waits 25 %: the source gives 81.9 MiB/s of the 109.2 MiB/s needed; 512 MiB more of --ssd would end it",
        reads({0: 8 * GIB, 3: 2 * GIB}, stream_bytes=6_000_000_000 + 2 * GIB),
        waiting(0.25, epoch=3, seconds=25.0),
    ),
    "the first epoch, and the rest fits": Case(
        "epoch 0 waits 50 %: the source gives 80 MiB/s of the 160 MiB/s needed; nothing to do: in the next epoch"
        " nothing comes from there",
        reads({0: 4000 << 20}, stream_bytes=4000 << 20),
        waiting(0.5, epoch=0, seconds=50.0),
    ),
    "the first epoch, and the rest is soon told": Case(
        "epoch 0 waits 50 %: the source gives 81.9 MiB/s of the 163.8 MiB/s needed; nothing to do: in the next epoch"
        " only 2.4 GiB of 8 GiB comes from there",
        reads({0: 8 * GIB}),
        waiting(0.5, epoch=0),
    ),
    "the first epoch, and later ones will wait too": Case(
        "epoch 0 waits 90 %: the source gives 81.9 MiB/s of the 819.2 MiB/s needed; 1.6 GiB more of --ssd would end it"
        " from the next epoch on",
        reads({0: 8 * GIB}),
        waiting(0.9, epoch=0),
    ),
    "the source could give more": Case(
        "epoch 3 waits 25 %: the source gives 2 MiB/s of the 114.4 MiB/s that it can give, and readers wait for each"
        " file; more --pfs-threads may help",
        reads({0: 8 * GIB, 3: 200 << 20}),
        waiting(0.25, epoch=3),
    ),
    # In 100 s the disk gives 8 GiB; in the 50 s that computing takes, 4.
    "a disk rules": Case(
        "epoch 3 waits 50 %: ssd:/scratch gives 81.9 MiB/s of the 163.8 MiB/s needed; 4 GiB more of --ram would end it",
        reads({0: 8 * GIB}),
        waiting(0.5, epoch=3),
        {"speeds": replace(AT_REST.speeds, loading=EpochCost(
            100.0, 0.0, 0.0, 0.0, {"ssd:/scratch": 8.0 * GIB}, {"compute": 0.0, "pfs": 1.0, "ssd:/scratch": 100.0}
        ))},
    ),
    "a disk is not used": Case(
        "epoch 3 waits 25 %: ssd:/scratch is slower than the source and is not used; a faster disk would help",
        reads({0: 8 * GIB, 3: 4 * GIB}), waiting(0.25, epoch=3), {"scheduler": SLOW},
    ),
    "the source hangs": Case(
        "epoch 3 waits 25 %: the source did not answer in time, 2 times, and a reader waited 30.0 s; look after it",
        reads({0: 8 * GIB}), waiting(0.25, epoch=3), errors(StallStatistics(4, 50.0, 30.0), source_timeout=2),
    ),
    "pages are taken back": Case(
        "epoch 3 waits 25 %: the machine took the pages of 1,195 of 1,500 reads back before they were read; it needs"
        " more memory, or a smaller --staging, or no daemon that reclaims page cache",
        reads({0: 8 * GIB}), waiting(0.25, epoch=3), errors(pages_taken_back=1195),
    ),
    "half of it is not as registered": Case(
        "epoch 3 waits 25 %: only 62 % of the last 256 reads were as predicted; mlfs register with --start-epoch 1",
        reads({0: GIB}, recent=Share(160, 256), findings=FindingsStatistics(("so",), "--start-epoch 1", 9)),
        waiting(0.25, epoch=3),
    ),
    "the window is full": Case(
        "epoch 3 waits 25 %: the staging window of 1.9 GiB is full; a larger --staging would help",
        reads({0: 8 * GIB}), waiting(0.25, epoch=3), {"scheduler": FULL},
    ),
    "nobody knows": Case(
        "epoch 3 waits 25 %: neither the source nor a disk is at its limit; mlfs status shows how far ahead samples are"
        " ready",
        reads({0: 8 * GIB}), waiting(0.25, epoch=3),
    ),
    "nothing fits": Case(
        "nothing is fetched ahead, because 75 % of the last 256 reads were not as registered: register what the script"
        " does",
        reads({}, state=JobState.DRIFTING, recent=Share(64, 256)), waiting(0.9),
    ),
    "nothing fits but what came after what": Case(
        "only what came next the last time is fetched ahead, because 75 % of the last 256 reads were not as registered:"
        " register what the script does",
        reads({}, state=JobState.DRIFTING, recent=Share(64, 256)), waiting(0.9), {"scheduler": LEARNED},
    ),
    "a fault": Case(
        "mlfs failed to follow the job, so nothing is fetched ahead: register it again (the log says why)",
        reads({}, given_up=True),
    ),
    "not begun": Case("training has not begun to read; 30 samples are ready", reads({}, state=JobState.WAITING)),
    "found when all was read": Case("no read has come since the order is known; 30 samples are ready", reads({})),
    "over": Case(
        "training has read everything, and waited 3.0 % of the time", reads({}, state=JobState.FINISHED), waiting(0.03)
    ),
    "no job": Case(
        "readers waited 1.5 s in all: no job is registered, so nothing is fetched ahead; mlfs register tells what"
        " training will read",
        None,
    ),
    "no job, but what came after what is known": Case(
        "readers waited 1.5 s in all: no job is registered, so only what came next the last time is fetched ahead; mlfs"
        " register tells what training will read",
        None,
        engine={"scheduler": LEARNED},
    ),
    "no job, but soon": Case(
        "readers waited 1.5 s in all: nothing is fetched ahead while mlfs looks for the order of the reads; mlfs"
        " register tells it at once",
        None,
        inference=InferenceStatistics(InferenceState.SEARCHING),
    ),
    "nothing at all": Case(
        "nothing was read yet, and no job is registered: mlfs register tells mlfs what training will read",
        None,
        engine={"counters": CounterStatistics(span(), span(), Tally(), {})},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    case = CASES[name]
    jobs = [] if case.job is None else [case.job]
    told = replace(engine(*jobs), **(case.engine or {}))
    told = replace(told, scheduler=replace(told.scheduler, reading={one.name: case.time for one in jobs}))
    assert headline(mount(told, explainer=ExplainerStatistics(case.inference, {}))) == case.said


def test_of_several_jobs_it_is_about_the_one_that_waits_most() -> None:
    first, second = reads({0: GIB}, name="a"), reads({0: GIB}, name="b")
    told = engine(first, second, reading={"a": waiting(0.1), "b": waiting(0.3)})
    assert headline(mount(told)).startswith("job b: epoch 1 waits 30 %")


def test_an_epoch_that_has_just_begun_does_not_tell_yet() -> None:
    before, now = EpochTime(0, 100.0, 50.0, 1, 800), EpochTime(1, 0.5, 0.5, 1, 3)
    told = engine(reads({0: 8 * GIB}), reading={"train": ReadingTime(100.5, 50.5, (before, now))})
    assert headline(mount(told)).startswith("epoch 0 waited 50 %: the source gives")


def test_it_is_not_about_a_registration_in_whose_place_the_reads_are_explained() -> None:
    wrong = reads({}, name="train", state=JobState.DRIFTING, recent=Share(4, 256))
    true = reads({0: GIB}, name="inferred")
    told = engine(wrong, true, reading={"train": waiting(0.3), "inferred": waiting(0.001)})
    cases = {"train": CaseStatistics(instead=Instead("seed 42", "seed 5", "--seed 5"))}
    explained = ExplainerStatistics(IDLE, cases)
    assert headline(mount(told, explainer=explained)) == "training waited 0.1 % of the time; nothing to do"
    assert "were not as registered" in headline(mount(told))


def test_a_loader_that_is_never_idle_is_told_of_where_reads_do_not_wait() -> None:
    told = engine(job(), reading={"train": waiting(0.001)})
    assert headline(mount(told)) == "training waited 0.1 % of the time; nothing to do"
    told = replace(told, loads={"train": load(StepLimit.PREPROCESSING, idle_s=0.0)})
    assert headline(mount(told)) == (
        "reads do not wait, but the loader does: each of the 2 workers of rank 1 works all the time, 310 ms for a"
        " batch; num_workers 1 for rank 0 (now 2) and 3 for rank 1 (now 2) would make steps up to 1.3 times as fast;"
        " mlfs advise workers --from-mount /data/set says more"
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_source_that_gave_nothing_is_not_at_its_limit(known: bool) -> None:
    """All files of the job are empty, or linked to what another one reads."""
    told = engine(reads({}, stream_bytes=0), reading={"train": waiting(0.25)})
    if not known:
        told = replace(told, speeds=replace(told.speeds, places={}))
    assert headline(mount(told)) == (
        "epoch 1 waits 25 %: neither the source nor a disk is at its limit; mlfs status shows how far ahead samples"
        " are ready"
    )
