"""Tries seeds with numpy alone: two million a second and core, whole columns at a time.

In: a `Plan` and seeds. Out: (seed, tag) of each probe that holds. Called by `mlfs.infer.search`, for small ranges (it
needs no compiling) and where numba is not installed. Source of the generator: init_genrand and genrand_int32 of
mt19937ar.c, which torch's MT19937RNGEngine.h repeats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.infer.probes import Plan

Words = npt.NDArray[np.uint32]
CHUNK = 1 << 15  # the state of that many seeds stays in the second-level cache

_FACTOR = np.uint32(1812433253)
_ONE = np.uint32(1)
_UPPER, _LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_TWIST, _B, _C = np.uint32(0x9908B0DF), np.uint32(0x9D2C5680), np.uint32(0xEFC60000)


class Outputs:
    """The first words of many generators, made when asked for.

    Args:
        seeds: uint32, one generator each.
        reach: the highest word that will be asked for.
    """

    def __init__(self, seeds: Words, reach: int) -> None:
        self._low = np.empty((reach + 2, len(seeds)), dtype=np.uint32)
        self._high = np.empty((reach + 1, len(seeds)), dtype=np.uint32)
        state, shifted = seeds.copy(), np.empty_like(seeds)
        self._low[0] = state
        for i in range(1, 398 + reach):
            np.right_shift(state, 30, out=shifted)
            np.bitwise_xor(state, shifted, out=state)
            np.multiply(state, _FACTOR, out=state)
            np.add(state, np.uint32(i), out=state)
            if i < reach + 2:
                self._low[i] = state
            if i >= 397:
                self._high[i - 397] = state

    def word(self, i: int, which: npt.NDArray[np.int64] | slice = slice(None)) -> Words:
        """Word i of the generators `which`."""
        y = (self._low[i, which] & _UPPER) | (self._low[i + 1, which] & _LOWER)
        z: Words = self._high[i, which] ^ (y >> _ONE) ^ ((y & _ONE) * _TWIST)
        z ^= z >> 11
        z ^= (z << 7) & _B
        z ^= (z << 15) & _C
        z ^= z >> 18
        return z


def first_words(seeds: Words, index: int) -> Words:
    """Word `index` of each seed's generator, shape (len(seeds),)."""
    result = np.empty_like(seeds)
    for start in range(0, len(seeds), CHUNK):
        part = slice(start, start + CHUNK)
        result[part] = Outputs(seeds[part], index).word(index)
    return result


def search(plan: Plan, seeds: Words) -> list[tuple[int, int]]:
    """Each (index into seeds, tag) whose probe holds."""
    found: list[tuple[int, int]] = []
    if not plan.roots:
        return found
    reach = int(plan.word.max())
    for start in range(0, len(seeds), CHUNK):
        outputs = Outputs(seeds[start : start + CHUNK], reach)
        hits: list[tuple[int, int]] = []
        for node in range(plan.roots):
            _descend(plan, outputs, node, slice(None), hits)
        found += [(start + at, tag) for at, tag in hits]
    return found


def _descend(
    plan: Plan, outputs: Outputs, node: int, which: npt.NDArray[np.int64] | slice, hits: list[tuple[int, int]]
) -> None:
    word = outputs.word(int(plan.word[node]), which)
    residue, shift = plan.residue[node], int(plan.shift[node])
    scaled = (word - residue) * plan.inverse[node]
    if shift:
        scaled = (scaled >> np.uint32(shift)) | (scaled << np.uint32(32 - shift))
    if shift == 32:
        scaled = word - residue
    held = np.flatnonzero((scaled <= plan.limit[node]) & (word >= residue))
    if not isinstance(which, slice):
        held = which[held]
    if len(held) == 0:
        return
    if plan.tag[node] >= 0:
        hits += [(at, int(plan.tag[node])) for at in held.tolist()]
    for below in range(int(plan.first[node]), int(plan.first[node + 1])):
        _descend(plan, outputs, below, held, hits)
