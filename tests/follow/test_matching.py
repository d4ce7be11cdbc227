"""Matching observed opens to predicted positions: right order, wrong order, workers, skips, repeats, restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from loaders import Loader, matcher_for, run_job, streams_of
from support.drawn import cases

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import LearnedLoader, RankStream, Shape


@pytest.mark.parametrize("case", range(cases(20)))
def test_a_right_prediction_agrees_with_every_open(case: int) -> None:
    """Neither batch size, nor workers, nor prefetch factor are told; each rank goes at its own pace."""
    rng = random.Random(case)
    ranks, of_rank, batch, workers = rng.randint(1, 4), rng.randint(12, 150), rng.randint(1, 33), rng.randint(0, 5)
    n = of_rank * ranks - rng.randint(0, ranks - 1)
    matcher = matcher_for(case, n, ranks, rng.choice([1, 7, 32, batch]), 4)
    prefetch, persistent = rng.randint(1, 4), rng.random() < 0.3
    loaders = [Loader(batch, workers, 1000 * (rank + 1), prefetch, persistent) for rank in range(ranks)]
    run_job(matcher, loaders, [streams_of(case, epoch, n, ranks) for epoch in range(3)], rng)
    assert matcher.score.agreed == matcher.score.observed
    assert all(3 * of_rank - matcher.lag <= progress.frontier <= 3 * of_rank for progress in matcher.ranks)
    assert {cell.epoch for cell in matcher.score.cells.values() if cell.agreed} == {0, 1, 2}


@pytest.mark.parametrize(("batch", "workers", "prefetch"), [(16, 4, 2), (7, 3, 1), (1, 5, 2), (32, 2, 4), (64, 8, 2)])
def test_the_loaders_shape_follows_from_the_opens(batch: int, workers: int, prefetch: int) -> None:
    n = 4 * batch * workers + 3
    matcher = matcher_for(1, n, 1, 1, 2)
    run_job(matcher, [Loader(batch, workers, 1000, prefetch)], [streams_of(1, 0, n, 1)], random.Random(2))
    assert matcher.shape == Shape(batch, workers, 1)
    assert matcher.score.agreed == matcher.score.observed == n


def test_a_matcher_like_another_predicts_the_same_loader_from_its_first_read() -> None:
    n, batch, workers = 600, 16, 3
    epochs = {0: EpochIndex(0, 0, streams_of(1, 0, n, 1), n)}
    learned = StreamMatcher(RankStream(n), [0], epochs)
    loader = Loader(batch, workers, 1000)
    opens = list(loader.epoch(0, streams_of(1, 0, n, 1)[0], random.Random(2)))
    for process, entry in opens:
        learned.observe(entry, process)
    like = StreamMatcher(RankStream(n), [0], epochs, like=LearnedLoader(learned.shape, learned.lag))
    assert (like.shape, like.lag) == (learned.shape, learned.lag) == (Shape(batch, workers), learned.lag)
    assert like.score.observed == 0
    for number, (process, entry) in enumerate(opens):
        like.observe(entry, process)
        assert like.score.agreed == number + 1  # it learns nothing: each read is predicted at once


def test_positions_are_those_of_the_stream() -> None:
    matcher = matcher_for(3, 500, 2, 16, 2)
    streams = [streams_of(3, epoch, 500, 2) for epoch in range(2)]
    seen = run_job(matcher, [Loader(16, 3, 1000), Loader(16, 3, 2000)], streams, random.Random(1))
    for entry, position in seen:
        epoch = position // 250
        assert entry in (int(s[position - epoch * 250]) for s in streams[epoch])
    assert len({p for _, p in seen}) == 500


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("n", "batch"), [(100, 7), (400, 32), (2000, 32), (1000, 1)])
def test_a_wrong_seed_is_noticed(n: int, batch: int, workers: int) -> None:
    matcher = matcher_for(1, n, 2, batch, 4)
    streams = [streams_of(2, epoch, n, 2) for epoch in range(2)]
    run_job(matcher, [Loader(batch, workers, 1000), Loader(batch, workers, 2000)], streams, random.Random(0))
    assert matcher.score.drifting
    assert matcher.score.agreed < 0.4 * matcher.score.observed


def test_epochs_without_set_epoch_agree_in_the_first_and_drift_in_the_second() -> None:
    matcher = matcher_for(1, 2000, 1, 32, 4)
    loader, rng = Loader(32, 2, 1000), random.Random(0)
    for epoch in range(2):
        for process, entry in loader.epoch(epoch, streams_of(1, 0, 2000, 1)[0], rng):
            matcher.observe(entry, process)
        assert matcher.score.drifting == (epoch == 1)


def test_a_loop_that_is_left_early_goes_on_with_the_next_epoch() -> None:
    for workers in (0, 3):
        matcher = matcher_for(4, 3000, 2, 8, 5)
        loaders = [Loader(8, workers, 1000 * (rank + 1), stop_after=20) for rank in range(2)]
        streams = [streams_of(4, epoch, 3000, 2) for epoch in range(4)]
        run_job(matcher, loaders, streams, random.Random(4))
        assert matcher.score.agreed == matcher.score.observed
        assert [progress.frontier for progress in matcher.ranks] == [3 * 1500 + 160] * 2


@pytest.mark.parametrize("workers", [0, 4])
def test_a_repeated_open_shifts_and_counts_nothing(workers: int) -> None:
    matcher = matcher_for(5, 300, 1, 10, 2)
    for process, entry in Loader(10, workers, 1000).epoch(0, streams_of(5, 0, 300, 1)[0], random.Random(3)):
        matcher.observe(entry, process)
        again, given_up = matcher.observe(entry, process)
        assert again is None
        assert not given_up
    matcher.relearn()
    assert matcher.score.observed == matcher.score.agreed == 300
    assert matcher.ranks[0].frontier == 300


@pytest.mark.parametrize("workers", [0, 4])
def test_skipped_samples_are_given_up_behind_the_lag(workers: int) -> None:
    n = 4000
    matcher = matcher_for(5, n, 1, 2, 1)
    stream = streams_of(5, 0, n, 1)[0]
    skipped = {int(stream[position]) for position in (10, 11, 500)}
    given: set[int] = set()
    for process, entry in Loader(2, workers, 1000).epoch(0, stream, random.Random(8)):
        if entry not in skipped:
            for _, (low, high) in matcher.observe(entry, process)[1]:
                given |= set(range(low, high))
    assert {10, 11, 500} <= given
    assert matcher.score.agreed >= matcher.score.observed - 4
    assert matcher.ranks[0].floor > 500


def threads(stream: np.ndarray, count: int, rng: random.Random) -> Iterator[int]:
    """Each thread takes the next sample whenever it is free."""
    at_hand: list[int] = []
    for entry in stream.tolist():
        at_hand.append(entry)
        if len(at_hand) == count:
            yield at_hand.pop(rng.randrange(count))
    yield from at_hand


@pytest.mark.parametrize("count", [2, 8, 16])
def test_threads_of_one_process_agree(count: int) -> None:
    rng = random.Random(count)
    matcher = matcher_for(9, 3000, 1, 64, 3)
    for epoch in range(3):
        for entry in threads(streams_of(9, epoch, 3000, 1)[0], count, rng):
            matcher.observe(entry, 77)
    assert matcher.score.agreed >= 0.99 * matcher.score.observed
    wrong = matcher_for(9, 3000, 1, 64, 3)
    for entry in threads(streams_of(10, 0, 3000, 1)[0], count, rng):
        wrong.observe(entry, 77)
    assert wrong.score.agreed < 0.4 * wrong.score.observed


def test_batches_that_go_to_whoever_is_free_agree() -> None:
    for batch, workers in ((8, 3), (16, 2), (4, 5)):
        matcher = matcher_for(2, 2000, 1, 1, 3)
        streams = [streams_of(2, epoch, 2000, 1) for epoch in range(2)]
        run_job(matcher, [Loader(batch, workers, 1000, in_order=False)], streams, random.Random(batch))
        assert matcher.score.agreed >= 0.98 * matcher.score.observed


def test_several_files_a_sample_are_batches_of_files() -> None:
    n, files, batch = 300, 2, 8
    order = streams_of(6, 0, n, 1)[0]
    stream = (order[:, None] * files + np.arange(files)).reshape(-1)
    epochs = {0: EpochIndex(0, 0, [stream], n * files)}
    matcher = StreamMatcher(RankStream(len(stream), batch * files), [0], epochs)
    for process, entry in Loader(batch * files, 3, 1000).epoch(0, stream, random.Random(6)):
        matcher.observe(entry, process)
    assert matcher.score.agreed == matcher.score.observed == n * files


def test_samples_read_twice_an_epoch_have_two_positions() -> None:
    index = EpochIndex(0, 0, [np.array([4, 2, 4]), np.array([1, -1, 4])], 6)
    assert sorted(index.codes(4)) == [0, 2, 5]
    assert index.codes(2) == [1]
    assert index.codes(0) == []


@pytest.mark.parametrize("before", [0, 1, 2100])
def test_opens_of_another_job_are_taken_back(before: int) -> None:
    n = 4000
    matcher = matcher_for(1, n, 1, 8, 2)
    own, other = streams_of(1, 0, n, 1)[0].tolist(), streams_of(2, 0, n, 1)[0].tolist()
    for entry in own[:before]:
        matcher.observe(entry, 7)
    assert matcher.follows(7) == (before >= 8)
    for entry in other[:8]:
        matcher.observe(entry, 9)
    assert not matcher.follows(9)
    matcher.disown(9)
    assert matcher.score.observed == matcher.score.agreed
    assert sum(cell.observed for cell in matcher.score.cells.values()) == matcher.score.observed
    assert all(seen.agrees for seen in matcher.score.history)
    for entry in own[before:]:
        matcher.observe(entry, 7)
    assert matcher.score.observed == matcher.score.agreed
    assert matcher.ranks[0].floor == n


@pytest.mark.parametrize("case", range(6))
def test_a_thread_that_is_late_now_and_then_costs_few_predictions(case: int) -> None:
    """Grain on a busy machine: two threads change places at first, and later one is now and then four turns late."""
    n, epochs = 1600, 3
    rng = random.Random(case)
    matcher = matcher_for(case, n, 1, 8, epochs)
    for epoch in range(epochs):
        stream = streams_of(case, epoch, n, 1)[0].tolist()
        late = [1.5 if at == 3 else 4.5 * (rng.random() < 1 / 400) for at in range(n)]
        for _, worker, entry in sorted((at // 2 + late[at], at % 2, entry) for at, entry in enumerate(stream)):
            matcher.observe(entry, 70 + worker, 7)
    assert matcher.score.observed == epochs * n
    assert matcher.score.agreed >= 0.999 * matcher.score.observed


def test_a_stranger_who_reads_now_and_then_widens_nothing() -> None:
    n = 1600
    matcher = matcher_for(1, n, 1, 8, 1)
    own, other = streams_of(1, 0, n, 1)[0].tolist(), streams_of(2, 0, n, 1)[0].tolist()
    for at, entry in enumerate(own):
        matcher.observe(entry, 70 + at % 2, 7)
        if at % 40 == 39:
            matcher.observe(other[at], 99, 9)
    assert matcher.shape == Shape(1, 2, 1)
    assert matcher.score.observed - matcher.score.agreed >= 0.9 * n / 40
