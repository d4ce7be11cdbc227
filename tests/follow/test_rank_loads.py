"""What is told of a rank's loader from the times of its reads: drawn loaders whose true times are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loaders import TimedLoader, opens_in_step
from support.held import held_bytes

from mlfs.follow.job import JobRun
from mlfs.plan.loader_load import KEPT_BATCHES, MOST_KEPT_BATCHES, JobLoad
from mlfs.plan.rank_load import StepLimit
from mlfs.plan.scheduler import rank_loads
from mlfs.plan.scheduler.rank_loads import RankLoads

BATCH, SAMPLES = 8, 800


@dataclass
class Known:
    """What is known of a loader."""

    batch_files: int = BATCH
    hands_ahead: bool = True
    reader_trains: bool = False


def begun(known: Known | None = None, before: RankLoads | None = None) -> RankLoads:
    """A job begins, with what is known of its loader."""
    return RankLoads(cast(JobRun, SimpleNamespace(loader=known or Known())), before)


def read(
    loads: RankLoads, rank: int, process: int, position: int, base: int, at_s: float, waited_s: float, size_bytes: int
) -> None:  # fmt: skip
    """One read, as it comes where it is no part of a batch."""
    loads.read(rank, process, base, [position], [at_s], [waited_s], [size_bytes])


def load_of(loads: RankLoads, now_s: float = -math.inf, coming: Callable[[int], int] = lambda rank: 0) -> JobLoad:
    """What is told of the job. Args: coming: given a rank, the bytes of its next batch."""
    return loads.load({rank: coming(rank) for rank in loads.ranks}, now_s)


def told(
    *loaders: TimedLoader, samples: int = SAMPLES, epochs: int = 1, seed: int = 1, known: Known | None = None
) -> JobLoad:  # fmt: skip
    """What is told of a job whose ranks have such loaders and wait for one another, at the end of its epochs."""
    loads = seen(*loaders, samples=samples, epochs=epochs, seed=seed, known=known)
    return load_of(loads)


def seen(
    *loaders: TimedLoader, samples: int = SAMPLES, epochs: int = 1, seed: int = 1, known: Known | None = None,
    size_bytes: Callable[[int, int], int] = lambda rank, place: 100,
) -> RankLoads:  # fmt: skip
    """What was noted of such a job. Args: size_bytes: of a file, by rank and place in the stream."""
    loads, rng, now_s = begun(known), random.Random(seed), 0.0
    for epoch in range(epochs):
        opens = sorted(
            (now_s + at_s, rank, process, place)
            for rank, opened in enumerate(opens_in_step(list(loaders), samples, rng))
            for at_s, process, place in opened
        )
        for at_s, rank, process, place in opens:
            reader, base = process + 100 * rank + 10_000 * epoch, epoch * samples
            read(loads, rank, reader, base + place, base, at_s, 0.0, size_bytes(rank, place))
        now_s = opens[-1][0] + 1.0
    return loads


def training(loads_s: list[float], step_s: float, steps: int = 40, jitter: float = 0.05, seed: int = 1) -> JobLoad:
    """What is told of ranks whose training processes load by themselves: they load, train, and wait for one another.

    Args:
        loads_s: by rank, how long it loads a batch.
    """
    loads, rng, ends_s = begun(Known(reader_trains=True)), random.Random(seed), [0.0] * len(loads_s)
    for step in range(steps):
        reads, began_s = [], max(ends_s)
        for rank, load_s in enumerate(loads_s):
            file_s = load_s / BATCH * rng.uniform(1 - jitter, 1 + jitter)
            reads += [(began_s + n * file_s, rank, step * BATCH + n) for n in range(BATCH)]
            ends_s[rank] = began_s + BATCH * file_s + step_s
        for read_s, rank, place in sorted(reads):
            read(loads, rank, rank, place, 0, read_s, 0.0, 100)
    return load_of(loads)


def limits(load: JobLoad) -> set[StepLimit]:
    """What ranks wait for."""
    return {rank.limit for rank in load.ranks}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_loader_that_training_waits_for_is_never_idle(workers: int) -> None:
    (rank,) = told(TimedLoader(BATCH, workers, 2, open_s=0.01, step_s=0.005, collate_s=0.004)).ranks
    assert rank.limit is StepLimit.PREPROCESSING
    assert rank.workers == workers
    assert rank.preprocess_s == pytest.approx(0.08, rel=0.1)
    assert rank.handing_s == pytest.approx(0.004, rel=0.5)
    assert rank.idle_s < 0.003
    assert rank.step_s == pytest.approx(0.084 / workers, rel=0.1)
    assert rank.batch_bytes == 100 * BATCH


def test_a_loader_that_waits_for_training_is_idle_for_the_rest_of_a_step() -> None:
    (rank,) = told(TimedLoader(BATCH, 2, 2, open_s=0.01, step_s=0.1, collate_s=0.004)).ranks
    assert rank.limit is StepLimit.TRAINING
    assert rank.step_s == pytest.approx(0.1, rel=0.05)
    assert rank.idle_s == pytest.approx(0.2 - 0.084, rel=0.1)


def test_waiting_is_told_apart_from_preprocessing() -> None:
    """Reads take 1 s from the one before, of which they wait 0.7 s; READs of an open file 0.1 s more."""
    loads = begun(Known(4))
    for place in range(4 * 12):
        read(loads, 0, 7, place, 0, float(place), 0.7, 10)
        loads.waited(7, 0.1)
    (rank,) = load_of(loads).ranks
    assert rank.waiting_s == pytest.approx(4 * 0.8)
    assert rank.work_s + rank.idle_s == pytest.approx(4 * 0.2, rel=0.2)
    assert rank.limit is StepLimit.READS


def test_what_reads_of_the_last_file_of_a_batch_wait_is_neither_preprocessing_nor_what_follows_it() -> None:
    """Four files of 100 ms of work each; READs of the last one wait 300 ms; 50 ms later the next batch begins."""
    loads, now_s = begun(Known(4)), 0.0
    for place in range(4 * 20):
        read(loads, 0, 7, place, 0, now_s, 0.0, 10)
        now_s += 0.1
        if place % 4 == 3:
            loads.waited(7, 0.3)
            now_s += 0.35
    (rank,) = load_of(loads).ranks
    assert rank.waiting_s == pytest.approx(0.3)
    assert rank.preprocess_s == pytest.approx(0.4)
    assert rank.handing_s + rank.idle_s == pytest.approx(0.05)
    assert rank.step_s == pytest.approx(0.75)


def test_without_the_beginning_of_an_epoch_nobody_knows_what_is_idling() -> None:
    loads = begun(Known(2))
    for place in range(2, 60):
        read(loads, 0, 7, place, 0, place * 0.01 + place // 2, 0.0, 10)
    (rank,) = load_of(loads).ranks
    assert (rank.limit, rank.idle_s) == (StepLimit.UNKNOWN, 0.0)


def test_of_two_ranks_the_slower_one_is_the_straggler_and_steps_are_uneven() -> None:
    """The fast one is idle, but not because of training: it waits for the slow one."""
    slow, fast = TimedLoader(BATCH, 2, 2, open_s=0.02), TimedLoader(BATCH, 2, 2, open_s=0.01)
    load = told(fast, slow)
    assert load.straggler == 1
    assert load.imbalance.apart == pytest.approx(0.5, abs=0.07)
    assert load.imbalance.steps > 0.6
    assert load.steps > 10
    assert [of.limit for of in load.ranks] == [StepLimit.OTHER_RANKS, StepLimit.PREPROCESSING]


def test_a_job_that_reads_no_more_has_no_straggler() -> None:
    """Its script was killed. Steps of 160 ms took 16 s in all."""
    loads = seen(TimedLoader(BATCH, 2, 2, open_s=0.02), TimedLoader(BATCH, 2, 2, open_s=0.01))
    for now_s, straggler in ((20.0, 0), (200.0, -1)):
        load = load_of(loads, now_s)
        assert (load.straggler, load.reads_now) == (straggler, straggler == 0)
        assert load.ranks[0].limit is StepLimit.PREPROCESSING


def test_a_job_of_long_steps_reads_on_between_them() -> None:
    loads = seen(*[TimedLoader(BATCH, 1, 2, open_s=1.0 + rank, step_s=20.0) for rank in range(2)], samples=400)
    assert load_of(loads, 1200.0).reads_now


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_one_pause_within_an_epoch_changes_nothing(workers: int) -> None:
    """An evaluation for a hundred steps' time, some batches ago."""

    def ranks(pause_s: float) -> JobLoad:
        usual = TimedLoader(BATCH, workers, 2, pause_s=lambda batch: pause_s if batch == 70 else 0.0)
        return told(replace(usual, open_s=0.01), replace(usual, open_s=0.02), samples=100 * BATCH)

    load, without = ranks(20.0), ranks(0.0)
    assert load.straggler == without.straggler == 1
    assert [of.limit for of in load.ranks] == [of.limit for of in without.ranks]
    for of, usual in zip(load.ranks, without.ranks, strict=True):
        assert of.step_s == pytest.approx(usual.step_s, rel=0.1)
        assert of.limit in (StepLimit.OTHER_RANKS, StepLimit.PREPROCESSING)


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_that_are_long_again_and_again_are_no_pauses(workers: int) -> None:
    """The loop does something else for ten steps' time behind each tenth batch."""
    loader = TimedLoader(
        BATCH, workers, 2, open_s=0.001, step_s=0.05, pause_s=lambda batch: 0.5 if batch % 10 == 9 else 0.0
    )
    (rank,) = told(loader).ranks
    assert rank.step_s == pytest.approx(0.1, rel=0.15)
    assert rank.limit is StepLimit.TRAINING


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ranks_that_wait_for_one_another_by_turns_are_limited_by_their_loading(workers: int) -> None:
    """Files are larger now for this rank, now for that one: each is idle for much of the time, and none by training."""

    def ranks(step_s: float) -> list[TimedLoader]:
        return [
            TimedLoader(
                BATCH, workers, 2, open_s=0.01 * workers, step_s=step_s,
                times=lambda batch, rank=rank: 3.0 if batch // 10 % 4 == rank else 1.0,
            )
            for rank in range(4)
        ]  # fmt: skip

    load = told(*ranks(0.001), epochs=3)
    assert any(of.surely_idles and of.idle_s > 0.2 * of.whole_s for of in load.ranks)
    assert limits(load) == {StepLimit.PREPROCESSING}
    assert limits(told(*ranks(0.5), epochs=3)) == {StepLimit.TRAINING}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "varied",
    [
        {"open_s": 0.005, "collate_s": 0.05, "collate_jitter": 1.0},
        {"open_s": 0.02, "exponential": True},
    ],
)
def test_times_that_vary_are_not_taken_for_idling(workers: int, varied: dict[str, Any]) -> None:
    """Putting a batch together takes 0 to 100 ms, or a sample 20 ms on average by an exponential distribution."""

    def drawn(step_s: float) -> list[StepLimit]:
        loader = TimedLoader(BATCH, workers, 2, step_s=step_s, **varied)
        return [told(loader, epochs=2, seed=seed).ranks[0].limit for seed in range(20)]

    loads_s = (BATCH * varied["open_s"] + varied.get("collate_s", 0.0)) / workers
    assert drawn(0.002).count(StepLimit.PREPROCESSING) >= 19
    assert drawn(2 * loads_s).count(StepLimit.TRAINING) == 20


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("collate_jitter", [0.1, 1.0])
def test_a_loader_that_is_handed_one_batch_at_a_time_is_read_rightly(workers: int, collate_jitter: float) -> None:
    """Behind the first batch of a worker that is not the first one there is no other at hand."""

    def one(step_s: float) -> JobLoad:
        loader = TimedLoader(BATCH, workers, 1, 0.01, step_s, collate_s=0.02, collate_jitter=collate_jitter)
        return told(loader, epochs=4, known=Known(hands_ahead=False))

    assert limits(one(0.001)) == {StepLimit.PREPROCESSING}
    (rank,) = one(0.3).ranks
    assert rank.limit is StepLimit.TRAINING
    assert rank.handing_s == pytest.approx(0.02, abs=0.012)


