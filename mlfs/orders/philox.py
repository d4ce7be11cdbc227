"""TensorFlow's random words: Philox 4x32 with ten rounds, many blocks at once.

In: the two seeds of an operation. Out: 32-bit words. Called by `mlfs.orders.tf_data`. Source: Salmon et al., "Parallel
Random Numbers: As Easy as 1, 2, 3" (2011); tensorflow/core/lib/random/philox_random.h, random_distributions.h
(SingleSampleAdapter), as tf.data takes them: the words of a block one after another, block after block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
