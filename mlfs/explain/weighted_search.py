"""Looks through the words of one seed's generator for the place at which an epoch of weighted draws begins.

In: what was read first in an epoch, as dataset indices; words of the generator; the weights. Out: the places that give
these reads. Called by `mlfs.explain.word_search`.

A draw takes two words, which make a number in [0, 1); the sample is the first one whose running sum of weights is not
below it (`mlfs.orders.torch_weighted`). So a read tells between which two numbers two words lie: the more, the rarer
its sample is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.explain.question import DataSet, Hypothesis, step
from mlfs.orders.order_file import read_weights
from mlfs.orders.torch_weighted import WORDS_A_DRAW, running_sum, uniform_of

Words = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]
# A batch of nine or more shows no gap in a process' first nine reads: where it ends is found for the places that are
# left. More workers than these nobody has.
_WITHOUT_GAP, _MOST_WORKERS = 9, 64


class Drawn(NamedTuple):
    """A place that gives a process' reads, and how many bits they tell."""

    at: int
    bits: float


class WeightedDraws:
    """What the first reads of some processes demand of the words.

    Args:
        hypotheses: how each process may have read.

    Attributes:
        reach: words behind a place that are looked at.
    """

    def __init__(self, data_set: DataSet, hypotheses: Sequence[Hypothesis], weights_file: str) -> None:
        sums = running_sum(read_weights(weights_file), weights_file)
        self._upper = sums
        self._lower = np.concatenate(([-1.0], sums[:-1]))  # the first sample is drawn by 0.0 too
        self._heads = data_set.heads
        self._hypotheses = hypotheses
        longest = max((len(head) for head in data_set.heads), default=0)
        self.reach = WORDS_A_DRAW * (longest * _MOST_WORKERS + 1)

    def places(self, words: Words, count: int) -> Iterator[Drawn]:
        """The places among the first `count` words; `reach` more are given."""
        numbers = uniform_of(words[:-1], words[1:])
        begin = {h.head: self._holding(numbers, np.arange(count), 0, self._heads[h.head][0]) for h in self._hypotheses}
        for h in self._hypotheses:
            values = self._heads[h.head]
            at = begin[h.head]
            for i, value in enumerate(values[: len(values) - 1 if h.batch else _WITHOUT_GAP]):
                if not len(at):
                    break
                at = self._holding(numbers, at, step(i, h.batch, h.workers), value)
            for place in at.tolist():
                if h.batch or self._fits(numbers, place, values):
                    yield Drawn(place, self._bits(values))

    def _holding(self, numbers: npt.NDArray[np.float64], at: Places, draw: int, value: int) -> Places:
        """Those of the places of which a draw gives the value."""
        drawn = numbers[at + WORDS_A_DRAW * draw]
        held: Places = at[(drawn > self._lower[value]) & (drawn <= self._upper[value])]
        return held

    def _fits(self, numbers: npt.NDArray[np.float64], place: int, values: Sequence[int]) -> bool:
        """Whether all reads of a process come from the place: without a gap, or with one behind each batch.

        The last one need not fit: the process may have gone on to something else.
        """
        draws = numbers[place : place + self.reach : WORDS_A_DRAW]
        stream = np.searchsorted(self._upper, draws, side="left")
        head = np.array(values[:-1], dtype=np.int64)
        unlike = np.flatnonzero(stream[: len(head)] != head)
        if not len(unlike):
            return True
        for batch in range(int(unlike[0]), _WITHOUT_GAP - 1, -1):  # what follows a batch may look as if it went on
            for workers in range(2, _MOST_WORKERS + 1):
                steps = np.array([step(i, batch, workers) for i in range(len(head))])
                if np.array_equal(stream[steps], head):
                    return True
        return False

    def _bits(self, values: Sequence[int]) -> float:
        """What it tells that a process' reads fit, the last one left out."""
        return sum(-log2(max(self._upper[value] - self._lower[value], 2.0**-53)) for value in values[1:-1])
