"""The ways in which a seed's permutation may have been read, and what each demands of the seed.

In: for each data set that it may be (a layout of a directory) the first reads of each process, as dataset indices. Out:
`Reading`s, the likely ones and the rest, and a probe for each: a chain of tests "word i, modulo m, is r". Probes make a
`Trie`, which the searches walk. Called by `mlfs.explain.search`.

A process that reads for rank r of `world` ranks reads, in order, positions r + world * s of the epoch's permutation,
with s = 0, 1, 2, ... for a process that reads all of its rank's batches, and s = (i // batch) * batch * workers +
i % batch for the first of several workers (torch/utils/data/dataloader.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from math import log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.explain.chance import SEED_BITS, bits_of_distinct
from mlfs.orders.order import Indices

# -- conditions on the first words of a seed's generator, by which seeds are told that cannot be right
#
# Why conditions on words are exact. torch's randperm takes j_i = i + word_i % (n - i) and swaps positions i and j_i. A
# value v stands at position v until the first step i with j_i = v, which puts it to position i for good if i <= v. So
# "value v >= i stands at position i" needs word_i % (n - i) == v - i. Values smaller than their position have come
# there in other ways: they are no test, and are left to `mlfs.explain.confirm`.

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


class Trie:
    """A trie of tests, in the order of their words: those that several probes begin with are made once.

    Its branches are made when somebody comes to them: nobody comes to most of them where few seeds are tried.

    Args:
        probes: in the order of their tests, which agree up to the depth.

    Attributes:
        tag: of the first probe that ends here, -1 for none.
    """

    def __init__(self, probes: Sequence[Probe], depth: int = 0) -> None:
        self.tag = next((probe.tag for probe in probes if len(probe.tests) == depth), -1)
        self._probes, self._depth = probes, depth

    @cached_property
    def below(self) -> dict[Condition, Trie]:
        """The tries that follow, by the next test."""
        depth, alike = self._depth, dict[Condition, list[Probe]]()
        for probe in self._probes:
            if len(probe.tests) > depth:
                alike.setdefault(probe.tests[depth], []).append(probe)
        return {test: Trie(probes, depth + 1) for test, probes in alike.items()}

    @cached_property
    def reach(self) -> int:
        """The highest word of all tests below."""
        return max((test.word for probe in self._probes for test in probe.tests[self._depth :]), default=0)

    @cached_property
    def tests(self) -> npt.NDArray[np.int64]:
        """The next tests' words, moduli and residues, a column each: shape (3, len(below), 1)."""
        return np.array(list(self.below), dtype=np.int64).T[:, :, np.newaxis]


def compile_trie(probes: Iterable[Probe]) -> Trie:
    """The trie of the probes; of several that have the same tests, that of the first."""
    return Trie(sorted(probes, key=lambda probe: probe.tests))


# -- the ways in which a permutation may have been read


FEWEST_READS = 10
# With fewer samples half of an epoch would be over before the reads tell 80 bits.
FEWEST_SAMPLES = 40
NEVER = 1 << 62
# A seed that passes eight tests has passed 64 bits of them in a data set of 256 samples: further ones would only slow
# the search down, and all reads are checked again in `confirm`.
MOST_TESTS = 8
# Processes whose first reads are searched with: two ranks with eight workers each.
MOST_HEADS = 16
# Tests may let so many bits of chance pass as make `confirm`, which is slow, look at about a thousand seeds.
_BITS_LEFT_TO_CONFIRM = 10

# World sizes, small batches and numbers of workers that are tried: those that people use. A batch of nine or more needs
# no place of its own here, as a process' first reads show no gap then.
_WORLDS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 112)
_SMALL_BATCHES = range(2, 9)
_WORKERS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_MOST_RANKS_WITH_SMALL_BATCHES = 8
_HEADS_WITH_SMALL_BATCHES = 4  # the first that begin: one of them is a rank's first worker
_LATE_HEADS = 2  # that may have read something else first
# Some process of a node of several ranks with several workers each is a rank's first worker.
_HEADS_OF_OTHER_NODES, _HEADS_OF_LARGE_WORLDS, _LARGE_WORLD = 8, 4, 16
_WITHOUT_GAP = 8  # reads that come without a gap where the batch is no small one
_MOST_RANK = 64
MOST_SKIPPED = 4
"""Reads of a process before its first epoch: a look at a sample or two."""
# A DataLoader whose generator is the sampler's draws its base_seed from it first: 2 words.
SHARED_GENERATOR_WORDS = 2


class DataSet(NamedTuple):
    """The first reads, if the data set is this one.

    Attributes:
        n: its samples.
        heads: for each process, in the order of their first reads, the dataset indices it read first.
        groups: by dataset index, a number for the directory, which is often the sample's label; None where all samples
            lie in one, or nobody asks.
    """

    n: int
    heads: tuple[tuple[int, ...], ...]
    groups: npt.NDArray[np.int32] | None = None

    @property
    def read(self) -> Iterator[int]:
        return chain.from_iterable(self.heads)

    def numbered(self, place: Indices, n: int) -> DataSet:
        """The same reads of a data set of n samples. Args: place: there, by dataset index."""
        return DataSet(n, tuple(tuple(place[list(head)].tolist()) for head in self.heads))


def places_of(stream: npt.NDArray[np.int32] | Indices, wanted: Iterable[int]) -> dict[int, int]:
    """The first place of some numbers in a stream; those that are not in it are left out."""
    at = np.flatnonzero(np.isin(stream, np.unique(np.fromiter(wanted, dtype=np.int64))))
    return dict(zip(stream[at][::-1].tolist(), at[::-1].tolist(), strict=True))


