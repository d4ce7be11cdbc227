"""Which part of a data set the reads may be of: one of a split, all but a fold, all but what a script has in memory.

Pure. In: first reads as dataset indices. Out: `SplitPart`s, each with the reads as indices of the part, the most usual
first. Called by `mlfs.explain.search`, which looks for the order in which each part is read.

A split is a shuffled list that is cut, and all reads of one job lie in one piece of it, or outside of one. The fewer
samples a piece has, the sooner that is no chance: of twenty reads one in a hundred thousand lies in the same half by
chance, and one in ten in the same nine tenths. So a part is a guess, and only the order of the reads within it is
evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Final, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.fields import Fields
from mlfs.explain.question import DataSet
from mlfs.explain.usual import Seed
from mlfs.orders.order import Indices
from mlfs.orders.split import shuffled

# Those that shuffle the list, the shares of what is trained with, and numbers of folds, with their bits.
_SHUFFLED_BY: Final = {"torch": 0.0, "numpy": 0.5, "python": 2.0, "default_rng": 2.0}
_SHARES: Final = {0.8: 0.0, 0.9: 0.5, 0.7: 1.0, 0.75: 1.0, 0.95: 1.0, 0.5: 2.0, 0.6: 2.0, 0.85: 2.0}
_FOLDS: Final = {5: 0.5, 10: 1.5, 4: 2.5, 3: 2.5}
_CACHED: Final = (0.5, 0.25, 0.75, *(tenths / 10 for tenths in range(1, 10)))
# Some round a share up and others down, what is left is rounded as well, and 1 - 0.8 is a little less than 0.2: so of
# 1,200 samples 959, 960 or 961 are eight tenths.
_BITS_OF_ROUNDING: Final = 3.0
MOST_BITS: Final = 7.0
"""So unusual parts are tried, with the seed of the split among their bits."""

# A part is no guess worth a look where all reads lie in it by chance so often. Nine tenths of ten reads pass.
_MOST_BY_CHANCE: Final = 0.4


class SplitPart(NamedTuple):
    """A part of a data set.

    Attributes:
        bits: how unusual it is. seed: of the split; None where nothing was shuffled.
        fields: of a job that reads the part, but for `cached`. data_set: the first reads, as indices of the part.
        cached: so many first samples of the part may be drawn, and not read.
    """

    bits: float
    seed: int | None
    fields: Fields
    data_set: DataSet
    cached: int = 0


def parts_of(data_set: DataSet, seeds: Sequence[Seed], most: float = MOST_BITS) -> list[SplitPart]:
    """The parts that all reads may be of, if one of these seeds has shuffled the data set, up to so many bits."""
    wanted = np.unique(np.fromiter(data_set.read, dtype=np.int64))
    found = [*_cached(data_set, wanted), *_split(data_set, wanted, seeds, most)] if len(wanted) else []
    return sorted(found, key=lambda part: part.bits)


def _cached(data_set: DataSet, wanted: Indices) -> Iterator[SplitPart]:
    """All but the first samples, which a script has read into memory before: MONAI's CacheDataset."""
    for rate in _CACHED:
        cached = floor(data_set.n * rate)
        if 0 < cached <= wanted[0] and _is_guess(data_set.n - cached, data_set.n, wanted):
            yield SplitPart(0.0, None, {}, data_set, cached)


def _split(data_set: DataSet, wanted: Indices, seeds: Sequence[Seed], most: float) -> Iterator[SplitPart]:
    n = data_set.n
    place = np.empty(n, dtype=np.int64)
    for (of_seed, seed), (by, of_library) in ((seed, by) for seed in seeds for by in _SHUFFLED_BY.items()):
        bits = of_seed + of_library
        if bits > most:
            continue
        try:
            place[shuffled(n, seed, by)] = np.arange(n)
        except JobError:
            continue  # a seed that the generator does not take
        said: Fields = {"split_seed": seed, "split_by": by}
        at = np.sort(place[wanted])
        for more, first, end in _pieces(n, int(at[0]), int(at[-1])):
            if bits + more <= most and _is_guess(end - first, n, wanted):
                lengths = [first, n - first] if first else [end, n - end]
                fields = {"split": lengths, "part": int(first > 0)} | said
                yield SplitPart(bits + more, seed, fields, data_set.numbered(place - first, end - first))
        for folds, more in _FOLDS.items() if by == "numpy" else ():
            each, longer = divmod(n, folds)
            lengths = [each + (fold < longer) for fold in range(folds)]
            ends = np.cumsum(lengths)
            seen = set(np.searchsorted(ends, at, side="right").tolist())
            for fold in set(range(folds)) - seen if bits + more <= most else ():
                if _is_guess(n - lengths[fold], n, wanted):
                    outside = (place < ends[fold] - lengths[fold]) | (place >= ends[fold])
                    fields = {"split": lengths, "without_part": fold, "split_order": "sorted"} | said
                    inside = data_set.numbered(np.cumsum(outside) - 1, int(outside.sum()))
                    yield SplitPart(bits + more, seed, fields, inside)


def _is_guess(length: int, n: int, wanted: Indices) -> bool:
    return float((length / n) ** len(wanted)) <= _MOST_BY_CHANCE


def _pieces(n: int, lowest: int, highest: int) -> Iterator[tuple[float, int, int]]:
    """The pieces of the shuffled list, at its start or its end, that hold all places from the lowest to the highest,
    with their bits. The rest beside the part that is trained with is a part as well: it is read as it stands."""
    for share, bits in _SHARES.items():
        size = floor(share * n)
        usual = {size, round(share * n), n - ceil((1 - share) * n)}
        for length in usual | {size - 1, size + 1}:
            more = bits if length in usual else bits + _BITS_OF_ROUNDING
            for piece in {length, n - length}:
                if highest < piece:
                    yield more, 0, piece
                if lowest >= n - piece:
                    yield more, n - piece, n
