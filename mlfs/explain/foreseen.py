"""The places of a generator's words at which the next epoch may begin, to be looked up by the epoch's first reads.

Pure. In: a generator, how many words it had given before the last epochs. Out: spans of places, likely ones first; a
table of the first samples of the orders that begin there; for the first reads of an epoch, the one place that gives
them. Used by `mlfs.explain.foresight`, which has the tables made in a worker thread before the epoch begins.

Augmentation in the main process draws another number of words in each epoch, so nobody can say where the next one
begins. But the numbers of the epochs before say where to look: a thousand images take some thousand words, and the sum
of so many draws hardly varies. The order at a place is a permutation that is seeded by one word, or drawn from the
words themselves (torch's randperm); its first two samples are made for each place at once.

How often a wrong place is taken. Reads in some other order begin as the order of one given place with a chance of 1 in
n (n - 1) ... (n - k + 1), where k reads of n samples are looked at. Among c places, and with each of m reads taken for
the first of an epoch, it is c m times that. `reads_needed` asks for so many reads that it is less than 1 in a million:
five reads of 1,500 samples for 2^18 places and 2^10 reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.explain import search_numpy
from mlfs.explain.evidence import beyond_chance, bits_of_distinct
from mlfs.orders.mt19937 import first_words
from mlfs.orders.torch_generator import Tape

# In the largest table: 3 MB, a tenth of a second of a core. Random crops of 30,000 images, or all that follows a
# smaller epoch: its validation, a checkpoint.
MOST_PLACES = 1 << 18
# The state of that many seeds stays in the second-level cache; between two portions other threads have their turn.
PORTION = 1 << 14
# Reads that are taken for the first one of an epoch: those that don't come as predicted, in an epoch's first second.
MOST_BEGINNINGS = 1 << 10
# While only one epoch has told how many words it drew, the next one's number is looked for this far around it, as a
# share: no augmentation varies so much over more than a hundred images.
ONE_EPOCHS_SHARE = 1 / 8
# With several: standard deviations, and a share, as few epochs tell their deviation badly.
DEVIATIONS, SEVERAL_EPOCHS_SHARE = 8, 1 / 64
LEAST_AROUND = 64
# First reads that are compared with an order: as many as tell one of 40 samples' orders, and some more.
LONGEST_HEAD = 16
WORD_BITS = 32

Span = tuple[int, int]


class Generator(NamedTuple):
    """A generator that has drawn the orders of some epochs.

    Attributes:
        seed, seeded, ahead: see `mlfs.explain.words.Drawing`.
        places: words that it had given before the last epochs, one epoch after the other; at least one.
    """

    seed: int
    seeded: bool
    ahead: int
    places: tuple[int, ...]


class Place(NamedTuple):
    """Where an epoch begins: its generator, and the words drawn before."""

    generator: Generator
    words: int


def spans(places: Sequence[int]) -> list[Span]:
    """Where the next epoch may begin, as numbers of words drawn before it (first, last + 1): likely places first.

    Args:
        places: of the epochs before, one after the other.
    """
    last, steps = places[-1], [after - before for before, after in pairwise(places)]
    everything = (last + 1, last + MOST_PLACES)
    if not steps:
        return [everything]
    mean = fmean(steps)
    share = ONE_EPOCHS_SHARE if len(steps) == 1 else SEVERAL_EPOCHS_SHARE
    around = round(min(MOST_PLACES / 2, LEAST_AROUND + share * mean + DEVIATIONS * pstdev(steps)))
    likely = (max(last + 1, last + round(mean) - around), last + round(mean) + around)
    rest = [(everything[0], min(likely[0], everything[1])), (max(likely[1], everything[0]), everything[1])]
    return [likely, *(span for span in rest if span[0] < span[1])]


def reads_needed(n: int, places: int) -> int:
    """How many first reads of one process tell one of so many places from chance; 0 if no number does."""
    tried = max(1, places) * MOST_BEGINNINGS
    return next((reads for reads in range(2, n) if beyond_chance(bits_of_distinct(n, reads), tried)), 0)


class Foreseen:
    """The orders of n samples that begin at the places of a span.

    Attributes:
        places: how many there are.
    """

    def __init__(self, generator: Generator, n: int, span: Span) -> None:
        low, high = span
        self.places = high - low
        self._n, self._low, self._seeded = n, low, generator.seeded
        words = self._words = Tape(generator.seed).at(low + generator.ahead).take(self.places + LONGEST_HEAD)
        keys = np.empty(self.places, dtype=np.uint64)
        for start in range(0, self.places, PORTION):
            part = slice(start, min(start + PORTION, self.places))
            if generator.seeded:
                outputs = search_numpy.Outputs(words[part], 1)
                first, second = outputs.word(0), outputs.word(1)
            else:
                first, second = words[part], words[part.start + 1 : part.stop + 1]
            keys[part] = _key(first, second, n)
        self._by_key = np.argsort(keys, kind="stable").astype(np.uint32)
        self._keys = keys[self._by_key]

    def places_of(self, head: Sequence[int]) -> list[int]:
        """The places whose order begins with these samples, as numbers of words drawn before.

        Args:
            head: two samples at least, and `LONGEST_HEAD` at most.
        """
        key = np.uint64((head[0] << WORD_BITS) + head[1])
        begin, end = np.searchsorted(self._keys, key, "left"), np.searchsorted(self._keys, key, "right")
        return [self._low + at for at in self._by_key[begin:end].tolist() if self._begins(at, head)]

    def _begins(self, at: int, head: Sequence[int]) -> bool:
        words = first_words(int(self._words[at]), len(head)) if self._seeded else self._words[at : at + len(head)]
        return head_of(words, self._n) == list(head)


def _key(first: npt.NDArray[np.uint32], second: npt.NDArray[np.uint32], n: int) -> npt.NDArray[np.uint64]:
    """The first two values of randperm(n) for each pair of words, in one number."""
    at = (first % np.uint32(n)).astype(np.uint64)
    other = (second % np.uint32(n - 1)).astype(np.uint64) + np.uint64(1)
    other[other == at] = 0  # there the first swap has put what stood in front
    return (at << np.uint64(WORD_BITS)) + other


def head_of(words: npt.NDArray[np.uint32], n: int) -> list[int]:
    """The first values of torch.randperm(n), as many as there are words.

    Swaps are kept in a dict, so it takes time for these values and not for n.
    """
    moved: dict[int, int] = {}
    head = []
    for i, word in enumerate(words[:n].tolist()):
        target = i + word % (n - i) if i < n - 1 else i
        head.append(moved.get(target, target))
        moved[target] = moved.pop(i, i)
    return head
