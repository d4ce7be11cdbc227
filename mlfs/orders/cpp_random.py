"""C++'s std::shuffle over std::mt19937 and std::mt19937_64, bit for bit; Grain's index_shuffle; no loops over elements.

In: how many elements, a seed. Out: permutations. Called by `mlfs.orders.generators`; DALI's readers shuffle so.
Sources: libstdc++ of GCC 11 and later: bits/stl_algo.h (shuffle, __gen_two_uniform_ints), bits/uniform_int_dist.h
(operator(), _S_nd: Lemire, "Fast Random Integer Generation in an Interval", 2019); Nishimura, "Tables of 64-bit
Mersenne Twisters" (2000); the C++ standard, [rand.eng.mers].

The shuffle grows: for i in 1 .. n-1, swap r[i] with r[j], 0 <= j <= i. While n^2 fits the generator's range, one
drawn number below (i+1)(i+2) gives two partners. A number below b comes from a word w of B bits as w*b >> B, and w is
drawn again if the low bits of w*b are below 2^B mod b: seldom enough that words are taken for all first, and what
follows a word that was drawn again is done once more.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, shuffle_from_targets

Numbers = npt.NDArray[np.uint64]
Blocks = npt.NDArray[Any]  # unsigned, of any width
Bits = Literal[32, 64]

# How many draws are made at once: about as many as there are before the next word that has to be drawn again, because
# the draws behind that one are lost.
_MOST_AT_ONCE = 1 << 14
_FEWEST_AT_ONCE = 1 << 8
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def std_shuffle(n: int, words: TorchWords | Mt64Words, bits: Bits) -> Permutation:
    """The source of each element after std::shuffle with such a generator, shape (n,), 0 <= n < 2^31."""
    targets = np.zeros(n, dtype=np.int64)
    if n < 2:
        return shuffle_from_targets(targets, "growing")
    if ((1 << bits) - 1) // n < n:
        targets[1:] = below(np.arange(2, n + 1, dtype=np.uint64), words, bits)
        return shuffle_from_targets(targets, "growing")
    first = 1 + (n % 2 == 0)  # pairs of what is left, after one element alone if need be
    sizes = np.arange(first + 1, n + 1, 2, dtype=np.uint64)
    above = sizes + np.uint64(1)
    alone = np.array([2] * (first - 1), dtype=np.uint64)
    drawn = below(np.append(alone, sizes * above), words, bits)
    targets[1:first] = drawn[: first - 1]
    targets[first::2], targets[first + 1 :: 2] = np.divmod(drawn[first - 1 :], above)
    return shuffle_from_targets(targets, "growing")


def below(bounds: Numbers, words: TorchWords | Mt64Words, bits: Bits) -> Numbers:
    """Return a number below each bound, as std::uniform_int_distribution draws them one after another.

    Args:
        bounds: at least 1, and at most as many bits as a word, shape (n,).
        words: the generator; more may be taken from it than is used.
        bits: how many bits a word has.
    """
    drawn = np.empty(len(bounds), dtype=np.uint64)
    left = np.empty(0, dtype=np.uint64)
    start = 0
    while start < len(bounds):
        at_once = min(max((1 << bits) // int(bounds[start]), _FEWEST_AT_ONCE), _MOST_AT_ONCE)
        some = bounds[start : start + at_once]
        if len(left) < len(some):
            left = np.append(left, words.take(_MOST_AT_ONCE).astype(np.uint64))
        numbers, again = _scaled(left[: len(some)], some, bits)
        good = len(some) if not again.any() else int(again.argmax())
        drawn[start : start + good] = numbers[:good]
        start += good
        left = left[good + (good < len(some)) :]  # without the word that is drawn again
    return drawn


def _scaled(words: Numbers, bounds: Numbers, bits: Bits) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The numbers that words give, and which of the words have to be drawn again."""
    low_product = words * bounds  # modulo 2^64
    if bits == 32:
        low = low_product & _LOW
        return low_product >> _32, low < (np.uint64(1 << 32) - bounds) % bounds
    return _high(words, bounds), low_product < (np.uint64(0) - bounds) % bounds


