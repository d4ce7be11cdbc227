"""MT19937 as torch's CPU generator and Python's random module use it, bit for bit, from numpy's.

In: a seed as given to `torch.Generator.manual_seed`, or to random.seed. Out: the words of 32 bits that the generator
would hand out, in order; torch.randperm; Python's shuffle without a loop over the elements, and its samples by its own
code. Called by the samplers and by what looks for seeds. Sources: ATen/core/MT19937RNGEngine.h,
ATen/CPUGeneratorImpl.cpp; randperm_cpu in ATen/native/TensorFactories.cpp (torch 2.13); Lib/random.py (Random.shuffle,
_randbelow_with_getrandbits), Modules/_randommodule.c (Python 3.11 to 3.14).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, Shuffles, shuffle_from_targets
from mlfs.orders.stopping import stop_if_asked

# A computation that nobody waits for ends between two portions, and so does one at Ctrl-C: each takes less than a
# millisecond.
AT_ONCE = 1 << 17
_WORD = 1 << 32


class _NoSeed(ISeedSequence):
    """The seed of a generator that is given its state at once: to draw one and to mix it takes longer.

    numpy takes the words one by one, which takes 2 us of a list and 30 us of its own arrays.
    """

    _WORDS: Any = [1] * 624

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint32]:
        words: npt.NDArray[np.uint32] = self._WORDS
        return words


_no_seed: Any = _NoSeed()  # numpy documents it, and its types forget it


class TorchWords:
    """The words of one seeded generator.

    torch keeps the low 32 bits of a seed (negative and 64-bit seeds are masked in two's complement) and runs
    init_genrand on them, which is numpy's legacy seeding with one 32-bit integer. So any Python integer will do.

    Attributes:
        rng: numpy's generator. RandomState is frozen (NEP 19): what it draws cannot change under us, unlike private
            names of MT19937.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(np.random.MT19937(_no_seed))
        self.rng.seed(seed % _WORD)

    def take(self, count: int) -> npt.NDArray[np.uint32]:
        """Return the next `count` words, shape (count,)."""
        words = np.empty(count, dtype=np.uint32)
        for start in range(0, count, AT_ONCE):
            stop_if_asked()
            part = words[start : start + AT_ONCE]
            part[:] = self.rng.randint(0, _WORD, len(part), dtype=np.uint32)
        return words

    def skip(self, count: int) -> None:
        """Skip the next `count` words: a double takes two."""
        doubles, odd = divmod(count, 2)
        for start in range(0, doubles, AT_ONCE):
            stop_if_asked()
            self.rng.random_sample(min(AT_ONCE, doubles - start))
        self.take(odd)

    def random_int64_seed(self) -> int:
        """The part of `torch.empty((), dtype=torch.int64).random_()` that counts as a seed: the second of its 2
        words."""
        return int(self.take(2)[1])

    @property
    def state(self) -> tuple[Any, ...]:
        """The state of the generator: 624 words, and which comes next."""
        known: Any = self.rng.get_state()
        return known[1], known[2]

    def go_on_from(self, key: npt.NDArray[np.uint32], place: int) -> None:
        """Have the state that another generator was in."""
        self.rng.set_state(("MT19937", key.tolist(), place, 0, 0.0))  # see _NoSeed

    def __deepcopy__(self, memo: object) -> TorchWords:
        """Another generator that goes on from the same state."""
        other = TorchWords(0)
        other.go_on_from(*self.state)
        return other


# -- torch.randperm
#
# torch shuffles forward: for i in 0 .. n-2, swap r[i] with r[j_i], where j_i = i + word % (n - i).


# From here on torch shuffles inside out with 64-bit words. No one has that many files in one directory tree, so the
# other rule is not written: an untested order would be worse than a clear error.
TORCH_32BIT_LIMIT = (1 << 32) // 20
MOST_OF_TORCH = TORCH_32BIT_LIMIT - 1


def randperm(n: int, seed: int) -> Permutation:
    """Return `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`. Raises as `words_of_randperm` does.

    int32 holds every value and halves what a cached epoch costs (torch answers int64).
    """
    return next_randperm(n, TorchWords(seed))


def next_randperm(n: int, words: TorchWords) -> Permutation:
    """Return `torch.randperm(n, generator=g)` for the generator that hands out `words`; it takes `words_of_randperm(n)`
    of them."""
    drawn = words.take(words_of_randperm(n))
    targets = np.zeros(n, dtype=np.uint32)  # the last element counts as swapped with itself
    np.remainder(drawn, np.arange(n, n - len(drawn), -1, dtype=np.uint32), out=targets[: len(drawn)])
    targets += np.arange(n, dtype=np.uint32)
    return shuffle_from_targets(targets)


def words_of_randperm(n: int) -> int:
    """How many words of its generator torch.randperm(n) takes.

    Raises:
        ValueError: n is negative or not below the limit.
    """
    if not 0 <= n < TORCH_32BIT_LIMIT:
        raise ValueError(f"cannot permute {n} samples: 0 to {TORCH_32BIT_LIMIT - 1} are supported")
    return max(n - 1, 0)


# -- Python's random module
#
# shuffle goes backward: for i in n-1 .. 1, swap x[i] with x[j], j = getrandbits(k) drawn again until it is at most i,
# where k is the bit length of i + 1. How many words a draw takes depends on the i it is for, and that on how many were
# accepted before: the accepted ones are the fixed point of "word t is accepted if it is at most i0 minus the number of
# accepted ones before it". There is only one (by induction over t), and starting near it a few rounds reach it.


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

        def draw(rng: random.Random) -> list[int]:
            order = list(range(len(x)))
            rng.shuffle(order)
            return order

        if len(x) < _SHORT:
            x[:] = x[self._by_python(draw)]
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
            if used < len(words):  # the others are drawn again
                self._words.go_on_from(*before)
                self._words.skip(used)
            parts.append(drawn[taken])
            first -= len(taken)
            count -= len(taken)
        return np.concatenate(parts)


def _accepted(drawn: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.intp]:
    """Which draws are taken if each must be at most `first` minus the number taken before it."""
    taken = drawn <= first
    while True:
        limit = first - np.cumsum(taken) + taken
        again = drawn <= limit
        if np.array_equal(again, taken):
            return np.flatnonzero(taken)
        taken = again
