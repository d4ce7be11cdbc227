"""Tries seeds with numba: a hundred million a second and core. The same as `mlfs.explain.search_numpy`, compiled.

In: a `Trie` and seeds. Out: (index, tag) of each probe that holds. Imported by `mlfs.explain.search_stages` only when
numba is there. Many generators are seeded side by side, which the compiler turns into vector instructions: as far as
the first tests need; and those that pass one are gathered until there are as many again, and seeded as far as the trie
goes.
"""

# numba has no types that mypy knows
# mypy: disable-error-code="no-untyped-call, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from mlfs.explain.question import Trie

# So many that a vector's step is over before it is that vector's turn again, and so few that all stay in the
# first-level cache.
LANES = 256
_DEEPEST = 4096
_STEP = np.uint32(1812433253)
_U = np.uint32


_inlined = numba.njit(nogil=True, inline="always")


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the machine code
        return numba.njit(nogil=True)(function)


def search(trie: Trie, seeds: npt.NDArray[np.uint32], most: int = 1 << 16) -> list[tuple[int, int]]:
    """Each (index into seeds, tag) whose probe holds, at most `most` of them."""
    if not trie.roots or not len(seeds):
        return []
    indices, tags = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    reach, first_reach = int(trie.word.max()), int(trie.word[: trie.roots].max())
    total = _search(seeds, first_reach, reach, trie.roots, tuple(trie[:-1]), (indices, tags))
    kept = min(int(total), most)
    return list(zip(indices[:kept].tolist(), tags[:kept].tolist(), strict=True))


@_compiled
def _seed_lanes(state: Any, low: Any, high: Any, reach: int) -> None:
    """init_genrand in all lanes, from the seeds in `state`: words 0 .. reach + 1 and 397 .. 397 + reach."""
    for i in range(398 + reach):
        k = _U(i)
        if i > 0:
            for lane in range(LANES):
                x = state[lane]
                state[lane] = _U(_U(_STEP * _U(x ^ (x >> _U(30)))) + k)
        if i < reach + 2:
            for lane in range(LANES):
                low[i, lane] = state[lane]
        if i >= 397:
            for lane in range(LANES):
                high[i - 397, lane] = state[lane]


@_inlined
def _temper(lower: Any, upper: Any, high: Any) -> Any:
    y = _U((lower & _U(0x80000000)) | (upper & _U(0x7FFFFFFF)))
    z = _U(high ^ (y >> _U(1)) ^ _U(_U(0x9908B0DF) * (y & _U(1))))
    z = _U(z ^ (z >> _U(11)))
    z = _U(z ^ (_U(z << _U(7)) & _U(0x9D2C5680)))
    z = _U(z ^ (_U(z << _U(15)) & _U(0xEFC60000)))
    return _U(z ^ (z >> _U(18)))


@_inlined
def _holds(z: Any, inverse: Any, shift: Any, limit: Any, residue: Any) -> Any:
    scaled = _U(_U(z - residue) * inverse)
    turned = _U(_U(scaled >> _U(shift & _U(31))) | _U(scaled << _U((_U(32) - shift) & _U(31))))
    if shift == _U(0):
        turned = scaled
    if shift == _U(32):
        turned = _U(z - residue)
    return (turned <= limit) & (z >= residue)


@_compiled
def _below(node: int, lane: int, words: Any, trie: Any, stack: Any, index: int, out: Any, hits: int) -> int:
    """Walk the trie from a root that holds in one lane."""
    low, high = words
    word, inverse, shift, limit, residue, first, tag = trie
    indices, tags = out
    depth, stack[0] = 1, node
    while depth:
        depth -= 1
        at = stack[depth]
        i = word[at]
        z = _temper(low[i, lane], low[i + 1, lane], high[i, lane])
        if not _holds(z, inverse[at], shift[at], limit[at], residue[at]):
            continue
        if tag[at] >= 0:
            if hits < len(indices):
                indices[hits], tags[hits] = index, tag[at]
            hits += 1
        for child in range(first[at], first[at + 1]):
            if depth < len(stack):
                stack[depth] = child
                depth += 1
    return hits


@_compiled
def _walk(
    seeds: Any, waiting: Any, count: int, words: Any, reach: int, trie: Any, stack: Any, out: Any, hits: int
) -> int:
    """Walk the trie for those that passed a first test: `count` of them, at most as many as there are lanes."""
    state = np.zeros(LANES, _U)
    for lane in range(count):
        state[lane] = seeds[waiting[0, lane]]
    _seed_lanes(state, words[0], words[1], reach)
    for lane in range(count):
        hits = _below(waiting[1, lane], lane, words, trie, stack, waiting[0, lane], out, hits)
    return hits


@_inlined
def _move_up(waiting: Any, count: int) -> None:
    """Those beyond the lanes come next."""
    for at in range(count):
        waiting[0, at], waiting[1, at] = waiting[0, LANES + at], waiting[1, LANES + at]


@_inlined
def _passing(node: int, outputs: Any, held: Any, trie: Any) -> bool:
    """Which lanes pass a first test, and whether any does."""
    inverse, shift, limit, residue = trie[1][node], trie[2][node], trie[3][node], trie[4][node]
    some = False
    for lane in range(LANES):
        yes = _holds(outputs[lane], inverse, shift, limit, residue)
        held[lane] = yes
        some |= yes
    return some


@_compiled
def _search(seeds: Any, first_reach: int, reach: int, roots: int, trie: Any, out: Any) -> int:
    state, outputs, held = np.empty(LANES, _U), np.empty(LANES, _U), np.empty(LANES, np.uint8)
    low, high = np.empty((first_reach + 2, LANES), _U), np.empty((first_reach + 1, LANES), _U)
    words = (np.empty((reach + 2, LANES), _U), np.empty((reach + 1, LANES), _U))
    stack, waiting = np.empty(_DEEPEST, np.int64), np.empty((2, 2 * LANES), np.int64)
    # Not plain constants: a function is compiled anew for each of those.
    count: Any = np.int64(0)
    hits: Any = np.int64(0)
    full: Any = np.int64(LANES)
    for base in range(0, len(seeds), LANES):
        lanes = min(LANES, len(seeds) - base)
        for lane in range(lanes):
            state[lane] = seeds[base + lane]
        _seed_lanes(state, low, high, first_reach)
        last = -1
        for node in range(roots):
            i = trie[0][node]
            if i != last:
                last = i
                for lane in range(LANES):
                    outputs[lane] = _temper(low[i, lane], low[i + 1, lane], high[i, lane])
            if not _passing(node, outputs, held, trie):
                continue
            for lane in range(lanes):
                if held[lane]:
                    waiting[0, count], waiting[1, count] = base + lane, node
                    count += 1
            if count >= LANES:
                hits = _walk(seeds, waiting, full, words, reach, trie, stack, out, hits)
                count -= LANES
                _move_up(waiting, count)
    return _walk(seeds, waiting, count, words, reach, trie, stack, out, hits)