@pytest.mark.parametrize("step_s", [0.0, 0.3])
def test_ranks_that_are_alike_are_even_and_none_is_a_straggler(step_s: float) -> None:
    load = told(*[TimedLoader(BATCH, 1, 2, open_s=0.01, step_s=step_s, jitter=0.02)] * 3)
    assert load.straggler == -1
    assert load.imbalance.steps < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_chance_makes_no_straggler(seed: int) -> None:
    assert told(*[TimedLoader(BATCH, 2, 2, open_s=0.01, exponential=True)] * 2, seed=seed).straggler == -1


def test_chance_makes_no_straggler_by_the_bytes_of_what_comes() -> None:
    """Files differ in size, and what they take has nothing to do with it; nor have batches larger than any before."""
    named = 0
    for seed in range(12):
        rng = random.Random(seed)
        sizes = [[int(rng.lognormvariate(11.5, 0.6)) for _ in range(SAMPLES)] for _ in range(2)]
        ranks = [TimedLoader(BATCH, 2, 2, open_s=0.01, exponential=True)] * 2
        loads = seen(*ranks, seed=seed, size_bytes=lambda rank, place, of=sizes: of[rank][place])
        for start in range(0, SAMPLES, 10 * BATCH):
            coming = [sum(of[start : start + BATCH]) for of in sizes]
            named += load_of(loads, coming=lambda rank, of=coming: of[rank]).straggler >= 0
        few, many = int(1e4), int(1e7)
        for coming in ([few, many], [many, few], [many, many]):
            named += load_of(loads, coming=lambda rank, of=coming: of[rank]).straggler >= 0
    assert named <= 1


