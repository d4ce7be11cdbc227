"""A process whose threads overtake each other far is followed where it is, and not an epoch further on."""

from __future__ import annotations

import numpy as np
import pytest
from loaders import streams_of

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import RankStream

EPOCHS = 5


def late(stream: np.ndarray, share: float, most: int, rng: np.random.Generator) -> np.ndarray:
    """The places of a stream in the order in which they are opened: some come up to `most` places late."""
    lateness = np.where(rng.random(len(stream)) < share, rng.integers(1, most + 1, len(stream)), 0)
    return np.argsort(np.arange(len(stream)) + lateness, kind="stable")


@pytest.mark.parametrize(("files", "ranks"), [(904, 4), (1000, 1), (3000, 2)])
@pytest.mark.parametrize(("share", "most"), [(0.1, 8), (0.2, 15)])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_believed_to_be_further_than_he_is(
    files: int, ranks: int, share: float, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    streams = [streams_of(seed, epoch, files, ranks)[0] for epoch in range(EPOCHS)]
    length = len(streams[0])
    epochs = {epoch: EpochIndex(epoch, epoch * length, [of], files) for epoch, of in enumerate(streams)}
    matcher = StreamMatcher(RankStream(length, 16), [0], epochs)
    for epoch, stream in enumerate(streams):
        furthest = 0
        for place in late(stream, share, most, rng).tolist():
            furthest = max(furthest, place + 1)
            matcher.observe(int(stream[place]), process=100, parent=1)
            assert matcher.ranks[0].frontier <= epoch * length + furthest
    assert matcher.score.agreed >= 0.999 * matcher.score.observed
    assert matcher.ranks[0].frontier == EPOCHS * length
