"""Looks through the words of one seed's generator for the place at which an epoch begins.

In: what was read first in an epoch, as dataset indices; the seed, and where to look. Out: how far the search is, and
the place, once one explains the reads beyond chance. Called by `mlfs.explain.correction` in a worker thread for what is
near, and by `mlfs.explain.search` in a process of its own for what is far.

The seed is known, so there are millions of places where the search for a seed has thousands of millions: some reads of
one process are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import numpy as np
import numpy.typing as npt

from mlfs.explain import search_numpy
from mlfs.explain.confirm import confirm
from mlfs.explain.evidence import LEAST_BITS
from mlfs.explain.probes import WORDS_IN_REACH, Condition, Probe, compile_trie
from mlfs.explain.question import DataSet, likely, probes
from mlfs.explain.search_stages import PlaceFound, StageProgress, TrySeeds, Words, WordsAsked
from mlfs.explain.weighted_search import WeightedDraws
from mlfs.orders.torch_generator import Tape

STAGE = "words of seed {seed}"
# Some tenths of a second without numba: whoever looks on sees the search move.
_WORDS_AT_ONCE = 1 << 19
# A process' first reads may show one of some hundred batch sizes and numbers of workers.
_SHAPE_BITS = 10


def find_place(data_set: DataSet, asked: WordsAsked, search: TrySeeds) -> Iterator[StageProgress | PlaceFound]:
    """Look at all places until one explains the reads; it comes last.

    Args:
        search: tries words as seeds of a permutation.
    """
    hypotheses = [h for h in likely([data_set]) if h.world == 1 and not h.words_before and not h.skipped]
    tests = probes([data_set], hypotheses)
    stage, done, of = STAGE.format(seed=asked.seed), 0, sum(high - low for low, high in asked.spans)
    yield StageProgress(stage, 0, of)
    fewest_bits = LEAST_BITS + _SHAPE_BITS + log2(max(1, of * len(hypotheses)))
    if asked.weights_file:
        yield from _find_draws(WeightedDraws(data_set, hypotheses, asked.weights_file), asked, fewest_bits)
        return
    if not tests:
        return
    trie = compile_trie(tests)
    tape = Tape(asked.seed)
    for low, high in asked.spans:
        for start in range(low, high, _WORDS_AT_ONCE):
            count = min(_WORDS_AT_ONCE, high - start)
            words = tape.at(start + asked.ahead).take(count + WORDS_IN_REACH)
            hits = search(trie, words[:count]) if asked.seeded else _direct(tests, words, count)
            for at, tag in hits:
                seed, h = int(words[at]), hypotheses[tag]
                if not asked.seeded:
                    seed, h = asked.seed, h._replace(words_before=start + asked.ahead + at)
                if confirm(seed, h, data_set, fewest_bits) is not None:
                    yield PlaceFound(start + at)
                    return
            done += count
            yield StageProgress(stage, done, of)


def place_nearby(data_set: DataSet, asked: WordsAsked) -> PlaceFound | None:
    """The place, if it is among so few that numba is not worth its compiling. A worker thread's work."""
    events = find_place(data_set, asked, search_numpy.search)
    return next((event for event in events if isinstance(event, PlaceFound)), None)


def _find_draws(draws: WeightedDraws, asked: WordsAsked, fewest_bits: float) -> Iterator[StageProgress | PlaceFound]:
    """The same for a sampler that draws by weights: see `mlfs.explain.weighted_search`."""
    tape, done, of = Tape(asked.seed), 0, sum(high - low for low, high in asked.spans)
    for low, high in asked.spans:
        for start in range(low, high, _WORDS_AT_ONCE):
            count = min(_WORDS_AT_ONCE, high - start)
            words = tape.at(start + asked.ahead).take(count + draws.reach)
            found = next((drawn for drawn in draws.places(words, count) if drawn.bits >= fewest_bits), None)
            if found is not None:
                yield PlaceFound(start + found.at)
                return
            done += count
            yield StageProgress(STAGE.format(seed=asked.seed), done, of)


def _direct(tests: list[Probe], words: Words, count: int) -> Iterator[tuple[int, int]]:
    """Where the words themselves make a permutation that passes a probe's tests: (index, the probe's tag)."""
    passed: dict[Condition, npt.NDArray[np.int64]] = {}
    for probe in tests:
        first = probe.tests[0]
        if first not in passed:
            tried = words[first.word : first.word + count] % np.uint32(first.modulus)
            passed[first] = np.flatnonzero(tried == first.residue)
        at = passed[first]
        for test in probe.tests[1:]:
            at = at[words[at + test.word] % np.uint32(test.modulus) == test.residue]
        yield from ((int(place), probe.tag) for place in at)
