"""Conditions on the first words of a seed's generator, by which seeds are told that cannot be right.

In: probes, each a chain of tests "word i, modulo m, is r". Out: a `Trie`, flat arrays that the searches walk. Made by
`mlfs.explain.question`, compiled by `mlfs.explain.search`.

Why conditions on words are exact. torch's randperm takes j_i = i + word_i % (n - i) and swaps positions i and j_i. A
value v stands at position v until the first step i with j_i = v, which puts it to position i for good if i <= v. So
"value v >= i stands at position i" needs word_i % (n - i) == v - i. Values smaller than their position have come there
in other ways: they are no test, and are left to `mlfs.explain.confirm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Output i of MT19937 is made of the seeded state's words i, i + 1 and i + 397; from 227 on, of twisted ones.
WORDS_IN_REACH = 227
WORD_VALUES = 1 << 32


class Condition(NamedTuple):
    """Word number `word` of the generator, modulo `modulus`, is `residue`."""

    word: int
    modulus: int
    residue: int


class Probe(NamedTuple):
    """Tests that must all hold.

    Attributes:
        tag: what it means if they do: an index into whatever the caller keeps.
    """

    tag: int
    tests: tuple[Condition, ...]


class Trie(NamedTuple):
    """A trie of tests, breadth first: node x holds a test, and is followed by nodes first[x] .. first[x + 1] - 1.

    Attributes:
        word: int64, which word. inverse, shift, limit, residue: uint32, the test "modulo" without a division: with
            modulus = odd << shift, w % modulus == residue exactly if rotr((w - residue) * odd^-1, shift) <= limit
            (Granlund and Montgomery 1994, section 9), but for w < residue, which is tested apart.
        first: int64, one more than nodes. tag: int64, -1 for nodes that end no probe.
        roots: the nodes 0 .. roots - 1 are the first tests.
    """

    word: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.uint32]
    shift: npt.NDArray[np.uint32]
    limit: npt.NDArray[np.uint32]
    residue: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]
    tag: npt.NDArray[np.int64]
    roots: int


def compile_trie(probes: Iterable[Probe]) -> Trie:
    """The trie of the probes: tests that several probes begin with are made once.

    Raises:
        ValueError: a word out of reach, a residue outside of its modulus, or a probe without tests.
    """
    level = [(probe.tests, probe.tag) for probe in probes]
    nodes: list[Condition] = []
    tags: list[int] = []
    first: list[int] = []
    groups = [level]
    roots = -1
    while groups:  # one round a level
        below: list[list[tuple[tuple[Condition, ...], int]]] = []
        starts = len(nodes) + sum(len({tests[0] for tests, _ in group}) for group in groups)
        for group in groups:
            for test, rest in _grouped(group):
                nodes.append(_checked(test))
                tags.append(next((tag for tests, tag in rest if not tests), -1))
                longer = [(tests, tag) for tests, tag in rest if tests]
                first.append(starts)
                starts += len({tests[0] for tests, _ in longer})
                if longer:
                    below.append(longer)
        roots = len(nodes) if roots < 0 else roots
        groups = below
    return _arrays(nodes, [*first, len(nodes)], tags, max(0, roots))


def _grouped(
    group: list[tuple[tuple[Condition, ...], int]],
) -> list[tuple[Condition, list[tuple[tuple[Condition, ...], int]]]]:
    """Group probes by their first test, in the order of its word; each probe is left with the rest of its tests."""
    found: dict[Condition, list[tuple[tuple[Condition, ...], int]]] = {}
    for tests, tag in group:
        if not tests:
            raise ValueError("a probe without tests says nothing")
        found.setdefault(tests[0], []).append((tests[1:], tag))
    return sorted(found.items(), key=lambda item: item[0])


def _checked(test: Condition) -> Condition:
    if not 0 <= test.word < WORDS_IN_REACH or not 0 <= test.residue < test.modulus <= WORD_VALUES:
        raise ValueError(f"{test} cannot be tested")
    return test


def _arrays(nodes: Sequence[Condition], first: Sequence[int], tags: Sequence[int], roots: int) -> Trie:
    shifts = [(test.modulus & -test.modulus).bit_length() - 1 for test in nodes]
    inverses = [pow(test.modulus >> s, -1, WORD_VALUES) for test, s in zip(nodes, shifts, strict=True)]
    return Trie(
        np.array([test.word for test in nodes], dtype=np.int64),
        np.array(inverses, dtype=np.uint32),
        np.array(shifts, dtype=np.uint32),
        np.array([(WORD_VALUES - 1 - test.residue) // test.modulus for test in nodes], dtype=np.uint32),
        np.array([test.residue for test in nodes], dtype=np.uint32),
        np.array(first, dtype=np.int64),
        np.array(tags, dtype=np.int64),
        roots,
    )
