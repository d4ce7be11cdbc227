"""Seeds generators, and makes their first tests, as machine code: what of `mlfs.explain.try_seeds` takes the time.

In: seeds, first tests. Out: words of the seeded states; the seeds that pass a first test. Imported by
`mlfs.explain.try_seeds` only when numba is there. Many generators are seeded side by side, which the compiler turns
into vector instructions. numpy makes the other tests of the few seeds that pass.
"""

# numba has no types that mypy knows
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from mlfs.explain.question import WORD_VALUES, Condition
from mlfs.orders.shuffle import compiled

# So many that a vector's step is over before it is that vector's turn again, and so few that all stay in the
# first-level cache.
LANES = 256
_ROOM = 1 << 20
_STEP = np.uint32(1812433253)
_U = np.uint32
_inlined = numba.njit(nogil=True, inline="always")


def passing(tests: list[Condition], seeds: npt.NDArray[np.uint32]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """By number of a first test the seeds that pass it, as indices; a test may come more than once.

    The test "modulo" is made without a division: with modulus = odd << shift, w % modulus == residue exactly if
    rotr((w - residue) * odd^-1, shift) <= limit (Granlund and Montgomery 1994, section 9), but for w < residue.
    """
    shifts = [(test.modulus & -test.modulus).bit_length() - 1 for test in tests]
    inverses = [pow(test.modulus >> shift, -1, WORD_VALUES) for test, shift in zip(tests, shifts, strict=True)]
    limits = [(WORD_VALUES - 1 - test.residue) // test.modulus for test in tests]
    residues = [test.residue for test in tests]
    words = np.array([test.word for test in tests], dtype=np.int64)
    numbers = np.array([inverses, [shift % 32 for shift in shifts], limits, residues], dtype=np.uint32)
    held = np.empty((2, max(_ROOM, LANES * len(tests))), dtype=np.int64)
    at = 0
    while at < len(seeds):
        at, count = _first_held(seeds, at, words, numbers, held)
        which, of_test = held[:, :count]
        for number in np.unique(of_test).tolist():
            yield number, which[of_test == number]


@compiled
def seed(seeds: Any, low: Any, high: Any) -> None:
    """init_genrand: the first words of the states, and those from word 397 on, a row each."""
    state = np.empty(LANES, _U)
    for start in range(0, len(seeds), LANES):
        count = min(LANES, len(seeds) - start)
        state[:count] = seeds[start : start + count]
        for i in range(397 + len(high)):
            k = _U(i)
            if i > 0:
                for lane in range(LANES):
                    x = state[lane]
                    state[lane] = _U(_U(_STEP * _U(x ^ (x >> _U(30)))) + k)
            if i < len(low):
                for lane in range(count):
                    low[i, start + lane] = state[lane]
            if i >= 397:
                for lane in range(count):
                    high[i - 397, start + lane] = state[lane]


@_inlined
def _temper(low: Any, after: Any, high: Any, outputs: Any) -> None:
    for lane in range(LANES):
        y = _U((low[lane] & _U(0x80000000)) | (after[lane] & _U(0x7FFFFFFF)))
        z = _U(high[lane] ^ (y >> _U(1)) ^ _U(_U(0x9908B0DF) * (y & _U(1))))
        z = _U(z ^ (z >> _U(11)))
        z = _U(z ^ (_U(z << _U(7)) & _U(0x9D2C5680)))
        z = _U(z ^ (_U(z << _U(15)) & _U(0xEFC60000)))
        outputs[lane] = _U(z ^ (z >> _U(18)))


@_inlined
def _passes(outputs: Any, passes: Any, inverse: Any, shift: Any, limit: Any, residue: Any) -> Any:
    """Which lanes pass a first test, and whether any does."""
    some = False
    for lane in range(LANES):
        z = outputs[lane]
        scaled = _U(_U(z - residue) * inverse)
        turned = _U(_U(scaled >> _U(shift & _U(31))) | _U(scaled << _U((_U(32) - shift) & _U(31))))
        yes = (turned <= limit) & (z >= residue)
        passes[lane] = yes
        some |= yes
    return some


@compiled
def _first_held(seeds: Any, at: int, words: Any, numbers: Any, held: Any) -> Any:
    """Pairs (seed, test) that hold, from a seed on: until which seed, and how many; as many as there is room for."""
    reach, count = words.max(), 0
    low, high = np.empty((reach + 2, LANES), _U), np.empty((reach + 1, LANES), _U)
    outputs, passes = np.empty(LANES, _U), np.empty(LANES, np.uint8)
    while at < len(seeds) and count + LANES * len(words) <= held.shape[1]:
        lanes = min(LANES, len(seeds) - at)
        seed(seeds[at : at + lanes], low, high)
        last = -1
        for test in range(len(words)):
            if words[test] != last:
                last = words[test]
                _temper(low[last], low[last + 1], high[last], outputs)
            if _passes(outputs, passes, numbers[0, test], numbers[1, test], numbers[2, test], numbers[3, test]):
                for lane in range(lanes):
                    if passes[lane]:
                        held[0, count], held[1, count] = at + lane, test
                        count += 1
        at += lanes
    return at, count
