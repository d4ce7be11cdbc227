"""The parts of the stages of the search for a seed: their extent, their events, ranges of seeds tried in slices.

In: conditions on a seed as a `Trie`, and ranges of seeds. Out: the seeds that pass, and how far the stage is. Used by
`mlfs.explain.search`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.explain import search_numpy
from mlfs.explain.confirm import Finding
from mlfs.explain.question import Trie
from mlfs.explain.recipes import Recipe
from mlfs.orders.mt19937 import TorchWords

# Seeds below this one are tried before everything else: it takes a second, and people seldom choose larger ones.
COMMON_SEEDS = 1 << 20
ALL_SEEDS = 1 << 32
# torch's RandomSampler seeds its permutation with a number of 64 bits, of which MT19937 takes the low word: the fourth
# that the default generator gives, if nothing was drawn before.
SAMPLER_SEED_WORD = 3
# accelerate seeds the generator that several ranks share with the second word, if nothing was drawn before.
SHARED_SEED_WORD = 1
LATEST_WORD = 1 << 27  # a model of 128 million parameters, each drawn once
_WORDS_AT_ONCE = 1 << 22  # 16 MiB
# Some 20 ms: whoever asks for the next event never waits long, and a call costs little beside it.
_SLICE_NUMBA = 1 << 21
_SLICE_NUMPY = 1 << 18

Words = npt.NDArray[np.uint32]
Ranges = tuple[tuple[int, int], ...]
WHOLE: Ranges = ((0, ALL_SEEDS),)


class StageProgress(NamedTuple):
    """The progress of a search: seeds tried of all, in a stage."""

    stage: str
    done: int
    of: int


class Draw(NamedTuple):
    """A seed of torch's default generator, and how many of its words went before the DataLoader's base_seed."""

    seed: int
    words_before: int


class SeedFound(NamedTuple):
    """A seed that explains the reads, and where it may have been drawn; empty while that is not known."""

    finding: Finding
    draws: tuple[Draw, ...] = ()


class GeneratorsFound(NamedTuple):
    """The draws that may have given the seed, the likeliest first. At most one of them is right: see `generators`."""

    draws: tuple[Draw, ...]


class WordsAsked(NamedTuple):
    """The places in the words of a generator at which an epoch may begin.

    Attributes:
        seed, seeded, ahead: see `mlfs.orders.composed.WordsDrawn`.
        spans: numbers of words drawn before, as (first, last + 1), the likeliest first.
        weights_file: of a sampler that draws by weights; "" where the words make a permutation.
    """

    seed: int
    seeded: bool
    ahead: int
    spans: tuple[tuple[int, int], ...]
    weights_file: str = ""


class PlaceFound(NamedTuple):
    """The epoch begins after so many words."""

    words: int


Event = StageProgress | SeedFound | GeneratorsFound | PlaceFound | Recipe
# Tries seeds: (index, tag) for each seed that passes and the probe that it passes.
TrySeeds = Callable[[Trie, Words], list[tuple[int, int]]]


class SearchExtent(NamedTuple):
    """The bounds of a search.

    Attributes:
        ranges: the seeds that the long stages try, as (first, last + 1). common: how many small seeds are tried first.
        quick: whether to use numba; None: if it is installed and worth compiling for.
        latest: how many words of a seed's generator are looked at, at most.
        hints: seeds that are likelier than popular ones, such as numbers on the script's command line, or the generator
            that drew the seed of the epoch before.
        again: whether torch drew the seed of the epoch before. Then it drew this one's too, and other samplers, other
            nodes' ranks and generators that were not found before need not be tried.
        words: look at these only.
    """

    ranges: Ranges = WHOLE
    common: int = COMMON_SEEDS
    quick: bool | None = None
    latest: int = LATEST_WORD
    hints: tuple[int, ...] = ()
    again: bool = False
    words: WordsAsked | None = None

    def search(self) -> TrySeeds:
        """The function that tries seeds in the long stages."""
        many = sum(high - low for low, high in self.ranges) > self.common
        quick = many and has_numba() if self.quick is None else self.quick
        return search_with_numba if quick else search_numpy.search


def has_numba() -> bool:
    """Whether numba is installed, with which the search is eight times as fast."""
    return find_spec("numba") is not None


def words_of(seed: int, latest: int, first: int = SAMPLER_SEED_WORD) -> Iterator[tuple[int, Words]]:
    """A generator's words that may seed a sampler, in portions, each with the number of its first."""
    words = TorchWords(seed)
    words.skip(first)
    for start in range(first, latest, _WORDS_AT_ONCE):
        yield start, words.take(min(_WORDS_AT_ONCE, latest - start))


def slices(
    stage: str, trie: Trie, ranges: Ranges, search: TrySeeds
) -> Iterator[tuple[StageProgress, Words, list[tuple[int, int]]]]:
    """Try all seeds of the ranges: for each slice how far the stage is, its seeds, and those that pass.

    The first slice is empty: it says that the stage begins, which may compile for some seconds.
    """
    done, of = 0, sum(high - low for low, high in ranges)
    none = np.zeros(0, dtype=np.uint32)
    search(trie, np.zeros(1, dtype=np.uint32))  # compiles: the stage's progress shall tell how long the rest takes
    yield StageProgress(stage, 0, of), none, []
    size = _SLICE_NUMBA if search is search_with_numba else _SLICE_NUMPY
    for low, high in ranges:
        for start in range(low, high, size):
            seeds = np.arange(start, min(start + size, high), dtype=np.uint32)
            hits = search(trie, seeds)
            done += len(seeds)
            yield StageProgress(stage, done, of), seeds, hits


def search_with_numba(trie: Trie, seeds: Words) -> list[tuple[int, int]]:
    """Try seeds with numba, which is an extra: it is imported only when it is needed."""
    from mlfs.explain import search_numba

    return search_numba.search(trie, seeds)