def read_in(order: npt.NDArray[np.int32] | Indices, data_set: DataSet) -> DataSet:
    """The first reads as places in an order of the data set; -1 for what is not in it.

    A sample that comes up again has the first place behind that of the process' read before, if there is one.
    """
    place = np.full(data_set.n, -1, dtype=np.int64)
    place[order[::-1]] = np.arange(len(order) - 1, -1, -1)  # of those that are assigned to one sample the last stays
    found = data_set.numbered(place, len(order))
    if np.count_nonzero(place >= 0) == len(order):
        return found
    again, heads = dict[int, list[int]](), list[tuple[int, ...]]()
    for at in np.flatnonzero(np.isin(order, np.unique(list(data_set.read)))).tolist():
        again.setdefault(int(order[at]), []).append(at)
    for head, first in zip(data_set.heads, found.heads, strict=True):
        places: list[int] = []
        for value, at in zip(head, first, strict=True):
            behind = places[-1] if places else -1
            places.append(next((other for other in again.get(value, ()) if other > behind), at))
        heads.append(tuple(places))
    return found._replace(heads=tuple(heads))


class Reading(NamedTuple):
    """One way in which a seed's permutation may have been read.

    Attributes:
        data_set, head: which process of which data set reads from the start of an epoch.
        skipped: its reads before that, such as a look at the first sample.
        words_before: words drawn from the generator before the permutation.
        rank, world: it reads for. batch, workers: 0 and 1 while it reads without gaps.
    """

    data_set: int
    head: int
    skipped: int
    words_before: int
    rank: int
    world: int
    batch: int
    workers: int


def reads_needed(n: int) -> int:
    """How many reads of one process tell a seed from chance. The last of them need not fit: see `confirm`."""
    if n < FEWEST_SAMPLES:
        return NEVER
    reads = FEWEST_READS
    while bits_of_distinct(n, reads - 1) < SEED_BITS:
        reads += 1
    return reads


def step(i: int, batch: int, workers: int) -> int:
    """Position in its rank's stream of the i-th read of a rank's first worker."""
    return i if not batch else (i // batch) * batch * workers + i % batch


def likely(data_sets: Iterable[DataSet]) -> list[Reading]:
    """The ways in which rank 0 reads on this node."""
    return [h for d, data_set in enumerate(data_sets) for h in _likely_of(d, tuple(map(len, data_set.heads)))]


@lru_cache(maxsize=16)
def _likely_of(d: int, lengths: tuple[int, ...]) -> tuple[Reading, ...]:
    return tuple(_likely_by_head(d, lengths))


def _likely_by_head(d: int, lengths: tuple[int, ...]) -> Iterator[Reading]:
    for head, length in enumerate(lengths[:MOST_HEADS]):
        few = head < _HEADS_WITH_SMALL_BATCHES
        for world in _WORLDS:
            yield Reading(d, head, 0, 0, 0, world, 0, 1)
            if few and world <= _MOST_RANKS_WITH_SMALL_BATCHES:
                yield from (Reading(d, head, 0, 0, 0, world, b, w) for b in _SMALL_BATCHES for w in _WORKERS)
        if few:
            shared = SHARED_GENERATOR_WORDS
            yield Reading(d, head, 0, shared, 0, 1, 0, 1)
            yield from (Reading(d, head, 0, shared, 0, 1, b, w) for b in _SMALL_BATCHES for w in _WORKERS)
        if head < _LATE_HEADS:
            for skipped in range(1, min(MOST_SKIPPED, length - FEWEST_READS) + 1):
                yield from (Reading(d, head, skipped, words, 0, 1, 0, 1) for words in (0, SHARED_GENERATOR_WORDS))


def unlikely(data_sets: Iterable[DataSet]) -> list[Reading]:
    """The ways in which only other ranks than rank 0 read on this node: it is one of several."""
    return [
        Reading(d, head, 0, 0, rank, world, 0, 1)
        for d, data_set in enumerate(data_sets)
        for head in range(min(_HEADS_OF_OTHER_NODES, len(data_set.heads)))
        for world in _WORLDS
        if head < _HEADS_OF_LARGE_WORLDS or world <= _LARGE_WORLD
        for rank in range(1, min(world, _MOST_RANK))
    ]


def probes(data_sets: list[DataSet], readings: list[Reading]) -> list[Probe]:
    """A probe for each way of reading, tagged by its index, but for those that many seeds would pass by chance."""
    found = []
    bits_needed = 32 + log2(max(2, len(readings))) - _BITS_LEFT_TO_CONFIRM
    for tag, reading in enumerate(readings):
        tests = _tests(data_sets[reading.data_set], reading)
        if sum(log2(test.modulus) for test in tests) >= bits_needed:
            found.append(Probe(tag, tests))
    return found


def _tests(data_set: DataSet, reading: Reading) -> tuple[Condition, ...]:
    h, n = reading, data_set.n
    tests: list[Condition] = []
    values = data_set.heads[h.head][h.skipped :]
    for value, position in zip(values, _positions(h.rank, h.world, h.batch, h.workers, len(values)), strict=False):
        word = h.words_before + position
        if word >= WORDS_IN_REACH or position >= n - 1 or len(tests) == MOST_TESTS:
            break
        if value >= position:  # see above
            tests.append(Condition(word, n - position, value - position))
    return tuple(tests)


@lru_cache(maxsize=4096)
def _positions(rank: int, world: int, batch: int, workers: int, reads: int) -> tuple[int, ...]:
    """The places of a process' first reads in the permutation, as far as they are tested."""
    return tuple(rank + world * step(i, batch, workers) for i in range(reads if batch else min(reads, _WITHOUT_GAP)))
