"""Finds the part of a data set that is read, as scripts split it to train with one part and to validate with others.

Pure. In: first reads as dataset indices. Out: `SplitPart`s, each with the reads as indices of the part. Called by
`mlfs.explain.search`, which looks for the order in which each part is read.

A split is a shuffled list that is cut, and all reads of one job lie in one piece of it. The fewer samples a piece has,
the sooner that is no chance: of twenty reads one in a hundred thousand lies in the same half by chance, and one in ten
in the same nine tenths. So a part is a guess, and only the order of the reads within it is evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from typing import Final, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.fields import Fields
from mlfs.explain.question import DataSet
from mlfs.orders.split import shuffled

SHUFFLED_BY: Final = ("torch", "numpy", "python")
# What is trained with. Some round it up and others down, what is left is rounded as well, and 1 - 0.8 is a little less
# than 0.2: so of 1,200 samples 959, 960 or 961 are eight tenths.
_SHARES: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# A part is no guess worth a look where all reads lie in it by chance so often. Of ten reads nine tenths pass.
_MOST_BY_CHANCE: Final = 0.4


class SplitPart(NamedTuple):
    """A part of a data set.

    Attributes:
        fields: of a job that reads the part. data_set: the first reads, as indices of the part.
    """

    fields: Fields
    data_set: DataSet


def parts_of(data_set: DataSet, seeds: Sequence[int]) -> Iterator[SplitPart]:
    """The parts that all reads may be of, where one of these seeds has shuffled the data set.

    The rest beside the part that is trained with is a part as well: it is read in the order of the list.
    """
    n = data_set.n
    wanted = np.unique(np.fromiter(data_set.read, dtype=np.int64))
    if not len(wanted):
        return
    sizes = sorted({floor(share * n) + more for share in _SHARES for more in (-1, 0, 1)})
    for seed in seeds:
        for by in SHUFFLED_BY:
            try:
                order = shuffled(n, seed, by)
            except JobError:
                continue  # a seed that the generator does not take
            place = np.empty(n, dtype=np.int64)
            place[order] = np.arange(n)
            at = place[wanted]
            for first, end in _pieces(n, sizes, int(at.min()), int(at.max())):
                if ((end - first) / n) ** len(wanted) <= _MOST_BY_CHANCE:
                    lengths = [first, n - first] if first else [end, n - end]
                    fields: Fields = {"split": lengths, "part": int(first > 0), "split_seed": seed, "split_by": by}
                    heads = tuple(tuple((place[list(head)] - first).tolist()) for head in data_set.heads)
                    yield SplitPart(fields, DataSet(end - first, heads))


def _pieces(n: int, sizes: Sequence[int], lowest: int, highest: int) -> Iterator[tuple[int, int]]:
    """The pieces of the shuffled list, at its start or its end, that hold all places from the lowest to the highest."""
    for size in sorted({*sizes, *(n - size for size in sizes)}):
        if highest < size:
            yield 0, size
        if lowest >= n - size:
            yield n - size, n