def test_a_rank_that_becomes_slow_is_named_within_some_steps() -> None:
    def times(slow: range) -> TimedLoader:
        return TimedLoader(BATCH, 2, 2, open_s=0.01, times=lambda batch: 2.0 if batch in slow else 1.0)

    ranks = [times(range(40)), times(range(40, 60))]
    assert told(*ranks, samples=40 * BATCH).straggler == 0
    assert told(*ranks, samples=56 * BATCH).straggler == 1


def test_the_training_process_that_reads_by_itself_is_not_taken_to_hand_batches_over() -> None:
    """What follows a batch is training: the rest of a step is there for loading."""
    load = training([0.1, 0.1], step_s=0.4)
    assert load.straggler == -1
    assert load.imbalance.steps < 0.3
    for rank in load.ranks:
        assert rank.limit is StepLimit.PREPROCESSING
        assert rank.work_s == rank.load_s == pytest.approx(0.1, rel=0.1)
        assert rank.handing_s == pytest.approx(0.4, rel=0.05)
    assert load.pace == {2: pytest.approx(0.1 / 100 / BATCH, rel=0.1)}
    assert limits(training([0.01], step_s=0.4)) == {StepLimit.TRAINING}


def test_of_two_training_processes_that_read_by_themselves_the_slower_one_is_the_straggler() -> None:
    load = training([0.1, 0.25], step_s=0.4)
    assert load.straggler == 1
    assert load.imbalance == (pytest.approx(0.6, abs=0.05), 1.0)
    assert [of.limit for of in load.ranks] == [StepLimit.OTHER_RANKS, StepLimit.PREPROCESSING]
    assert load.ranks[0].idle_s == pytest.approx(0.15, abs=0.02)
    assert load.ranks[0].handing_s == pytest.approx(0.4, abs=0.02), "the time of training is that of the slower one"


