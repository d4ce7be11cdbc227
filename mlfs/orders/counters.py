"""jax.random's keys and permutations, and TensorFlow's words and the shuffle of tf.data, bit for bit, without either.

In: a seed or two, or a key and what is folded into it. Out: keys, words of 32 bits, permutations. Called by
`mlfs.orders.generators` and `mlfs.orders.libraries`. Both generators encrypt counters (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011): Threefry 2x32 and Philox 4x32 with ten rounds. Sources: jax/_src/prng.py
(threefry_seed, threefry_2x32, threefry_split, threefry_fold_in, threefry_random_bits; the "partitionable" ones, which
are the default from jax 0.5 on) and jax/_src/random.py (_shuffle); tensorflow/core/lib/random/philox_random.h,
random_distributions.h (SingleSampleAdapter), kernels/data/shuffle_dataset_op.cc, python/framework/random_seed.py
(TensorFlow 2.21).

A key of jax is never drawn from twice: a loop splits it before each epoch, or folds the epoch's number into it.
"""

from __future__ import annotations

import math
import random
from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, Shuffles, shuffle_from_targets
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
        return JaxGenerator(key=_key_of(self._key, data & _WORD_MASK))

    def split(self) -> JaxGenerator:
        """key, subkey = jax.random.split(key): goes on with the first, and gives the second."""
        given, self._key = _key_of(self._key, 1), _key_of(self._key, 0)
        return JaxGenerator(key=given)

    def shuffle(self, x: Permutation, /) -> None:
        """x[:] = jax.random.permutation(key, x)."""
        key, n = self._key, len(x)
        rounds = math.ceil(_EXPONENT * math.log(max(1, n)) / math.log(_WORD_MASK))
        values = x.copy()
        for _ in range(rounds):
            stop_if_asked()
            drawn, key = _key_of(key, 1), _key_of(key, 0)
            values = values[np.argsort(_bits(drawn, n), kind="stable")]
        x[:] = values

    def choices(self, n: int, count: int, /) -> Indices:
        """jax.random.randint(key, (count,), 0, n); jax.random.choice(key, n, (count,)) is the same."""
        span = np.uint32(max(n, 1))
        high, low = (_bits(_key_of(self._key, number), count) % span for number in (0, 1))
        # Arithmetic of 32 bits wraps, also where jax did not mean it to: for spans above 2^16 the multiplier is 0.
        multiplier = np.uint32(((1 << 16) % int(span)) ** 2 & _WORD_MASK) % span
        return ((high * multiplier + low) % span).astype(np.int64)


def _key_of(key: tuple[int, int], number: int) -> tuple[int, int]:
    x, y = threefry(key, np.zeros(1, np.uint32), np.array([number], np.uint32))
    return int(x[0]), int(y[0])


def _bits(key: tuple[int, int], n: int) -> Words:
    x, y = threefry(key, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    return x ^ y


# -- TensorFlow
#
# A shuffle fills its buffer, then draws each element from what is left in it: step i hands out one of the elements
# i .. i + buffer_size - 1 that are left, which is a Fisher-Yates shuffle with partners that are not far. With
# reshuffle_each_iteration, which is the default, each pass draws two new seeds from a generator of its own.


DEFAULT_GLOBAL_SEED = 87654321
_MAX_INT32 = 2**31 - 1

Seeds = tuple[int, int]


def op_seeds(op_seed: int | None, global_seed: int | None) -> Seeds:
    """The two seeds that an operation gets, as random_seed.get_seed makes them.

    Args:
        op_seed: the operation's own; None for that of the first random operation after tf.random.set_seed.
        global_seed: tf.random.set_seed's; None when it was not called.
    """
    if op_seed is None:
        op_seed = random.Random(global_seed).randint(0, _MAX_INT32)
    first = DEFAULT_GLOBAL_SEED if global_seed is None else global_seed % _MAX_INT32
    second = op_seed % _MAX_INT32
    return (0, _MAX_INT32) if (first, second) == (0, 0) else (first, second)


def pass_seeds(seeds: Seeds, number: int) -> Seeds:
    """The seeds of one pass (they count from 0) over a shuffle with the operation's seeds."""
    first, second = philox_words(*seeds, start=2 * number, count=2).tolist()
    return first, second


def shuffle_pass(n: int, buffer_size: int, seeds: Seeds) -> Permutation:
    """The source of each element in one pass over shuffle(buffer_size), shape (n,)."""
    left = np.arange(n, 0, -1, dtype=np.uint32)
    np.minimum(left, np.uint32(min(buffer_size, n)), out=left)
    targets = philox_words(*seeds, start=0, count=n) % left if n else left
    return shuffle_from_targets(targets + np.arange(n, dtype=np.uint32))


# -- the words, many blocks at once: tf.data takes those of a block one after another, block after block

_LOW = np.uint64(_WORD_MASK)
_32 = np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK_WORDS = 4

# Blocks made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 12

Numbers = npt.NDArray[np.uint64]


def philox_words(seed: int, seed2: int, start: int, count: int) -> npt.NDArray[np.uint32]:
    """Return words start .. start + count - 1 of PhiloxRandom(seed, seed2), shape (count,).

    Args:
        seed, seed2: any integers; their low 64 bits count.
        start: 0 or more.
    """
    first, last = start // _BLOCK_WORDS, -(-(start + count) // _BLOCK_WORDS)
    words = np.empty((last - first, _BLOCK_WORDS), dtype=np.uint32)
    for at in range(first, last, _AT_ONCE):
        stop = min(at + _AT_ONCE, last)
        for column, part in enumerate(_blocks(seed, seed2, at, stop)):
            words[at - first : stop - first, column] = part
    skipped = start - first * _BLOCK_WORDS
    return words.reshape(-1)[skipped : skipped + count]


def _blocks(seed: int, seed2: int, start: int, stop: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The four words of blocks start .. stop - 1 (below 2^64)."""
    counters = np.arange(start, stop, dtype=np.uint64)
    a, b = counters & _LOW, counters >> _32
    c = np.full_like(counters, seed2 & _WORD_MASK)
    d = np.full_like(counters, (seed2 >> 32) & _WORD_MASK)
    key = [seed & _WORD_MASK, (seed >> 32) & _WORD_MASK]
    for _ in range(_ROUNDS):
        product, other = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (other >> _32) ^ b ^ np.uint64(key[0]), (product >> _32) ^ d ^ np.uint64(key[1])
        b, d = other & _LOW, product & _LOW
        key = [(k + weyl) & _WORD_MASK for k, weyl in zip(key, _WEYL, strict=True)]
    return a, b, c, d
