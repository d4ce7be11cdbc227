"""Grain's index_shuffle: a permutation that gives any single element at once, here all of them together.

In: a length and a seed of 32 bits. Out: the permutation. Called by `mlfs.orders.generators`. Source:
grain/_src/python/experimental/index_shuffle/index_shuffle.cc (Grain 0.2.18): four rounds of the Simon cipher over the
smallest even number of bits (at least 16) that holds the last index; what comes out too large is encrypted again
("cycle walking"). The round keys are std::seed_seq's ([rand.util.seedseq] in the C++ standard).

The number of bits is ceil(log2(last index)), which is one short where the last index is a power of two: then that
index is encrypted like index 0, and the order has a sample twice and another not at all. We do the same.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import Indices

Words = npt.NDArray[np.uint64]

ROUNDS = 4
_FEWEST_BITS = 16
_MOST_BITS = 64
_MASK_32 = 0xFFFFFFFF

# Elements made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 14


def index_shuffle(n: int, seed: int) -> Indices:
    """Return [index_shuffle(i, max_index=n - 1, seed=seed, rounds=4) for i in range(n)], shape (n,), int64.

    Args:
        n: how many elements, 0 or more.
        seed: 0 <= seed < 2^32.
    """
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    last = n - 1
    bits = math.ceil(math.log2(last)) if last > 1 else 0
    bits = min(max(bits + bits % 2, _FEWEST_BITS), _MOST_BITS)
    keys = seed_sequence(seed, ROUNDS)
    if n <= 1 << _FEWEST_BITS:
        return _short(n, keys)
    shuffled = np.empty(n, dtype=np.int64)
    for start in range(0, n, _AT_ONCE):
        stop = min(start + _AT_ONCE, n)
        values = _encrypt(np.arange(start, stop, dtype=np.uint64), keys, bits // 2)
        walking = np.flatnonzero(values > last)
        while len(walking):
            values[walking] = _encrypt(values[walking], keys, bits // 2)
            walking = walking[values[walking] > last]
        shuffled[start:stop] = values
    return shuffled


def _short(n: int, keys: list[int]) -> Indices:
    """The permutation of few elements, whose walks are long: a table of all 16-bit values is encrypted once."""
    table = _encrypt(np.arange(1 << _FEWEST_BITS, dtype=np.uint64), keys, _FEWEST_BITS // 2).tolist()
    shuffled = table[:n]
    for at in range(n):
        while shuffled[at] >= n:
            shuffled[at] = table[shuffled[at]]
    return np.array(shuffled, dtype=np.int64)


def _encrypt(values: Words, keys: list[int], width: int) -> Words:
    """Encrypt blocks of two words of `width` bits."""
    mask = np.uint64((1 << width) - 1)
    left = (values >> np.uint64(width)) & mask
    right = values & mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left ^= _mix(right, width, mask) ^ (np.uint64(first) & mask)
        right ^= _mix(left, width, mask) ^ (np.uint64(second) & mask)
    return (left << np.uint64(width)) | right


def _mix(words: Words, width: int, mask: np.uint64) -> Words:
    by_1, by_8, by_2 = (_rotated(words, by, width, mask) for by in (1, 8, 2))
    result: Words = (by_1 & by_8) ^ by_2
    return result


def _rotated(words: Words, by: int, width: int, mask: np.uint64) -> Words:
    result: Words = ((words << np.uint64(by)) & mask) | (words >> np.uint64(width - by))
    return result


def seed_sequence(seed: int, count: int) -> list[int]:
    """The words that std::seed_seq{seed}.generate() fills `count` 32-bit places with, count below 7."""
    words = [0x8B8B8B8B] * count
    p, q = _offsets(count)
    rounds = max(2, count)
    for k in range(rounds):
        mixed = _scramble(words[k % count] ^ words[(k + p) % count] ^ words[(k - 1) % count])
        r1 = 1664525 * mixed & _MASK_32
        r2 = r1 + (1 if k == 0 else k % count + (seed if k == 1 else 0)) & _MASK_32
        words[(k + p) % count] = (words[(k + p) % count] + r1) & _MASK_32
        words[(k + q) % count] = (words[(k + q) % count] + r2) & _MASK_32
        words[k % count] = r2
    for k in range(rounds, rounds + count):
        r3 = 1566083941 * _scramble(words[k % count] + words[(k + p) % count] + words[(k - 1) % count]) & _MASK_32
        r4 = (r3 - k % count) & _MASK_32
        words[(k + p) % count] ^= r3
        words[(k + q) % count] ^= r4
        words[k % count] = r4
    return words


def _scramble(word: int) -> int:
    word &= _MASK_32
    return word ^ (word >> 27)


def _offsets(count: int) -> tuple[int, int]:
    """p and q of the standard, for few words: t = (count - 1) / 2."""
    t = (count - 1) // 2
    p = (count - t) // 2
    return p, p + t
