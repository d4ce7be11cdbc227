"""Which of torch's default generators may have drawn the seed of a permutation: what the next epochs' seeds hang on.

In: a seed that was found. Out: events. Called by `mlfs.explain.search`.

The order of an epoch tells 32 bits of the generator and no more. So of all 2^32 generators one, on average, has the
same word in the same place by chance: all that fit are told, the likeliest first; the next epoch's first reads choose.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlfs.explain.popular import LOOKED_THROUGH, POPULAR_SEEDS
from mlfs.explain.probes import Condition, Probe, compile_trie
from mlfs.explain.search_stages import (
    ALL_SEEDS,
    SAMPLER_SEED_WORD,
    Draw,
    Event,
    GeneratorsFound,
    SearchExtent,
    SeedFound,
    StageProgress,
    TrySeeds,
    slices,
    words_of,
)

# What the script may have drawn before: nothing, or another loader's base_seed, or that and its sampler's seed.
WORDS_BEFORE = (0, 2, 4)
# That a well-known generator has the word so early by chance: 22 * 2^16 / 2^32.
_SURELY_NOT_CHANCE = 1 << 16
_MOST = 16
_WELL_KNOWN_STAGE, _ALL_STAGE = "well-known generators", "all generators"


def generators(found: SeedFound, extent: SearchExtent, search: TrySeeds) -> Iterator[Event]:
    """Nothing if the generator is known beyond doubt; else all that fit, told anew with each that is found."""
    drawn, draws = found.finding.seed, list(found.draws)
    if any(draw.words_before < _SURELY_NOT_CHANCE for draw in draws):
        return
    if not draws:
        for draw in _well_known(drawn, extent):
            if isinstance(draw, Draw):
                draws.append(draw)
            else:
                yield draw
        if draws:
            yield GeneratorsFound(tuple(draws))
    known = {draw.seed for draw in draws}
    probes = [Probe(words, (Condition(SAMPLER_SEED_WORD + words, ALL_SEEDS, drawn),)) for words in WORDS_BEFORE]
    draws.sort(key=lambda draw: draw.words_before)
    others: list[Draw] = []
    for progress, seeds, hits in slices(_ALL_STAGE, compile_trie(probes), extent.ranges, search):
        new = [Draw(int(seeds[at]), words) for at, words in hits if int(seeds[at]) not in known]
        yield progress
        if new and len(others) < _MOST:
            others = sorted([*others, *new], key=lambda draw: (draw.words_before, draw.seed))
            yield GeneratorsFound((*draws, *others))


def _well_known(drawn: int, extent: SearchExtent) -> Iterator[Draw | StageProgress]:
    """Seeds that people choose, a model made first."""
    seeds = [seed for seed in POPULAR_SEEDS[:LOOKED_THROUGH] if seed not in extent.told]
    yield StageProgress(_WELL_KNOWN_STAGE, 0, len(seeds))
    for index, seed in enumerate(seeds):
        for start, words in words_of(seed, extent.latest):
            yield from (Draw(seed, start + at - SAMPLER_SEED_WORD) for at in np.flatnonzero(words == drawn).tolist())
        yield StageProgress(_WELL_KNOWN_STAGE, index + 1, len(seeds))