def test_the_next_step_is_predicted_by_its_bytes() -> None:
    """A file of n bytes takes n ms: a batch of files twice as large takes twice as long.

    A batch larger than all that were seen counts as the largest of these.
    """
    loads, now_s = begun(Known(4)), 0.0
    for place in range(4 * 40):
        size_bytes = 10 + place // 4 % 20
        read(loads, 0, 7, place, 0, now_s, 0.0, size_bytes)
        now_s += size_bytes / 1000
    for coming, taken_as in ((40, 40), (100, 100), (200, 116), (4, 40)):
        (rank,) = load_of(loads, coming=lambda rank, coming=coming: coming).ranks
        assert rank.next_s == pytest.approx(taken_as / 1000, rel=0.1)


def test_two_lines_are_told_where_large_files_take_longer_for_each_byte() -> None:
    """A file takes 1 ms a byte up to 20 bytes, and 5 ms for each byte beyond."""
    loads, now_s = begun(Known(4)), 0.0
    for place in range(4 * 65):
        size_bytes = 10 + place // 4 % 20
        read(loads, 0, 7, place, 0, now_s, 0.0, size_bytes)
        now_s += (size_bytes + 4 * max(0, size_bytes - 20)) / 1000
    for size_bytes, taken_s in ((12, 0.012), (20, 0.02), (28, 0.06)):
        (rank,) = load_of(loads, coming=lambda rank, coming=4 * size_bytes: coming).ranks
        assert rank.next_s == pytest.approx(4 * taken_s, rel=0.1)


