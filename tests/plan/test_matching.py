"""Matching observed opens to predicted positions: right order, wrong order, workers, skips, repeats, restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.plan.matching import EpochIndex, StreamMatcher


def streams_of(seed: int, epoch: int, n: int, ranks: int) -> list[np.ndarray]:
    """A shuffled epoch dealt to ranks like DistributedSampler, padded cyclically."""
    order = np.random.default_rng((seed, epoch)).permutation(n)
    per_rank = -(-n // ranks)
    order = np.resize(order, per_rank * ranks)
    return [order[rank::ranks].astype(np.int64) for rank in range(ranks)]


def matcher_for(seed: int, n: int, ranks: int, batch: int, epochs: int) -> StreamMatcher:
    """A matcher that has all epochs loaded."""
    length = len(streams_of(seed, 0, n, ranks)[0])
    matcher = StreamMatcher(ranks, batch, 0, length)
    for epoch in range(epochs):
        matcher.epochs[epoch] = EpochIndex(epoch, epoch * length, streams_of(seed, epoch, n, ranks), n)
    return matcher


def dataloader_opens(
    stream: np.ndarray, batch: int, workers: int, rng: random.Random, pid0: int
) -> Iterator[tuple[int, int]]:
    """Opens of one rank's DataLoader: worker w reads batches w, w + W, ... at its own pace, two batches in flight."""
    batches = [stream[i : i + batch].tolist() for i in range(0, len(stream), batch)]
    todo = [[(pid0 + w, e) for b in batches[w::workers] for e in b] for w in range(workers)]
    at = [0] * workers
    while any(at[w] < len(todo[w]) for w in range(workers)):
        done_batches = min((at[w] // batch) * workers + w for w in range(workers) if at[w] < len(todo[w]))
        ready = [
            w for w in range(workers)
            if at[w] < len(todo[w]) and (at[w] // batch) * workers + w < done_batches + 2 * workers
        ]  # fmt: skip
        w = rng.choice(ready)
        pid, entry = todo[w][at[w]]
        at[w] += 1
        yield entry, pid


def run_epochs(
    matcher: StreamMatcher, seed: int, n: int, ranks: int, batch: int, workers: int, epochs: int, rng: random.Random
) -> list[tuple[int, int]]:
    """Feed the opens of all ranks, interleaved, with new worker processes each epoch; returns (entry, position)."""
    seen = []
    for epoch in range(epochs):
        loaders = [
            dataloader_opens(stream, batch, workers, rng, 1000 * (epoch * ranks + rank + 1))
            for rank, stream in enumerate(streams_of(seed, epoch, n, ranks))
        ]
        while loaders:
            loader = rng.choice(loaders)
            try:
                entry, pid = next(loader)
            except StopIteration:
                loaders.remove(loader)
                continue
            match, _ = matcher.observe(entry, pid, pid // 1000 % ranks + 1)  # a rank's workers have one parent
            if match is not None:
                seen.append((entry, match.position))
    return seen


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99), n=st.integers(40, 600), ranks=st.integers(1, 4), batch=st.integers(1, 33),
    workers=st.integers(1, 5),
)  # fmt: skip
def test_a_right_prediction_agrees_and_every_rank_gets_to_its_end(
    seed: int, n: int, ranks: int, batch: int, workers: int
) -> None:
    matcher = matcher_for(seed, n, ranks, batch, 3)
    length = matcher.epochs[0].length
    run_epochs(matcher, seed, n, ranks, batch, workers, 3, random.Random(seed))
    assert matcher.agreed / matcher.observed >= (0.97 if n >= 100 else 0.9)  # few samples: more of them fit by chance
    assert all(length * 3 - matcher.lag <= progress.frontier <= length * 3 for progress in matcher.ranks)
    assert not matcher.drifting


def test_positions_are_those_of_the_stream() -> None:
    matcher = matcher_for(3, 500, 2, 16, 2)
    seen = run_epochs(matcher, 3, 500, 2, 16, 3, 2, random.Random(1))
    for entry, position in seen:
        epoch = position // 250
        assert entry in (int(s[position - epoch * 250]) for s in streams_of(3, epoch, 500, 2))
    assert len({(e, p) for e, p in seen}) == len(seen) == 1000


@pytest.mark.parametrize(("n", "batch", "workers"), [(400, 32, 2), (2000, 32, 4), (5000, 64, 4), (1000, 8, 2)])
def test_a_wrong_seed_is_noticed(n: int, batch: int, workers: int) -> None:
    matcher = matcher_for(1, n, 2, batch, 4)
    run_epochs(matcher, 2, n, 2, batch, workers, 2, random.Random(0))
    assert matcher.drifting
    assert (matcher.agreement or 0) < 0.5


def test_epochs_without_set_epoch_agree_in_the_first_and_drift_in_the_second() -> None:
    n, batch = 2000, 32
    matcher = matcher_for(1, n, 1, batch, 4)
    rng = random.Random(0)
    for epoch in range(2):
        for entry, pid in dataloader_opens(streams_of(1, 0, n, 1)[0], batch, 2, rng, 1000 * (epoch + 1)):
            matcher.observe(entry, pid)
        assert matcher.drifting == (epoch == 1)


def test_a_repeated_open_shifts_and_counts_nothing() -> None:
    matcher = matcher_for(5, 300, 1, 10, 2)
    stream = streams_of(5, 0, 300, 1)[0].tolist()
    for entry in stream[:100]:
        matcher.observe(entry, 7)
        again, expired = matcher.observe(entry, 7)
        assert again is None
        assert expired == []
    assert matcher.observed == 100
    assert matcher.agreed == 100
    assert matcher.ranks[0].frontier == 100


def test_skipped_samples_are_given_up_behind_the_lag() -> None:
    n = 4000
    matcher = matcher_for(5, n, 1, 2, 1)
    stream = streams_of(5, 0, n, 1)[0].tolist()
    skipped, expired = {10, 11, 500}, set()
    for position, entry in enumerate(stream):
        if position not in skipped:
            expired |= {match.position for match in matcher.observe(entry, 7)[1]}
    assert expired == skipped
    assert matcher.agreed / matcher.observed > 0.99


def test_threads_of_one_loader_agree() -> None:
    """Each thread is a reader of its own to the kernel, and takes the next sample whenever it is free."""
    matcher = matcher_for(9, 3000, 1, 64, 1)
    rng = random.Random(4)
    window: list[int] = []
    for entry in streams_of(9, 0, 3000, 1)[0].tolist():
        window.append(entry)
        if len(window) == 8:
            matcher.observe(window.pop(rng.randrange(8)), 100 + rng.randrange(8))
    assert matcher.agreed / matcher.observed > 0.95


def test_samples_read_twice_an_epoch_have_two_positions() -> None:
    index = EpochIndex(0, 0, [np.array([4, 2, 4]), np.array([1, -1, 4])], 6)
    assert sorted(index.codes(4)) == [0, 2, 5]
    assert index.codes(2) == [1]
    assert index.codes(0) == []
