"""The extent of a search for a seed, and its events. Used by `mlfs.explain.search` and whoever has it search."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from mlfs.explain.confirm import Finding
from mlfs.explain.recipes import Recipe

# Seeds below this one are tried before other samplers and all other seeds: it takes a second, and people seldom choose
# larger ones.
COMMON_SEEDS = 1 << 20
ALL_SEEDS = 1 << 32
# torch's RandomSampler seeds its permutation with a number of 64 bits, of which MT19937 takes the low word: the fourth
# that the default generator gives, if nothing was drawn before.
SAMPLER_SEED_WORD = 3
# accelerate seeds the generator that several ranks share with the second word, if nothing was drawn before.
SHARED_SEED_WORD = 1
LATEST_WORD = 1 << 27  # a model of 128 million parameters, each drawn once

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


class SearchExtent(NamedTuple):
    """The bounds of a search.

    Attributes:
        ranges: the seeds that the long stages try, as (first, last + 1). common: how many small seeds are tried first.
        latest: how many words of a seed's generator are looked at, at most.
        hints: seeds that are likelier than popular ones, such as numbers on the script's command line, or the generator
            that drew the seed of the epoch before.
        again: whether torch drew the seed of the epoch before. Then it drew this one's too, and other samplers, other
            nodes' ranks and generators that were not found before need not be tried.
        words: look at these only.
    """

    ranges: Ranges = WHOLE
    common: int = COMMON_SEEDS
    latest: int = LATEST_WORD
    hints: tuple[int, ...] = ()
    again: bool = False
    words: WordsAsked | None = None

    @property
    def quick(self) -> bool:
        """Whether the long stages try seeds with numba: if it is installed, and worth compiling for."""
        return sum(high - low for low, high in self.ranges) > self.common and has_numba()


def has_numba() -> bool:
    """Whether numba is installed, with which the search is eight times as fast."""
    return find_spec("numba") is not None