def test_a_process_whose_threads_jump_between_batches_tells_nothing() -> None:
    loads, rng = begun(), random.Random(5)
    for start in range(0, 400, 40):
        for place in rng.sample(range(start, start + 40), 40):
            read(loads, 0, 7, place, 0, place * 0.01, 0.0, 10)
    assert not loads.ranks


def test_memory_is_bounded() -> None:
    """Neither more processes nor more batches are held than the bounds say, however many there are."""
    loads, held = begun(Known(2)), []
    for process in range(3 * rank_loads.MOST_PROCESSES):
        for place in range(4):
            read(loads, 0, process, place, 0, place * 0.01, 0.0, 10)
        if process in (rank_loads.MOST_PROCESSES + MOST_KEPT_BATCHES, 3 * rank_loads.MOST_PROCESSES - 1):
            held.append(held_bytes(loads))
    assert held[1] <= 1.2 * held[0]
    loads = begun(Known(2))
    for place in range(40 * KEPT_BATCHES):
        read(loads, 0, 7, place, 0, place * 0.01, 0.0, 10)
        if place in (4 * KEPT_BATCHES, 40 * KEPT_BATCHES - 1):
            held.append(held_bytes(loads))
    assert held[3] <= 1.05 * held[2]


def loaded(loads: RankLoads, loader: TimedLoader, samples: int = 400) -> JobLoad:
    """What is told when a job that has begun has read an epoch."""
    for at_s, process, place in loader.opens(samples, random.Random(1)):
        read(loads, 0, process, place, 0, at_s, 0.0, 100)
    return load_of(loads)


def test_a_job_that_is_begun_anew_with_other_workers_adds_to_what_was_seen_until_it_is_unregistered() -> None:
    loads = None
    for workers in (1, 2, 4):
        loads = begun(before=loads)
        # They crowd one another: all that each does for a batch takes as many times longer.
        loader = TimedLoader(BATCH, workers, 2, open_s=0.01 * workers, collate_s=0.02 * workers)
        pace = loaded(loads, loader).pace
    assert pace == {workers: pytest.approx(workers * 0.1 / 100 / BATCH, rel=0.1) for workers in (1, 2, 4)}
    assert set(loaded(begun(), TimedLoader(BATCH, 3, 2)).pace) == {3}


def test_workers_are_counted_though_they_are_many() -> None:
    workers = 100
    load = loaded(begun(), TimedLoader(BATCH, workers, 2, open_s=0.01), samples=BATCH * workers * 5)
    assert load.ranks[0].workers == workers
    assert load.ranks[0].step_s == pytest.approx(0.08 / workers, rel=0.1)
    assert set(load.pace) == {workers}


def test_before_all_workers_need_have_been_seen_no_pace_is_told() -> None:
    loads = begun()
    assert not loaded(loads, TimedLoader(BATCH, 16, 2), samples=32 * BATCH).pace


def test_batches_that_prove_to_be_others_than_was_thought_are_noted_anew() -> None:
    known = Known(batch_files=1)
    loads = begun(known)
    for place in range(8):
        read(loads, 0, 7, place, 0, place * 0.01, 0.0, 10)
    assert not loads.ranks, "a batch of one file has no gaps"
    known.batch_files = 4
    for place in range(8, 50):
        read(loads, 0, 7, place, 0, place * 0.01, 0.0, 10)
    (rank,) = load_of(loads).ranks
    assert (rank.batches, rank.batch_bytes) == (10, 40)
    assert rank.preprocess_s == pytest.approx(0.04)
