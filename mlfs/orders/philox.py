"""TensorFlow's random words, and the shuffle of tf.data that draws them, bit for bit, without TensorFlow.

In: the two seeds of an operation. Out: words of 32 bits, permutations. Called by `mlfs.orders.generators` and
`mlfs.orders.libraries`. Sources: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), Philox 4x32 with
ten rounds; tensorflow/core/lib/random/philox_random.h, random_distributions.h (SingleSampleAdapter),
kernels/data/shuffle_dataset_op.cc, python/framework/random_seed.py (TensorFlow 2.21).

A shuffle fills its buffer, then draws each element from what is left in it: step i hands out one of the elements
i .. i + buffer_size - 1 that are left, which is a Fisher-Yates shuffle with partners that are not far. With
reshuffle_each_iteration, which is the default, each pass draws two new seeds from a generator of its own.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

from mlfs.orders.shuffle import Permutation, shuffle_from_targets

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


def pass_seeds(seeds: Seeds, number: int, reshuffle: bool) -> Seeds:
    """The seeds of one pass (they count from 0) over a shuffle with the operation's seeds."""
    if not reshuffle:
        return seeds
    first, second = philox_words(*seeds, start=2 * number, count=2).tolist()
    return first, second


def shuffle_pass(n: int, buffer_size: int, seeds: Seeds) -> Permutation:
    """The source of each element in one pass over shuffle(buffer_size), shape (n,)."""
    left = np.arange(n, 0, -1, dtype=np.uint32)
    np.minimum(left, np.uint32(min(buffer_size, n)), out=left)
    targets = philox_words(*seeds, start=0, count=n) % left if n else left
    return shuffle_from_targets(targets + np.arange(n, dtype=np.uint32))


# -- the words, many blocks at once: tf.data takes those of a block one after another, block after block

_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_32 = np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK_WORDS = 4

# Blocks made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 12

Words = npt.NDArray[np.uint64]


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


def _blocks(seed: int, seed2: int, start: int, stop: int) -> tuple[Words, Words, Words, Words]:
    """The four words of blocks start .. stop - 1 (below 2^64)."""
    counters = np.arange(start, stop, dtype=np.uint64)
    a, b = counters & _LOW, counters >> _32
    c = np.full_like(counters, seed2 & _MASK)
    d = np.full_like(counters, (seed2 >> 32) & _MASK)
    key = [seed & _MASK, (seed >> 32) & _MASK]
    for _ in range(_ROUNDS):
        product, other = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (other >> _32) ^ b ^ np.uint64(key[0]), (product >> _32) ^ d ^ np.uint64(key[1])
        b, d = other & _LOW, product & _LOW
        key = [(k + weyl) & _MASK for k, weyl in zip(key, _WEYL, strict=True)]
    return a, b, c, d
