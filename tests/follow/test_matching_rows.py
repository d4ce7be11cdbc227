"""Matching where a sample is several files, some samples of fewer than others: batches count samples."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import RankStream

N, WIDTH, NOTHING = 240, 3, -2


def rows_of(ragged: bool) -> np.ndarray:
    """Entries of each sample's files; of a ragged data set the last are missing here and there."""
    rows = np.arange(1, N * WIDTH + 1, dtype=np.int64).reshape(N, WIDTH)
    if ragged:
        rows[np.random.default_rng(1).random(N) < 0.4, 2] = NOTHING
    return rows


def opens(stream: np.ndarray, batch: int, workers: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """(process, entry): worker w reads batches w, w + workers, ..., each at its own pace within two batches."""
    batches = [stream[at : at + batch].reshape(-1) for at in range(0, len(stream), batch)]
    left = {w: [int(e) for b in batches[w::workers] for e in b if e >= 0] for w in range(workers)}
    sizes = {w: max(1, len(files)) for w, files in left.items()}
    while any(left.values()):
        furthest = max(len(files) / sizes[w] for w, files in left.items())
        worker = rng.choice([w for w, files in left.items() if files and len(files) / sizes[w] > furthest - 0.1])
        yield 1000 + worker, left[worker].pop(0)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("batch", "workers"), [(8, 1), (8, 3), (5, 2)])
def test_samples_of_several_files_agree(batch: int, workers: int, ragged: bool) -> None:
    rows = rows_of(ragged)
    streams = [rows[np.random.default_rng(epoch).permutation(N)] for epoch in range(3)]
    epochs = {
        epoch: EpochIndex(epoch, epoch * stream.size, [stream.reshape(-1)], N * WIDTH + 1)
        for epoch, stream in enumerate(streams)
    }
    matcher = StreamMatcher(RankStream(N * WIDTH, batch * WIDTH), [0], epochs)
    rng = random.Random(7)
    for stream in streams:
        for process, entry in opens(stream, batch, workers, rng):
            matcher.observe(entry, process, 1)
    matcher.relearn()
    assert matcher.score.observed == 3 * int((rows >= 0).sum())
    assert matcher.score.agreed >= 0.999 * matcher.score.observed, matcher.shape
