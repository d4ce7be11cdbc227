"""What the stages of the search are made of: what is extent, what is told, and ranges of seeds tried in slices.

In: plans and ranges of seeds. Out: those that pass, and how far it is. Used by `mlfs.explain.search` and
`mlfs.explain.generators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.explain import search_numpy
from mlfs.explain.confirm import Finding
from mlfs.explain.probes import Trie
from mlfs.explain.recipes import Recipe
from mlfs.orders.mt19937 import TorchWords

COMMON_SEEDS = 1 << 20
ALL_SEEDS = 1 << 32
SAMPLER_SEED_WORD = 3
LATEST_WORD = 1 << 27  # 128 million parameters, each drawn once
_WORDS_AT_ONCE = 1 << 22
_SLICE_NUMBA = 1 << 21
_SLICE_NUMPY = 1 << 18

Words = npt.NDArray[np.uint32]
Ranges = tuple[tuple[int, int], ...]
WHOLE: Ranges = ((0, ALL_SEEDS),)


class StageProgress(NamedTuple):
    """Where the search is: seeds tried of all, in a stage."""

    stage: str
    done: int
    of: int


class Draw(NamedTuple):
    """A seed of torch's default generator, and how many of its words went before the DataLoader's base_seed."""

    seed: int
    words_before: int


@dataclass(frozen=True, slots=True)
class SeedFound:
    """An explanation, and where its seed may have been drawn; empty while not known."""

    finding: Finding
    draws: tuple[Draw, ...] = ()


class GeneratorsFound(NamedTuple):
    """Where the seed may have been drawn, the likeliest first. One of them or none is right: see `generators`."""

    draws: tuple[Draw, ...]


Event = StageProgress | SeedFound | GeneratorsFound | Recipe
# Index and tag of each of the seeds that passes.
TrySeeds = Callable[[Trie, Words], list[tuple[int, int]]]


class SearchExtent(NamedTuple):
    """What to search, beside what was read.

    Attributes:
        ranges: the seeds of the long stages. common: how many seeds stage 1 tries.
        quick: whether to use numba; None: if it is there and worth compiling for.
        latest: words of chosen seeds looked at. told: seeds that are worth as much as well-known ones, such as numbers
            on the script's command line, or the generator of the epoch before.
        again: torch drew the seed of the epoch before, so it will have drawn this one's too: no need to try the rest,
            nor to look for its generator where it was not found for the epoch before.
    """

    ranges: Ranges = WHOLE
    common: int = COMMON_SEEDS
    quick: bool | None = None
    latest: int = LATEST_WORD
    told: tuple[int, ...] = ()
    again: bool = False

    def search(self) -> TrySeeds:
        """What tries seeds."""
        many = sum(high - low for low, high in self.ranges) > self.common
        return (
            search_with_numba if (many and has_numba() if self.quick is None else self.quick) else search_numpy.search
        )


def has_numba() -> bool:
    """Whether the quick search is there."""
    return find_spec("numba") is not None


def words_of(seed: int, latest: int) -> Iterator[tuple[int, Words]]:
    """A generator's words that may seed a sampler, in portions, each with the number of its first."""
    words = TorchWords(seed)
    words.skip(SAMPLER_SEED_WORD)
    for start in range(SAMPLER_SEED_WORD, latest, _WORDS_AT_ONCE):
        yield start, words.take(min(_WORDS_AT_ONCE, latest - start))


def slices(
    stage: str, trie: Trie, ranges: Ranges, search: TrySeeds
) -> Iterator[tuple[StageProgress, Words, list[tuple[int, int]]]]:
    """All seeds of the ranges, with those that pass. The first is empty: who asks may want to be prepared."""
    done, of = 0, sum(high - low for low, high in ranges)
    none = np.zeros(0, dtype=np.uint32)
    search(trie, np.zeros(1, dtype=np.uint32))  # compiled: from here on seeds take their time and nothing else does
    yield StageProgress(stage, 0, of), none, []
    size = _SLICE_NUMBA if search is search_with_numba else _SLICE_NUMPY
    for low, high in ranges:
        for start in range(low, high, size):
            seeds = np.arange(start, min(start + size, high), dtype=np.uint32)
            hits = search(trie, seeds)
            done += len(seeds)
            yield StageProgress(stage, done, of), seeds, hits


def search_with_numba(trie: Trie, seeds: Words) -> list[tuple[int, int]]:
    """The quick one, imported when it is needed: numba is an extra."""
    from mlfs.explain import search_numba

    return search_numba.search(trie, seeds)
