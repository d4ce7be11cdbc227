"""jax.random's keys and permutations, bit for bit, without jax: threefry2x32 on 32-bit counters.

In: a seed, or a key and what is folded into it. Out: keys, permutations. Called by `mlfs.orders.generators`. Source:
jax/_src/prng.py (threefry_seed, threefry_2x32, threefry_split, threefry_fold_in, threefry_random_bits; the
"partitionable" ones, which are the default from jax 0.5 on) and jax/_src/random.py (_shuffle).
Threefry is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

A key is never drawn from twice: a loop splits it before each epoch, or folds the epoch's number into it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, Shuffles
from mlfs.orders.stopping import stop_if_asked

Words = npt.NDArray[np.uint32]

_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY: Final = np.uint32(0x1BD11BDA)
_WORD_MASK: Final = 0xFFFFFFFF
# A sort by random keys of 32 bits has ties: so many sorts one after another make them as rare as those of n^3 keys.
_EXPONENT: Final = 3


def threefry(key: tuple[int, int], high: Words, low: Words) -> tuple[Words, Words]:
    """Threefry-2x32 with 20 rounds of the counters (high, low)."""
    first, second = np.uint32(key[0]), np.uint32(key[1])
    keys = (first, second, first ^ second ^ _PARITY)
    with np.errstate(over="ignore"):
        x, y = high + keys[0], low + keys[1]
        for round_ in range(5):
            for rotation in _ROTATIONS[round_ % 2]:
                x = x + y
                y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
            x = x + keys[(round_ + 1) % 3]
            y = y + keys[(round_ + 2) % 3] + np.uint32(round_ + 1)
    return x, y


class JaxGenerator(Shuffles):
    """jax.random.key(seed), and the key that a loop goes on with.

    Args:
        seed: 32 bits, as jax has them unless 64 are enabled.
        key: the key itself, in place of the seed's.
    """

    def __init__(self, seed: int = 0, key: tuple[int, int] | None = None) -> None:
        self._key = (0, seed & _WORD_MASK) if key is None else key

    def fold_in(self, data: int) -> JaxGenerator:
        """jax.random.fold_in(key, data)."""
        x, y = threefry(self._key, np.zeros(1, np.uint32), np.array([data & _WORD_MASK], np.uint32))
        return JaxGenerator(key=(int(x[0]), int(y[0])))

    def split(self) -> JaxGenerator:
        """key, subkey = jax.random.split(key): goes on with the first, and gives the second."""
        kept, given = _split(self._key)
        self._key = kept
        return JaxGenerator(key=given)

    def shuffle(self, x: Permutation, /) -> None:
        """x[:] = jax.random.permutation(key, x)."""
        key, n = self._key, len(x)
        rounds = math.ceil(_EXPONENT * math.log(max(1, n)) / math.log(_WORD_MASK))
        values = x.copy()
        for _ in range(rounds):
            stop_if_asked()
            key, drawn = _split(key)
            values = values[np.argsort(_bits(drawn, n), kind="stable")]
        x[:] = values

    def sample(self, n: int, count: int, /) -> Permutation:
        """jax.random.choice(key, n, (count,), replace=False): the beginning of a permutation."""
        return self.permutation(n)[:count]

    def choices(self, n: int, count: int, /) -> Indices:
        """jax.random.randint(key, (count,), 0, n); jax.random.choice(key, n, (count,)) is the same."""
        first, second = _split(self._key)
        high, low = (_bits(key, count).astype(np.uint64) for key in (first, second))
        span = np.uint64(max(n, 1))
        mask, half = np.uint64(_WORD_MASK), np.uint64((1 << 16) % int(span))
        multiplier = (half * half & mask) % span
        # Arithmetic of 32 bits wraps, also where jax did not mean it to: for spans above 2^16 the multiplier is 0.
        offset = (((high % span) * multiplier & mask) + low % span & mask) % span
        return offset.astype(np.int64)

    def uniform(self, count: int, /) -> npt.NDArray[np.floating]:
        """jax.random.uniform(key, (count,)): 23 bits of a word."""
        bits = (_bits(self._key, count) >> np.uint32(9)) | np.uint32(0x3F800000)
        return bits.view(np.float32) - np.float32(1)

    def number(self, below: int | None, /) -> int:
        """jax.random.randint(key, (), 0, below); 2**31 - 1 is the usual one."""
        return int(self.choices(below or (1 << 31) - 1, 1)[0])

    def skip(self, words: int, /) -> None:
        """A key has no words that others draw."""


def _split(key: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    x, y = threefry(key, np.zeros(2, np.uint32), np.arange(2, dtype=np.uint32))
    return (int(x[0]), int(y[0])), (int(x[1]), int(y[1]))


def _bits(key: tuple[int, int], n: int) -> Words:
    x, y = threefry(key, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    return x ^ y
