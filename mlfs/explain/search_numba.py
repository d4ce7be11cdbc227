"""Tries seeds as `mlfs.explain.try_seeds` does, but as machine code: a hundred million a second and core.

In: tests, as a `Trie`, and seeds. Out: (index, tag) of each probe that holds. Imported by `mlfs.explain.try_seeds` only
when numba is there. Many generators are seeded side by side, which the compiler turns into vector instructions: all
seeds as far as the first tests need, and then, for each level of the trie, those that have passed the one above it.
"""

# numba has no types that mypy knows
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from mlfs.explain.question import WORD_VALUES, Condition, Trie
from mlfs.orders.shuffle import compiled

# So many that a vector's step is over before it is that vector's turn again, and so few that all stay in the
# first-level cache.
LANES = 256
_ROOM = 1 << 20
_STEP = np.uint32(1812433253)
_U = np.uint32
_inlined = numba.njit(nogil=True, inline="always")


@lru_cache(maxsize=1)
def _flat(trie: Trie) -> tuple[npt.NDArray[Any], ...]:
    """A trie as arrays: where the nodes begin that follow each; of each the word that is tested, the numbers of the
    test, and the tag. Those that follow node 0 are the first tests.

    The test "modulo" is made without a division: with modulus = odd << shift, w % modulus == residue exactly if
    rotr((w - residue) * odd^-1, shift) <= limit (Granlund and Montgomery 1994, section 9), but for w < residue.
    """
    nodes, tests, first = [trie], [Condition(0, 1, 0)], [1]
    for node in nodes:  # and those that are added meanwhile
        nodes += node.below.values()
        tests += node.below
        first.append(len(nodes))
    shifts = [(test.modulus & -test.modulus).bit_length() - 1 for test in tests]
    inverses = [pow(test.modulus >> shift, -1, WORD_VALUES) for test, shift in zip(tests, shifts, strict=True)]
    limits = [(WORD_VALUES - 1 - test.residue) // test.modulus for test in tests]
    numbers = [inverses, [shift % 32 for shift in shifts], limits, [test.residue for test in tests]]
    words, tags = [test.word for test in tests], [node.tag for node in nodes]
    return np.array(first), np.array(words), np.array(numbers, dtype=np.uint32), np.array(tags)


def search(trie: Trie, seeds: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Each (index into seeds, tag) whose probe holds."""
    first, words, numbers, tags = _flat(trie)
    most = int(np.diff(first).max())
    held = np.empty((2, max(_ROOM, LANES * most)), dtype=np.int64)
    found: list[tuple[int, int]] = []
    begun = 0
    while begun < len(seeds):
        begun, count = _first_held(seeds, begun, first, words, numbers, held)
        passed = held[:, :count].copy()
        while passed.size:
            ended = passed[:, tags[passed[1]] >= 0]
            found += zip(ended[0].tolist(), tags[ended[1]].tolist(), strict=True)
            parts, at = list[npt.NDArray[np.int64]](), 0
            while at < passed.shape[1]:
                at, count = _next_held(seeds, passed, at, trie.reach, first, words, numbers, most, held)
                parts.append(held[:, :count].copy())
            passed = np.concatenate(parts, axis=1)
    return found


@_inlined
def _seed(state: Any, low: Any, high: Any) -> None:
    """init_genrand in all lanes, from the seeds in `state`: the states' first words, and those from word 397 on."""
    for i in range(397 + len(high)):
        k = _U(i)
        if i > 0:
            for lane in range(LANES):
                x = state[lane]
                state[lane] = _U(_U(_STEP * _U(x ^ (x >> _U(30)))) + k)
        if i < len(low):
            for lane in range(LANES):
                low[i, lane] = state[lane]
        if i >= 397:
            for lane in range(LANES):
                high[i - 397, lane] = state[lane]


@_inlined
def _tempered(low: Any, after: Any, high: Any) -> Any:
    y = _U((low & _U(0x80000000)) | (after & _U(0x7FFFFFFF)))
    z = _U(high ^ (y >> _U(1)) ^ _U(_U(0x9908B0DF) * (y & _U(1))))
    z = _U(z ^ (z >> _U(11)))
    z = _U(z ^ (_U(z << _U(7)) & _U(0x9D2C5680)))
    z = _U(z ^ (_U(z << _U(15)) & _U(0xEFC60000)))
    return _U(z ^ (z >> _U(18)))


@_inlined
def _holds(z: Any, inverse: Any, shift: Any, limit: Any, residue: Any) -> Any:
    scaled = _U(_U(z - residue) * inverse)
    turned = _U(_U(scaled >> _U(shift & _U(31))) | _U(scaled << _U((_U(32) - shift) & _U(31))))
    return (turned <= limit) & (z >= residue)


@compiled
def _first_held(seeds: Any, at: int, first: Any, words: Any, numbers: Any, held: Any) -> Any:
    """Pairs (seed, first test) that hold, from a seed on: until which seed, and how many; as many as there is room
    for."""
    begin, end = first[0], first[1]
    reach, count = words[begin:end].max(), 0
    low, high, state = np.empty((reach + 2, LANES), _U), np.empty((reach + 1, LANES), _U), np.empty(LANES, _U)
    outputs, passes = np.empty(LANES, _U), np.empty(LANES, np.uint8)
    while at < len(seeds) and count + LANES * (end - begin) <= held.shape[1]:
        lanes, last = min(LANES, len(seeds) - at), -1
        state[:lanes] = seeds[at : at + lanes]
        _seed(state, low, high)
        for node in range(begin, end):
            if words[node] != last:
                last = words[node]
                for lane in range(LANES):
                    outputs[lane] = _tempered(low[last, lane], low[last + 1, lane], high[last, lane])
            some, inverse, shift = False, numbers[0, node], numbers[1, node]
            limit, residue = numbers[2, node], numbers[3, node]
            for lane in range(LANES):
                passes[lane] = yes = _holds(outputs[lane], inverse, shift, limit, residue)
                some |= yes
            for lane in range(lanes if some else 0):
                if passes[lane]:
                    held[0, count], held[1, count] = at + lane, node
                    count += 1
        at += lanes
    return at, count


@compiled
def _next_held(
    seeds: Any, passed: Any, at: int, reach: int, first: Any, words: Any, numbers: Any, most: int, held: Any
) -> Any:
    """The same of the tests that follow those of the pairs `passed`, from one of these on."""
    count = 0
    low, high, state = np.empty((reach + 2, LANES), _U), np.empty((reach + 1, LANES), _U), np.empty(LANES, _U)
    while at < passed.shape[1] and count + LANES * most <= held.shape[1]:
        lanes = min(LANES, passed.shape[1] - at)
        for lane in range(lanes):
            state[lane] = seeds[passed[0, at + lane]]
        _seed(state, low, high)
        for lane in range(lanes):
            node = passed[1, at + lane]
            for below in range(first[node], first[node + 1]):
                i = words[below]
                z = _tempered(low[i, lane], low[i + 1, lane], high[i, lane])
                if _holds(z, numbers[0, below], numbers[1, below], numbers[2, below], numbers[3, below]):
                    held[0, count], held[1, count] = passed[0, at + lane], below
                    count += 1
        at += lanes
    return at, count
