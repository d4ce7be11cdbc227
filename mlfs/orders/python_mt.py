"""Python's random module, bit for bit: its shuffle without a loop over the elements, its samples by its own code.

In: a seed as given to random.seed. Out: a generator. Called by `mlfs.orders.generators`. Source: Lib/random.py
(Random.shuffle, _randbelow_with_getrandbits), Modules/_randommodule.c; Python 3.11 to 3.14.

shuffle goes backward: for i in n-1 .. 1, swap x[i] with x[j], j = getrandbits(k) drawn again until it is at most i,
where k is the bit length of i + 1. How many words a draw takes depends on the i it is for, and that on how many were
accepted before: the accepted ones are the fixed point of "word t is accepted if it is at most i0 minus the number of
accepted ones before it". There is only one (by induction over t), and starting near it a few rounds reach it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, Shuffles, shuffle_from_targets

_VERSION = 3  # of the states of Python's generator
_CHUNK_WORDS = 1 << 15  # numpy gives each word in 64 bits; a chunk of 256 KiB stays in a core's cache
_SHORT = 2048  # Python's own loop over fewer elements takes less time than some dozen operations on arrays


class PythonGenerator(Shuffles):
    """random.Random(seed), as far as loops need it."""

    def __init__(self, seed: int) -> None:
        self._words = TorchWords(0)
        self._go_on_from(random.Random(seed))

    def skip(self, words: int, /) -> None:
        """Pass over words that others draw; random.getrandbits(32) or less takes one, and so does randint mostly."""
        self._words.skip(words)

    def shuffle(self, x: Permutation, /) -> None:
        """random.shuffle(x)."""
        if len(x) < _SHORT:
            x[:] = x[self._by_python(lambda rng: _shuffled(rng, len(x)))]
            return
        targets = np.zeros(len(x), dtype=np.int64)
        i = len(x) - 1
        while i > 0:  # stretches of positions that take equally many bits
            bits = (i + 1).bit_length()
            lowest = max((1 << (bits - 1)) - 1, 1)
            targets[lowest : i + 1] = self._below(i, i + 1 - lowest, bits)[::-1]
            i = lowest - 1
        x[:] = x[shuffle_from_targets(targets, "backward")]

    def sample(self, n: int, count: int, /) -> Indices:
        """random.sample(range(n), count), by Python's own loop: a second for a million."""
        return self._by_python(lambda rng: rng.sample(range(n), count))

    def choices(self, n: int, count: int, /) -> Indices:
        """random.choices(range(n), k=count)."""
        return self._by_python(lambda rng: rng.choices(range(n), k=count) if n else [])

    def weighted(self, weights: npt.NDArray[np.float64], count: int, /) -> Indices:
        """random.choices(range(n), weights, k=count)."""
        return self._by_python(lambda rng: rng.choices(range(len(weights)), weights.tolist(), k=count))

    def buffer(self, n: int, size: int, /) -> Indices:
        """torch's ShufflerIterDataPipe: each element is drawn of a full buffer, and the next one takes its place.

        Source: torch/utils/data/datapipes/iter/combinatorics.py (torch 2.13).
        """

        def draw(rng: random.Random) -> list[int]:
            held, drawn = list(range(min(n, size))), []
            for following in range(len(held), n):
                place = rng.randrange(size)
                drawn.append(held[place])
                held[place] = following
            while held:
                drawn.append(held.pop(rng.randrange(len(held))))
            return drawn

        return self._by_python(draw)

    def filling_buffer(self, n: int, size: int, first: int) -> Indices:
        """webdataset's shuffle(size, first), which hands out elements while its buffer still fills.

        Source: webdataset/filters.py, _shuffle (webdataset 1.0).
        """

        def draw(rng: random.Random) -> list[int]:
            held: list[int] = []
            drawn, at = [], 0
            while at < n or held:
                taken = min(n - at, 2 if len(held) + 1 < size else 1)
                held += range(at, at + taken)
                at += taken
                if not taken or len(held) >= min(first, size):
                    place = rng.randrange(len(held))
                    drawn.append(held[place])
                    held[place] = held[-1]
                    held.pop()
            return drawn

        return self._by_python(draw)

    def number(self, below: int | None, /) -> int:
        """random.randrange(below); 2**32 is the usual one."""
        return int(self._by_python(lambda rng: [rng.randrange(below or 1 << 32)])[0])

    def _by_python(self, draw: Callable[[random.Random], list[int]]) -> Indices:
        """Have Python draw, from the words that come next."""
        rng, (key, place) = random.Random(), self._words.state
        rng.setstate((_VERSION, (*key.tolist(), place), None))
        drawn = np.array(draw(rng), dtype=np.int64)
        self._go_on_from(rng)
        return drawn

    def _go_on_from(self, rng: random.Random) -> None:
        *key, place = rng.getstate()[1]
        self._words.go_on_from(np.array(key, dtype=np.uint32), place)

    def _below(self, first: int, count: int, bits: int) -> npt.NDArray[np.int64]:
        """Draw numbers at most first, first - 1, ..., shape (count,)."""
        parts = []
        while count:
            before = self._words.state
            words = self._words.take(min(_CHUNK_WORDS, 2 * count + 8))
            drawn = (words >> np.uint32(32 - bits)).astype(np.int64)
            taken = _accepted(drawn, first)[:count]
            used = int(taken[-1]) + 1 if len(taken) == count else len(drawn)
            self._words.go_on_from(*before)
            self._words.skip(used)
            parts.append(drawn[taken])
            first -= len(taken)
            count -= len(taken)
        return np.concatenate(parts)


def _shuffled(rng: random.Random, n: int) -> list[int]:
    order = list(range(n))
    rng.shuffle(order)
    return order


def _accepted(drawn: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.intp]:
    """Which draws are taken if each must be at most `first` minus the number taken before it."""
    taken = drawn <= first
    while True:
        limit = first - np.cumsum(taken) + taken
        again = drawn <= limit
        if np.array_equal(again, taken):
            return np.flatnonzero(taken)
        taken = again
