"""The words of C++'s std::mt19937_64, which numpy does not have.

In: a seed of 64 bits. Out: the words, in order. Called by `mlfs.orders.std_shuffle`. Source: Nishimura, "Tables of
64-bit Mersenne Twisters" (2000); the C++ standard, [rand.eng.mers].

312 words are a state. The next state's word k follows from words k, k+1 and k+156 (of the next state where there is one
already), so half a state can be made at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SIZE = 312
_HALF = 156
_MASK = (1 << 64) - 1
_MATRIX = np.uint64(0xB5026F5AA96619E9)
_UPPER = np.uint64(0xFFFFFFFF80000000)
_LOWER = np.uint64(0x7FFFFFFF)
_ONE = np.uint64(1)

Words = npt.NDArray[np.uint64]


class Mt64Words:
    """The words of one seeded generator."""

    def __init__(self, seed: int) -> None:
        values = [seed & _MASK]
        for index in range(1, _SIZE):
            values.append((6364136223846793005 * (values[-1] ^ (values[-1] >> 62)) + index) & _MASK)
        self._state = np.array(values, dtype=np.uint64)
        self._left = np.empty(0, dtype=np.uint64)

    def take(self, count: int) -> Words:
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


def _next(words: Words, following: Words, far: Words) -> Words:
    mixed = (words & _UPPER) | (following & _LOWER)
    result: Words = far ^ (mixed >> _ONE) ^ ((mixed & _ONE) * _MATRIX)
    return result


def _tempered(words: Words) -> Words:
    words = words ^ ((words >> np.uint64(29)) & np.uint64(0x5555555555555555))
    words ^= (words << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
    words ^= (words << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
    words ^= words >> np.uint64(43)
    return words
