"""polars' shuffles and samples, bit for bit, without polars: `df.sample(n, shuffle=True, seed=1)`, `s.shuffle(1)`.

In: a seed. Out: permutations, samples. Called by `mlfs.orders.generators`. Sources: rand 0.9, rngs/small.rs
(xoshiro256++, seeded by splitmix64), seq/increasing_uniform.rs and seq/slice.rs (shuffle), seq/index.rs (sample),
distr/uniform_int.rs (Canon's method; Lemire's for a distribution), as polars 2.1 draws. A call of polars seeds a
generator of its own: no epoch goes on from the one before.

The shuffle grows: for i in 0 .. n-1, swap r[i] with r[j], j <= i. One number gives the partners of as many i as the
product of their bounds fits 32 bits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mlfs.orders.order import Indices
from mlfs.orders.shuffle import Permutation, Shuffles, shuffle_from_targets
from mlfs.orders.stopping import stop_if_asked

_WORD: Final = (1 << 32) - 1
_LONG: Final = (1 << 64) - 1
_ASKED_EVERY: Final = 1 << 14


def splitmix64(seed: int, step: int) -> int:
    """The word of that number, from 1, of the generator that seeds others (Steele, Lea and Flood 2014)."""
    mixed = (seed + step * 0x9E3779B97F4A7C15) & _LONG
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _LONG
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _LONG
    return mixed ^ mixed >> 31


class PolarsGenerator(Shuffles):
    """The generator that one call of polars makes. A million samples take some seconds: its words come one by one."""

    def __init__(self, seed: int) -> None:
        self._a, self._b, self._c, self._d = (splitmix64(seed, step) for step in range(1, 5))

    def shuffle(self, x: Permutation, /) -> None:
        """pl.Series(x).shuffle(seed)."""
        targets = np.zeros(len(x), dtype=np.int64)
        at = 1  # the first one has no other partner than itself, and takes no word
        while at < len(x):
            if at % _ASKED_EVERY < 2:
                stop_if_asked()
            bound, stop = at + 1, at + 1
            while bound * (stop + 1) <= _WORD:
                stop += 1
                bound *= stop
            number = self._below(bound)
            for i in range(at, min(stop, len(x))):
                # The last partner of a number takes all that is left of it.
                number, targets[i] = (0, number) if i == stop - 1 else divmod(number, i + 1)
            at = stop
        x[:] = x[shuffle_from_targets(targets, "growing")]

    def sample(self, n: int, count: int, /) -> Permutation | Indices:
        """pl.int_range(n).sample(count, shuffle=True, seed=seed)."""
        if count == n:
            return self.permutation(n)
        # Which of three ways is quickest by rand's measurements, of which some are for 500,000 elements and more.
        large, few = n >= 500_000, count < 163
        more, per = ((70 / 9, 8 / 45) if large else (10.0, 1.6)) if few else (330 / 9 if large else 270.0, 0.0)
        in_place, moved, drawn = n < (more + per * count) * count and count > 11, dict[int, int](), list[int]()
        for i in range(count):
            if in_place:
                j = i + self._below(n - i)
                drawn.append(moved.get(j, j))
                moved[j] = moved.get(i, i)
            elif few:  # Floyd's way
                last = n - count + i
                if (number := self._below(last + 1)) in drawn:
                    drawn[drawn.index(number)] = last
                drawn.append(number)
            else:
                low, number = -1, 0
                while low < (1 << 32) % n or number in moved:
                    number, low = divmod(self._word() * n, 1 << 32)
                drawn.append(moved.setdefault(number, number))
        return np.array(drawn, dtype=np.int64)

    def _below(self, bound: int) -> int:
        high, low = divmod(self._word() * bound, 1 << 32)
        if low > -bound & _WORD and low + (self._word() * bound >> 32) > _WORD:
            high += 1
        return high

    def _word(self) -> int:
        a, b, c, d = self._a, self._b, self._c, self._d
        summed = (a + d) & _LONG
        drawn = ((summed << 23 | summed >> 41) + a) & _LONG
        c ^= a
        d ^= b
        self._a, self._b = a ^ d, b ^ c
        self._c, self._d = c ^ (b << 17 & _LONG), (d << 45 | d >> 19) & _LONG
        return drawn >> 32
