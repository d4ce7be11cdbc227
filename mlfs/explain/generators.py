"""Finds the seeds of torch's default generator that may have drawn the seed of a permutation.

In: the permutation's seed, which explains an epoch. Out: events that tell the generators; the seeds of the next epochs
follow from them. Called by `mlfs.explain.search`.

The order of an epoch tells 32 bits of the generator and no more. So of all 2^32 generators one, on average, has the
same word in the same place by chance. All that fit are told, the likeliest first; the next epoch's first reads choose.
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
# A word that a likely seed's generator gives so early is there by chance in one case of 100: 21 * 2^21 / 2^32. It is
# looked for before all seeds are, which takes minutes; if it was chance, the next epoch's order is found anew.
_SURELY_NOT_CHANCE = 1 << 21
# One is expected for each of the three places; more than these are no help.
_MOST = 16
_POPULAR_STAGE, _ALL_STAGE = "well-known generators", "all generators"


def generators(found: SeedFound, extent: SearchExtent, search: TrySeeds) -> Iterator[Event]:
    """Tell all generators that fit, anew with each that is found; nothing if the generator is known beyond doubt."""
    drawn, draws = found.finding.seed, list(found.draws)
    if any(draw.words_before < _SURELY_NOT_CHANCE for draw in draws):
        return
    if not draws:
        for draw in _popular(drawn, extent):
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


def _popular(drawn: int, extent: SearchExtent) -> Iterator[Draw | StageProgress]:
    """Look through what popular seeds' generators give, as far as one that has made a large model first."""
    seeds = [seed for seed in POPULAR_SEEDS[:LOOKED_THROUGH] if seed not in extent.told]
    yield StageProgress(_POPULAR_STAGE, 0, len(seeds))
    for index, seed in enumerate(seeds):
        for start, words in words_of(seed, extent.latest):
            yield from (Draw(seed, start + at - SAMPLER_SEED_WORD) for at in np.flatnonzero(words == drawn).tolist())
        yield StageProgress(_POPULAR_STAGE, index + 1, len(seeds))
