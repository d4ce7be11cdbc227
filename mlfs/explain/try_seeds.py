"""Tries seeds: ten million a second and core, whole columns at a time; ten times as many where numba is installed.

In: tests on the first words of a seed's generator, as a `Trie`, and seeds. Out: (index, tag) of each probe that holds.
Called by `mlfs.explain.search` and `mlfs.explain.word_search`. Seeding takes nearly all of the time: so generators are
seeded as far as the first tests need, and those that pass one are seeded anew as far as the trie goes. With numba
`mlfs.explain.search_numba` does the same, if there is enough to do. Source of the generator: init_genrand and
genrand_int32 of mt19937ar.c, which torch's MT19937RNGEngine.h repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.explain.question import Condition, Trie
from mlfs.orders.mt19937 import TorchWords

Words = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]
WordOf = Callable[..., Words]
"""Gives word number i of all generators, or of those at some places."""
CHUNK = 1 << 16  # the state of that many seeds stays in the second-level cache

# Arrays of no dimension: numpy takes them without converting them at each call.
_FACTOR, _THIRTY = np.array(1812433253, dtype=np.uint32), np.array(30, dtype=np.uint32)
_NUMBERS = [np.array(i, dtype=np.uint32) for i in range(624)]
_LINE, _ALL, _WORD = 16, slice(None), 0xFFFFFFFF
_WORDS_AT_ONCE = 1 << 22
_FEW = 64  # generators that are made one by one in less time than side by side
_ONE = np.uint32(1)
_UPPER, _LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_TWIST, _B, _C = np.uint32(0x9908B0DF), np.uint32(0x9D2C5680), np.uint32(0xEFC60000)


def _aligned(count: int) -> Words:
    """Room for `count` words that begins where a cache line does: worth a tenth of the time."""
    room = np.empty(count + _LINE, dtype=np.uint32)
    return room[-(room.ctypes.data // room.itemsize) % _LINE :][:count]


def _seed(seeds: Words, low: Words, high: Words) -> None:
    """init_genrand of all seeds: the first words of the states, and those from word 397 on, a row each."""
    state, shifted = _aligned(len(seeds)), _aligned(len(seeds))
    state[:] = low[0] = seeds
    for i in range(1, 397 + len(high)):
        np.right_shift(state, _THIRTY, shifted)
        np.bitwise_xor(state, shifted, state)
        np.multiply(state, _FACTOR, state)
        np.add(state, _NUMBERS[i], state)
        if i < len(low):
            low[i] = state
        if i >= 397:
            high[i - 397] = state


class Outputs:
    """The first words of many generators, made when asked for.

    Args:
        seeds: uint32, one generator each.
        reach: the highest word that will be asked for.
    """

    def __init__(self, seeds: Words, reach: int) -> None:
        self._words: Words | None = None
        if len(seeds) <= _FEW:
            self._words = np.array([TorchWords(seed).take(reach + 1) for seed in seeds.tolist()], dtype=np.uint32).T
            return
        self._low = np.empty((reach + 2, len(seeds)), dtype=np.uint32)
        self._high = np.empty((reach + 1, len(seeds)), dtype=np.uint32)
        _seed(seeds, self._low, self._high)

    def word(self, i: Any, which: Places | slice = _ALL) -> Words:
        """Word i of the generators `which`."""
        if self._words is not None:
            return self._words[i, which]
        y = (self._low[i, which] & _UPPER) | (self._low[i + 1, which] & _LOWER)
        z: Words = self._high[i, which] ^ (y >> _ONE) ^ ((y & _ONE) * _TWIST)
        z ^= z >> 11
        z ^= (z << 7) & _B
        z ^= (z << 15) & _C
        z ^= z >> 18
        return z


def first_words(seeds: Words, *numbers: int) -> list[Words]:
    """Some of the first words of each seed's generator, by their numbers; each of shape (len(seeds),)."""
    found = [np.empty_like(seeds) for _ in numbers]
    for start in range(0, len(seeds), CHUNK):
        part = slice(start, start + CHUNK)
        outputs = Outputs(seeds[part], max(numbers))
        for words, number in zip(found, numbers, strict=True):
            words[part] = outputs.word(number)
    return found


def search(trie: Trie, seeds: Words, quick: bool = False, begun: Words | None = None) -> list[tuple[int, int]]:
    """Each (index into seeds, tag) whose probe holds.

    Args:
        quick: whether numba is installed, and worth compiling for.
        begun: the first word of each seed's generator, where it is known: most seeds are told by it alone.
    """
    if quick and trie.below:  # an extra: it is imported only when it is needed
        from mlfs.explain import search_numba

        return search_numba.search(trie, seeds)
    held: dict[Condition, list[Places]] = {test: [np.empty(0, dtype=np.int64)] for test in trie.below}
    first_reach = max((test.word for test in held), default=0)
    for start in range(0, len(seeds) if held else 0, CHUNK):
        chunk = slice(start, start + CHUNK)
        known = None if begun is None or first_reach else _as_word(begun[chunk])
        for test, at in _passing(held, known or Outputs(seeds[chunk], first_reach).word):
            held[test].append(at + start)
    passed = {test: np.concatenate(parts) for test, parts in held.items()}
    which = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *passed.values()]))
    size, found = min(CHUNK, _WORDS_AT_ONCE // (trie.reach + 1)), list[tuple[int, int]]()
    for start in range(0, len(which), size):
        part = which[start : start + size]
        outputs = Outputs(seeds[part], trie.reach)
        for test, at in passed.items():
            inside = at[slice(*np.searchsorted(at, (part[0], part[-1] + 1)))]
            hits = _holding(trie.below[test], outputs.word, np.searchsorted(part, inside))
            found += [(int(part[index]), tag) for index, tag in hits]
    return found


def _as_word(words: Words) -> WordOf:
    """The one word of each generator that is known."""
    return lambda _, which=_ALL: words[which]


def search_words(trie: Trie, words: Words, count: int) -> list[tuple[int, int]]:
    """The same of places in the words of one generator: each of the first `count`, with the words that follow it."""

    def word_of(i: Any, which: Places | slice = _ALL) -> Words:
        return words[i : i + count] if isinstance(which, slice) else words[which + i]

    return [hit for test, at in _passing(trie.below, word_of) for hit in _holding(trie.below[test], word_of, at)]


def _passing(tests: Iterable[Condition], word_of: WordOf) -> Iterator[tuple[Condition, Places]]:
    """By first test the generators that pass it."""
    known, rest = (-1, 0), np.empty(0, dtype=np.uint32)
    for test in tests:
        if known != test[:2]:
            known, words, divisor = test[:2], word_of(test.word), np.uint32(test.modulus & _WORD)
            # numpy divides by a number in a fraction of the time in which it takes the rest.
            rest = words - words // divisor * divisor if divisor else words
        yield test, np.flatnonzero(rest == test.residue)


def _holding(trie: Trie, word_of: WordOf, which: Places) -> list[tuple[int, int]]:
    """Each (place, tag) whose probe holds, of the generators at these places."""
    found = [] if trie.tag < 0 else [(at, trie.tag) for at in which.tolist()]
    if trie.below and len(which):
        word, modulus, residue = trie.tests
        for held, below in zip(word_of(word, which) % modulus == residue, trie.below.values(), strict=True):
            found += _holding(below, word_of, which[held])
    return found
