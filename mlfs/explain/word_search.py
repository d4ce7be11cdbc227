"""Looks through the words of one seed's generator for the place at which an epoch begins.

In: what was read first in an epoch, as dataset indices; the seed, and where to look. Out: how far the search is, and
the place, once one explains the reads beyond chance. Called by `mlfs.explain.correction` in a worker thread for what is
near, and by `mlfs.explain.search` in a process of its own for what is far.

The seed is known, so there are millions of places where the search for a seed has thousands of millions: some reads of
one process are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import log2

import numpy as np
import numpy.typing as npt

from mlfs.explain.chance import PLACE_BITS
from mlfs.explain.confirm import confirm
from mlfs.explain.question import WORDS_IN_REACH, DataSet, Reading, Trie, compile_trie, likely, probes, step
from mlfs.explain.search_stages import PlaceFound, StageProgress, WordsAsked
from mlfs.explain.try_seeds import Words, search, search_words
from mlfs.orders.generators import WORDS_A_DRAW, running_sum, uniform_of
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order_file import weights_of

# Some tenths of a second without numba: whoever looks on sees the search move.
_WORDS_AT_ONCE = 1 << 19


def find_place(data_set: DataSet, asked: WordsAsked, quick: bool = False) -> Iterator[StageProgress | PlaceFound]:
    """Look at all places until one explains the reads; it comes last. Args: quick: see `mlfs.explain.try_seeds`."""
    readings = [h for h in likely([data_set]) if h.world == 1 and not h.words_before and not h.skipped]
    trie = compile_trie(probes([data_set], readings))
    stage, done, of = f"words of seed {asked.seed}", 0, sum(high - low for low, high in asked.spans)
    yield StageProgress(stage, 0, of)
    fewest_bits = PLACE_BITS + log2(max(1, of * len(readings)))
    if asked.weights_file:
        draws = WeightedDraws(data_set, readings, asked.weights_file, fewest_bits)
        reach, found_in = draws.reach, draws.places
    elif trie.below:
        reach = WORDS_IN_REACH
        found_in = partial(_found_orders, asked, trie, quick, readings, data_set, fewest_bits)
    else:
        return
    for low, high in asked.spans:
        words = TorchWords(asked.seed)
        words.skip(low + asked.ahead)
        seen = words.take(reach)
        for start in range(low, high, _WORDS_AT_ONCE):
            count = min(_WORDS_AT_ONCE, high - start)
            seen = np.concatenate([seen[-reach:], words.take(count)])
            at = next(found_in(seen, count, start), None)
            if at is not None:
                yield PlaceFound(start + at)
                return
            done += count
            yield StageProgress(stage, done, of)


def _found_orders(
    asked: WordsAsked, trie: Trie, quick: bool, readings: Sequence[Reading], data_set: DataSet, fewest_bits: float,
    words: Words, count: int, start: int,
) -> Iterator[int]:  # fmt: skip
    """The places among `count` words, the first of them number `start`, at which a permutation explains the reads."""
    hits = search(trie, words[:count], quick) if asked.seeded else search_words(trie, words, count)
    for at, tag in hits:
        seed, h = int(words[at]), readings[tag]
        if not asked.seeded:
            seed, h = asked.seed, h._replace(words_before=start + asked.ahead + at)
        if confirm(seed, h, data_set, fewest_bits) is not None:
            yield at


def place_nearby(data_set: DataSet, asked: WordsAsked) -> PlaceFound | None:
    """The place, if it is among so few that numba is not worth its compiling. A worker thread's work."""
    events = find_place(data_set, asked)
    return next((event for event in events if isinstance(event, PlaceFound)), None)


# -- weighted draws

# A draw takes two words, which make a number in [0, 1); the sample is the first one whose running sum of weights is not
# below it (`mlfs.orders.generators`). So a read says between which two numbers two words lie: the more, the rarer
# its sample is drawn.

Places = npt.NDArray[np.int64]
# A batch of nine or more shows no gap in a process' first nine reads, which are enough to tell a place.
_WITHOUT_GAP = 9


class WeightedDraws:
    """The demands that the first reads of some processes make of the words.

    Args:
        readings: how each process may have read. fewest_bits: what its reads must tell.

    Attributes:
        reach: words behind a place that are looked at.
    """

    def __init__(self, data_set: DataSet, readings: Sequence[Reading], weights_file: str, fewest_bits: float) -> None:
        sums = running_sum(weights_of(weights_file))
        self._upper = sums
        self._lower = np.concatenate(([-1.0], sums[:-1]))  # the first sample is drawn by 0.0 too
        self._heads = data_set.heads
        self._readings = [h for h in readings if self._bits(self._compared(h)) >= fewest_bits]
        furthest = max((step(len(self._compared(h)), h.batch, h.workers) for h in self._readings), default=0)
        self.reach = WORDS_A_DRAW * (furthest + 1)

    def places(self, words: Words, count: int, start: int) -> Iterator[int]:
        """The places among the first `count` words that give some process' reads; `reach` more are given."""
        numbers = uniform_of(words[:-1], words[1:])
        begin = {h.head: self._holding(numbers, np.arange(count), 0, self._heads[h.head][0]) for h in self._readings}
        for h in self._readings:
            at = begin[h.head]
            for i, value in enumerate(self._compared(h)):
                if not len(at):
                    break
                at = self._holding(numbers, at, step(i, h.batch, h.workers), value)
            yield from at.tolist()

    def _compared(self, h: Reading) -> Sequence[int]:
        """The reads of a process but the last one, which may be of something else, as far as they come without a gap
        where no small batch is read."""
        return self._heads[h.head][:-1][: None if h.batch else _WITHOUT_GAP]

    def _holding(self, numbers: npt.NDArray[np.float64], at: Places, draw: int, value: int) -> Places:
        drawn = numbers[at + WORDS_A_DRAW * draw]
        held: Places = at[(drawn > self._lower[value]) & (drawn <= self._upper[value])]
        return held

    def _bits(self, values: Sequence[int]) -> float:
        """The bits of reads that fit."""
        return sum(-log2(max(self._upper[value] - self._lower[value], 2.0**-53)) for value in values)
