"""What is told of a rank's loader from the times of its reads: drawn loaders whose true times are known."""

from __future__ import annotations

import random

import pytest
from loaders import TimedLoader

from mlfs.plan.loader_load import KEPT_BATCHES, JobLoad, Limit
from mlfs.plan.scheduler import rank_loads
from mlfs.plan.scheduler.rank_loads import RankLoads, Reader

BATCH, SAMPLES = 8, 800


def told(*loaders: TimedLoader, samples: int = SAMPLES, coming: int = 0, seed: int = 1) -> JobLoad:
    """What is told of a job whose ranks have such loaders, at the end of an epoch."""
    loads = RankLoads()
    loads.begin("train", BATCH)
    opens = sorted(
        (at_s, rank, process, place)
        for rank, loader in enumerate(loaders)
        for at_s, process, place in loader.opens(samples, random.Random(seed + rank))
    )
    for at_s, rank, process, place in opens:
        loads.read(Reader("train", rank, process + 100 * rank), place, 0, at_s, 0.0, 100)
    return loads.statistics(lambda name, rank: coming)["train"]


def bulk_synchronous(*loaders: TimedLoader) -> list[TimedLoader]:
    """The same loaders behind one training loop: each step takes as long as the slowest rank's loading."""
    slowest = max((of.open_s * of.batch + of.collate_s) / of.workers for of in loaders)
    return [TimedLoader(**(vars(of) | {"step_s": max(of.step_s, slowest)})) for of in loaders]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_loader_that_training_waits_for_is_never_idle(workers: int) -> None:
    (rank,) = told(TimedLoader(BATCH, workers, 2, open_s=0.01, step_s=0.005, collate_s=0.004)).ranks
    assert rank.limit is Limit.PREPROCESSING
    assert rank.workers == workers
    assert rank.preprocess_s == pytest.approx(0.08, rel=0.1)
    assert rank.handing_s == pytest.approx(0.004, rel=0.5)
    assert rank.idle_s < 0.003
    assert rank.step_s == pytest.approx(0.084 / workers, rel=0.1)
    assert rank.batch_bytes == 100 * BATCH


def test_a_loader_that_waits_for_training_is_idle_for_the_rest_of_a_step() -> None:
    (rank,) = told(TimedLoader(BATCH, 2, 2, open_s=0.01, step_s=0.1, collate_s=0.004)).ranks
    assert rank.limit is Limit.TRAINING
    assert rank.step_s == pytest.approx(0.1, rel=0.05)
    assert rank.idle_s == pytest.approx(0.2 - 0.084, rel=0.1)


def test_waiting_is_told_apart_from_preprocessing() -> None:
    """Reads take 1 s from the one before, of which they wait 0.7 s; READs of an open file 0.1 s more."""
    loads = RankLoads()
    loads.begin("train", 4)
    for place in range(4 * 12):
        loads.read(Reader("train", 0, 7), place, 0, float(place), 0.7, 10)
        loads.waited("train", 7, 0.1)
    (rank,) = loads.statistics(lambda name, rank: 0)["train"].ranks
    assert rank.waiting_s == pytest.approx(4 * 0.8)
    assert rank.work_s + rank.idle_s == pytest.approx(4 * 0.2, rel=0.2)
    assert rank.limit is Limit.READS


def test_without_the_beginning_of_an_epoch_nobody_knows_what_is_idling() -> None:
    loads = RankLoads()
    loads.begin("train", 2)
    for place in range(2, 60):
        loads.read(Reader("train", 0, 7), place, 0, place * 0.01 + place // 2, 0.0, 10)
    (rank,) = loads.statistics(lambda name, rank: 0)["train"].ranks
    assert (rank.limit, rank.idle_s) == (Limit.UNKNOWN, 0.0)


def test_of_two_ranks_the_slower_one_is_the_straggler_and_steps_are_uneven() -> None:
    slow, fast = TimedLoader(BATCH, 2, 2, open_s=0.02), TimedLoader(BATCH, 2, 2, open_s=0.01)
    load = told(*bulk_synchronous(fast, slow))
    assert load.straggler == 1
    assert load.imbalance.apart == pytest.approx(0.5, abs=0.07)
    assert load.imbalance.steps > 0.6
    assert load.steps > 10
    assert [of.limit for of in load.ranks] == [Limit.TRAINING, Limit.PREPROCESSING]


@pytest.mark.parametrize("step_s", [0.0, 0.3])
def test_ranks_that_are_alike_are_even_and_none_is_a_straggler(step_s: float) -> None:
    load = told(*[TimedLoader(BATCH, 1, 2, open_s=0.01, step_s=step_s, jitter=0.02)] * 3)
    assert load.straggler == -1
    assert load.imbalance.steps < 0.1


def test_the_next_step_is_predicted_by_its_bytes() -> None:
    """A file of n bytes takes n ms: a batch of files twice as large takes twice as long."""
    loads, now_s = RankLoads(), 0.0
    loads.begin("train", 4)
    for place in range(4 * 40):
        size_bytes = 10 + place // 4 % 20
        loads.read(Reader("train", 0, 7), place, 0, now_s, 0.0, size_bytes)
        now_s += size_bytes / 1000
    for coming in (40, 100):
        (rank,) = loads.statistics(lambda name, rank, coming=coming: coming)["train"].ranks
        assert rank.next_s == pytest.approx(coming / 1000, rel=0.1)


def test_a_process_whose_threads_jump_between_batches_tells_nothing() -> None:
    loads, rng = RankLoads(), random.Random(5)
    loads.begin("train", BATCH)
    for start in range(0, 400, 40):
        for place in rng.sample(range(start, start + 40), 40):
            loads.read(Reader("train", 0, 7), place, 0, place * 0.01, 0.0, 10)
    assert not loads.statistics(lambda name, rank: 0)


def test_memory_is_bounded() -> None:
    loads = RankLoads()
    loads.begin("train", 2)
    for process in range(rank_loads.MOST_PROCESSES + 10):
        for place in range(4):
            loads.read(Reader("train", 0, process), place, 0, place * 0.01, 0.0, 10)
    (job,) = loads._jobs.values()
    assert len(job.open) == rank_loads.MOST_PROCESSES
    assert [len(of) for of in job.batches.values()] == [KEPT_BATCHES]
    loads.forget("train")
    assert not loads.statistics(lambda name, rank: 0)


def test_a_job_that_is_begun_anew_with_other_workers_adds_to_what_was_seen() -> None:
    loads = RankLoads()
    for workers in (1, 2, 4):
        loads.begin("train", BATCH)
        loader = TimedLoader(BATCH, workers, 2, open_s=0.01 * workers)  # they crowd one another
        for at_s, process, place in loader.opens(400, random.Random(1)):
            loads.read(Reader("train", 0, process), place, 0, at_s, 0.0, 100)
    pace = loads.statistics(lambda name, rank: 0)["train"].pace
    assert pace == {workers: pytest.approx(workers * 1e-4, rel=0.1) for workers in (1, 2, 4)}