def _high(a: Numbers, b: Numbers) -> Numbers:
    """The high 64 bits of the products of 128 bits."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a_high * b_low + (a_low * b_low >> _32)
    other = a_low * b_high + (middle & _LOW)
    result: Numbers = a_high * b_high + (middle >> _32) + (other >> _32)
    return result


# -- the words of std::mt19937_64, which numpy does not have: 312 are a state. The next state's word k follows from
# words k, k+1 and k+156 (of the next state where there is one already), so half a state can be made at once.

_SIZE = 312
_HALF = 156
_MASK = (1 << 64) - 1
_MATRIX = np.uint64(0xB5026F5AA96619E9)
_UPPER = np.uint64(0xFFFFFFFF80000000)
_LOWER = np.uint64(0x7FFFFFFF)
_ONE = np.uint64(1)


class Mt64Words:
    """The words of one seeded generator."""

    def __init__(self, seed: int) -> None:
        values = [seed & _MASK]
        for index in range(1, _SIZE):
            values.append((6364136223846793005 * (values[-1] ^ (values[-1] >> 62)) + index) & _MASK)
        self._state = np.array(values, dtype=np.uint64)
        self._left = np.empty(0, dtype=np.uint64)

    def take(self, count: int) -> Numbers:
        """Return the next `count` words, shape (count,)."""
        missing = count - len(self._left)
        parts = [self._left]
        for _ in range(-(-missing // _SIZE)):
            self._twist()
            parts.append(_tempered(self._state))
        words = np.concatenate(parts)
        self._left = words[count:]
        return words[:count]

    def _twist(self) -> None:
        state = self._state
        following = np.append(state[1:], state[:1])
        # The last word is followed by the first of the new state: made before it is needed.
        new = np.empty_like(state)
        new[:_HALF] = _next(state[:_HALF], following[:_HALF], state[_HALF:])
        following[-1] = new[0]
        new[_HALF:] = _next(state[_HALF:], following[_HALF:], new[:_HALF])
        self._state = new


def _next(words: Numbers, following: Numbers, far: Numbers) -> Numbers:
    mixed = (words & _UPPER) | (following & _LOWER)
    result: Numbers = far ^ (mixed >> _ONE) ^ ((mixed & _ONE) * _MATRIX)
    return result


def _tempered(words: Numbers) -> Numbers:
    words = words ^ ((words >> np.uint64(29)) & np.uint64(0x5555555555555555))
    words ^= (words << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
    words ^= (words << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
    words ^= words >> np.uint64(43)
    return words


# -- Grain's index_shuffle: a permutation that gives any single element at once, here all of them together
#
# Source: grain/_src/python/experimental/index_shuffle/index_shuffle.cc (Grain 0.2.18): four rounds of the Simon cipher
# over the smallest even number of bits (at least 16) that holds the last index; what comes out too large is encrypted
# again ("cycle walking"). The round keys are std::seed_seq's ([rand.util.seedseq] in the C++ standard).
#
# The number of bits is ceil(log2(last index)), which is one short where the last index is a power of two: then that
# index is encrypted like index 0, and the order has a sample twice and another not at all. We do the same.


_FEWEST_BITS = 16
_MOST_BITS = 64
_MASK_32 = 0xFFFFFFFF

# Elements made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 14


def index_shuffle(n: int, seed: int) -> Indices:
    """Return [index_shuffle(i, max_index=n - 1, seed=seed, rounds=4) for i in range(n)], shape (n,), int64."""
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    last = n - 1
    bits = math.ceil(math.log2(last)) if last > 1 else 0
    bits = min(max(bits + bits % 2, _FEWEST_BITS), _MOST_BITS)
    keys = seed_sequence(seed)
    if n <= 1 << _FEWEST_BITS:  # few elements walk far: all values are encrypted once, and their walks doubled
        table = _encrypt(np.arange(1 << _FEWEST_BITS, dtype=np.uint16), keys, bits // 2).astype(np.int64)
        while table[:n].max() > last:
            table = np.where(table > last, table[table], table)
        return table[:n]
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


def _encrypt(values: Blocks, keys: list[int], width: int) -> Blocks:
    """Encrypt blocks of two words of `width` bits."""
    mask = (1 << width) - 1
    left, right = (values >> width) & mask, values & mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left ^= _mix(right, width, mask) ^ (first & mask)
        right ^= _mix(left, width, mask) ^ (second & mask)
    return (left << width) | right


def _mix(words: Blocks, width: int, mask: int) -> Blocks:
    by_1, by_8, by_2 = (((words << by) & mask) | (words >> (width - by)) for by in (1, 8, 2))
    return (by_1 & by_8) ^ by_2


def seed_sequence(seed: int) -> list[int]:
    """The words that std::seed_seq{seed}.generate() fills four 32-bit places with."""
    count = 4  # a key for each round
    words = [0x8B8B8B8B] * count
    for k in range(2 * count):
        at, behind, far = k % count, (k + 1) % count, (k + 2) % count
        if k < count:
            r1 = 1664525 * _scramble(words[at] ^ words[behind] ^ words[at - 1]) & _MASK_32
            r2 = r1 + (1 if k == 0 else k + (seed if k == 1 else 0)) & _MASK_32
            words[behind], words[far] = (words[behind] + r1) & _MASK_32, (words[far] + r2) & _MASK_32
        else:
            r1 = 1566083941 * _scramble(words[at] + words[behind] + words[at - 1]) & _MASK_32
            r2 = (r1 - at) & _MASK_32
            words[behind], words[far] = words[behind] ^ r1, words[far] ^ r2
        words[at] = r2
    return words


def _scramble(word: int) -> int:
    word &= _MASK_32
    return word ^ (word >> 27)
