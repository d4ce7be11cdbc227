"""Tries seeds with numba: thirty to fifty million a second and core. The same as `mlfs.infer.search_numpy`, compiled.

In: a `Plan` and a range of seeds. Out: (seed, tag) of each probe that holds. Imported by `mlfs.infer.search` only when
numba is there. 64 generators are seeded side by side, which the compiler turns into vector instructions; of the seeded
state only the words that the plan needs are kept.
"""

# numba has no types that mypy knows
# mypy: disable-error-code="no-untyped-call, untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from mlfs.infer.probes import Plan

_LANES = 64
_DEEPEST = 4096
# A first test that holds for more than one in 2048 seeds (a limit is about 2^32 / modulus): it is quicker to make the
# words of the later tests for all lanes than one by one for those that pass.
_MOST_LIMIT = (1 << 32) // 2048
_STEP = np.uint32(1812433253)
_U = np.uint32


def search(plan: Plan, low: int, count: int, most: int) -> tuple[list[tuple[int, int]], int]:
    """Each (seed, tag) in low .. low + count - 1 (count a multiple of 64) whose probe holds, at most `most` of them.

    Returns them and how many there were in all.
    """
    seeds, tags = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    reach, first_reach = int(plan.word.max()), int(plan.word[: plan.roots].max())
    if int(plan.limit[: plan.roots].max()) > _MOST_LIMIT:
        first_reach = reach
    total = int(
        _search(
            low, count, first_reach, reach, plan.roots, plan.word, plan.inverse, plan.shift, plan.limit, plan.residue,
            plan.first, plan.tag, seeds, tags,
        )
    )  # fmt: skip
    kept = min(total, most)
    return list(zip(seeds[:kept].tolist(), tags[:kept].tolist(), strict=True)), total


@numba.njit(nogil=True, inline="always")
def _next_word(state: Any, i: int) -> None:
    k = _U(i)
    for lane in range(_LANES):
        x = state[lane]
        state[lane] = _U(_U(_STEP * _U(x ^ (x >> _U(30)))) + k)


@numba.njit(nogil=True)
def _seed_lanes(state: Any, low: Any, high: Any, reach: int) -> None:
    """init_genrand in all lanes, from the seeds in `state`: words 0 .. reach + 1 and 397 .. 397 + reach."""
    for lane in range(_LANES):
        low[0, lane] = state[lane]
    for i in range(1, reach + 2):
        _next_word(state, i)
        for lane in range(_LANES):
            low[i, lane] = state[lane]
    for i in range(reach + 2, 397):
        _next_word(state, i)
    for i in range(397, 398 + reach):
        _next_word(state, i)
        for lane in range(_LANES):
            high[i - 397, lane] = state[lane]


@numba.njit(nogil=True)
def _seed_one(seed: int, low: Any, high: Any, reach: int) -> None:
    """The same for one seed, into lane 0."""
    x = _U(seed)
    low[0, 0] = x
    for i in range(1, 398 + reach):
        x = _U(_U(_STEP * _U(x ^ (x >> _U(30)))) + _U(i))
        if i < reach + 2:
            low[i, 0] = x
        if i >= 397:
            high[i - 397, 0] = x


@numba.njit(nogil=True, inline="always")
def _temper(lower: Any, upper: Any, high: Any) -> Any:
    y = _U((lower & _U(0x80000000)) | (upper & _U(0x7FFFFFFF)))
    z = _U(high ^ (y >> _U(1)) ^ _U(_U(0x9908B0DF) * (y & _U(1))))
    z = _U(z ^ (z >> _U(11)))
    z = _U(z ^ (_U(z << _U(7)) & _U(0x9D2C5680)))
    z = _U(z ^ (_U(z << _U(15)) & _U(0xEFC60000)))
    return _U(z ^ (z >> _U(18)))


@numba.njit(nogil=True, inline="always")
def _holds(z: Any, inverse: Any, shift: Any, limit: Any, residue: Any) -> Any:
    scaled = _U(_U(z - residue) * inverse)
    turned = _U(_U(scaled >> _U(shift & _U(31))) | _U(scaled << _U((_U(32) - shift) & _U(31))))
    if shift == _U(0):
        turned = scaled
    if shift == _U(32):
        turned = _U(z - residue)
    return (turned <= limit) & (z >= residue)


@numba.njit(nogil=True)
def _below(node: int, lane: int, low: Any, high: Any, plan: Any, stack: Any, seed: int, out: Any, hits: int) -> int:
    """Walk the trie below a root that holds in one lane."""
    word, inverse, shift, limit, residue, first, tag = plan
    seeds, tags = out
    depth, stack[0] = 1, node
    while depth:
        depth -= 1
        at = stack[depth]
        i = word[at]
        z = _temper(low[i, lane], low[i + 1, lane], high[i, lane])
        if not _holds(z, inverse[at], shift[at], limit[at], residue[at]):
            continue
        if tag[at] >= 0:
            if hits < len(seeds):
                seeds[hits], tags[hits] = seed, tag[at]
            hits += 1
        for child in range(first[at], first[at + 1]):
            if depth < len(stack):
                stack[depth] = child
                depth += 1
    return hits


@numba.njit(nogil=True)
def _after_root(
    node: int, lane: int, low: Any, high: Any, reach: int, deep_low: Any, deep_high: Any, plan: Any, stack: Any,
    seed: int, out: Any, hits: int,
) -> int:  # fmt: skip
    """Walk the trie below a root that holds, with the words that it needs and not all lanes have."""
    if reach + 1 == len(high):
        return _below(node, lane, low, high, plan, stack, seed, out, hits)
    _seed_one(seed, deep_low, deep_high, reach)
    return _below(node, 0, deep_low, deep_high, plan, stack, seed, out, hits)


@numba.njit(nogil=True)
def _search(
    start: int, count: int, first_reach: int, reach: int, roots: int, word: Any, inverse: Any, shift: Any,
    limit: Any, residue: Any, first: Any, tag: Any, seeds: Any, tags: Any,
) -> int:  # fmt: skip
    state, outputs, held = np.empty(_LANES, _U), np.empty(_LANES, _U), np.empty(_LANES, np.uint8)
    low, high = np.empty((first_reach + 2, _LANES), _U), np.empty((first_reach + 1, _LANES), _U)
    deep_low, deep_high = np.empty((reach + 2, 1), _U), np.empty((reach + 1, 1), _U)
    stack = np.empty(_DEEPEST, np.int64)
    plan, out, hits = (word, inverse, shift, limit, residue, first, tag), (seeds, tags), 0
    for base in range(start, start + count, _LANES):
        for lane in range(_LANES):
            state[lane] = _U(base + lane)
        _seed_lanes(state, low, high, first_reach)
        last = -1
        for node in range(roots):
            i = word[node]
            if i != last:
                last = i
                for lane in range(_LANES):
                    outputs[lane] = _temper(low[i, lane], low[i + 1, lane], high[i, lane])
            inv, sh, lim, res = inverse[node], shift[node], limit[node], residue[node]
            some = False
            for lane in range(_LANES):
                yes = _holds(outputs[lane], inv, sh, lim, res)
                held[lane] = yes
                some |= yes
            if some:
                for lane in range(_LANES):
                    if held[lane]:
                        hits = _after_root(
                            node, lane, low, high, reach, deep_low, deep_high, plan, stack, base + lane, out, hits
                        )
    return hits
