"""Tries seeds with numpy alone: ten million a second and core, whole columns at a time.

In: a `Trie` and seeds. Out: (seed, tag) of each probe that holds. Called by `mlfs.explain.search`, for small ranges (it
needs no compiling) and where numba is not installed. Source of the generator: init_genrand and genrand_int32 of
mt19937ar.c, which torch's MT19937RNGEngine.h repeats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.explain.question import Trie

Words = npt.NDArray[np.uint32]
CHUNK = 1 << 16  # the state of that many seeds stays in the second-level cache

# Arrays of no dimension: numpy takes them without converting them at each call.
_FACTOR, _THIRTY = np.array(1812433253, dtype=np.uint32), np.array(30, dtype=np.uint32)
_NUMBERS = [np.array(i, dtype=np.uint32) for i in range(624)]
_LINE = 16
_WORDS_AT_ONCE = 1 << 22
_ONE = np.uint32(1)
_UPPER, _LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_TWIST, _B, _C = np.uint32(0x9908B0DF), np.uint32(0x9D2C5680), np.uint32(0xEFC60000)


def _aligned(count: int) -> Words:
    """Room for `count` words that begins where a cache line does: worth a tenth of the time."""
    room = np.empty(count + _LINE, dtype=np.uint32)
    start = -(room.ctypes.data // room.itemsize) % _LINE
    return room[start : start + count]


class Outputs:
    """The first words of many generators, made when asked for.

    Args:
        seeds: uint32, one generator each.
        reach: the highest word that will be asked for.
    """

    def __init__(self, seeds: Words, reach: int) -> None:
        self._low = np.empty((reach + 2, len(seeds)), dtype=np.uint32)
        self._high = np.empty((reach + 1, len(seeds)), dtype=np.uint32)
        state, shifted = _aligned(len(seeds)), _aligned(len(seeds))
        state[:] = self._low[0] = seeds
        for i in range(1, 398 + reach):
            np.right_shift(state, _THIRTY, shifted)
            np.bitwise_xor(state, shifted, state)
            np.multiply(state, _FACTOR, state)
            np.add(state, _NUMBERS[i], state)
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


def search(trie: Trie, seeds: Words) -> list[tuple[int, int]]:
    """Each (index into seeds, tag) whose probe holds."""
    passed = _passed(trie, seeds)
    if not passed:
        return []
    which = np.unique(np.concatenate(list(passed.values())))
    reach = int(trie.word.max())
    found: list[tuple[int, int]] = []
    size = min(CHUNK, _WORDS_AT_ONCE // (reach + 1))
    for start in range(0, len(which), size):
        part = which[start : start + size]
        outputs = Outputs(seeds[part], reach)
        hits: list[tuple[int, int]] = []
        for node, indices in passed.items():
            inside = indices[(indices >= part[0]) & (indices <= part[-1])]
            _descend(trie, outputs, node, np.searchsorted(part, inside), hits)
        found += [(int(part[at]), tag) for at, tag in hits]
    return found


def _passed(trie: Trie, seeds: Words) -> dict[int, npt.NDArray[np.int64]]:
    """The seeds that pass a first test, by first test. As these are few, few words are made for the other tests."""
    passed: dict[int, list[npt.NDArray[np.int64]]] = {}
    for start in range(0, len(seeds) if trie.roots else 0, CHUNK):
        outputs = Outputs(seeds[start : start + CHUNK], int(trie.word[: trie.roots].max()))
        at, word = -1, seeds
        for node in range(trie.roots):
            if trie.word[node] != at:
                at = int(trie.word[node])
                word = outputs.word(at)
            held = _holding(trie, node, word)
            if len(held):
                passed.setdefault(node, []).append(held + start)
    return {node: np.concatenate(held) for node, held in passed.items()}


def _holding(trie: Trie, node: int, word: Words) -> npt.NDArray[np.int64]:
    """For which of the words the node's test holds."""
    residue, shift = trie.residue[node], int(trie.shift[node])
    scaled: Words = word - residue
    if shift < 32:
        scaled *= trie.inverse[node]
    if 0 < shift < 32:
        scaled = (scaled >> np.uint32(shift)) | (scaled << np.uint32(32 - shift))
    held = np.flatnonzero(scaled <= trie.limit[node])
    fitting: npt.NDArray[np.int64] = held[word[held] >= residue]
    return fitting


def _descend(
    trie: Trie, outputs: Outputs, node: int, which: npt.NDArray[np.int64], hits: list[tuple[int, int]]
) -> None:
    held = which[_holding(trie, node, outputs.word(int(trie.word[node]), which))]
    if len(held) == 0:
        return
    if trie.tag[node] >= 0:
        hits += [(at, int(trie.tag[node])) for at in held.tolist()]
    for below in range(int(trie.first[node]), int(trie.first[node + 1])):
        _descend(trie, outputs, below, held, hits)
