"""The search for a seed, stage by stage: common seeds, all seeds, then whose generator drew the one found.

In: what was read. Out: events, as they come: progress, findings. Called by `mlfs.engine.seed_search`. A generator: who
asks for the next event has the next slice computed, and may stop at any.

Stages. 1: seeds 0 .. 2^20 - 1, given to the permutation's generator, or to torch.manual_seed, whose fourth word seeds
a RandomSampler (2 words are the DataLoader's base_seed). 2: all 2^32 seeds of a permutation, which also catches scripts
without any seed: whatever torch drew, it is one of them. 3, after a seed was found that nobody would have chosen: where
torch's default generator drew it, so that the next epochs' draws are known: the first 2^27 words of well-known seeds (a
model was initialised before), and the fourth word of all 2^32 seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from mlfs.infer import search_numpy
from mlfs.infer.confirm import Finding, confirm
from mlfs.infer.probes import Condition, Plan, Probe, compile_plan
from mlfs.infer.question import DataSet, Hypothesis, likely, probes, unlikely
from mlfs.infer.recipes import Recipe, explaining, recipes
from mlfs.orders.mt19937 import TorchWords

COMMON_STAGE = "common seeds"
OTHERS_STAGE = "other samplers"
COMMON_SEEDS = 1 << 20
ALL_SEEDS = 1 << 32
SAMPLER_SEED_WORD = 3
# What people pass to manual_seed, the most usual first.
WELL_KNOWN = (42, 0, 1, 1234, 123, 2, 3, 1337, 3407, 12345, 7, 10, 100, 1000, 2023, 2024, 2025, 2026, 2022, 2021, 2020)
LATEST_WORD = 1 << 27  # 128 million parameters, each drawn once
_WORDS_AT_ONCE = 1 << 22
_SLICE_NUMBA = 1 << 22
_SLICE_NUMPY = 1 << 18
_MOST_HITS = 1 << 16

Ranges = tuple[tuple[int, int], ...]
WHOLE: Ranges = ((0, ALL_SEEDS),)


class Progress(NamedTuple):
    """Where the search is: seeds tried of all, in a stage."""

    stage: str
    done: int
    of: int


class Draw(NamedTuple):
    """A seed of torch's default generator, and how many of its words went before the DataLoader's base_seed."""

    seed: int
    words_before: int


@dataclass(frozen=True, slots=True)
class Found:
    """An explanation, and where its seed may have been drawn; empty while not known."""

    finding: Finding
    draws: tuple[Draw, ...] = ()


class Generators(NamedTuple):
    """Stage 3's result: where the seed may have been drawn, the likeliest first. One of them or none is right."""

    draws: tuple[Draw, ...]


Event = Progress | Found | Generators | Recipe
SearchRange = Callable[[Plan, int, int], list[tuple[int, int]]]


def has_numba() -> bool:
    """Whether the quick search is there."""
    return find_spec("numba") is not None


def find(
    data_sets: list[DataSet],
    ranges: Ranges = WHOLE,
    common: int = COMMON_SEEDS,
    quick: bool | None = None,
    latest: int = LATEST_WORD,
) -> Iterator[Event]:
    """All stages, up to what explains the reads. The last event is Found or Generators, or a Progress that is done.

    Args:
        ranges: the seeds of stages 2 and 3. common: how many seeds stage 1 tries.
        quick: whether to use numba; None: if it is there. latest: words of well-known seeds looked at in stage 3.
    """
    sure, rest = likely(data_sets), unlikely(data_sets)
    for hypotheses in (sure, rest):
        found = _common(data_sets, hypotheses, common)
        yield Progress(COMMON_STAGE, common, common)
        if found is not None:
            yield found
            return
    recipe = yield from _recipes(data_sets)
    if recipe:
        return
    many = sum(high - low for low, high in ranges) > common  # fewer are not worth compiling for
    search = _searcher(many and has_numba() if quick is None else quick)
    for stage, hypotheses in (("all seeds", sure), ("all seeds, other nodes' ranks", rest)):
        plan = compile_plan(probes(data_sets, hypotheses))
        for event in _all(stage, plan, data_sets, hypotheses, ranges, search):
            yield event
            if isinstance(event, Found):
                finding = event.finding
                if finding.world == 1 and finding.words_before == 0 and finding.seed >= COMMON_SEEDS:
                    yield from _draws(finding.seed, ranges, search, latest)
                return


def _recipes(data_sets: list[DataSet]) -> Generator[Event, None, bool]:
    """Samplers of others. Returns whether one explains the reads."""
    of = sum(1 for data_set in data_sets for _ in recipes(data_set.n))
    yield Progress(OTHERS_STAGE, 0, of)
    for done, recipe in enumerate(explaining(data_sets), 1):
        yield Progress(OTHERS_STAGE, done, of) if recipe is None else recipe
        if recipe is not None:
            return True
    return False


def _common(data_sets: list[DataSet], hypotheses: list[Hypothesis], common: int) -> Found | None:
    """Stage 1."""
    plan = compile_plan(probes(data_sets, hypotheses))
    seeds = np.arange(common, dtype=np.uint32)
    for seed, tag in search_numpy.search(plan, seeds):
        finding = confirm(seed, hypotheses[tag], data_sets[hypotheses[tag].data_set])
        if finding is not None:
            return Found(finding)
    drawn_by_default = [h for h in hypotheses if h.world == 1 and h.words_before == 0]
    if not drawn_by_default:
        return None
    plan = compile_plan(probes(data_sets, drawn_by_default))
    drawn = search_numpy.first_words(seeds, SAMPLER_SEED_WORD)
    for at, tag in search_numpy.search(plan, drawn):
        hypothesis = drawn_by_default[tag]
        finding = confirm(int(drawn[at]), hypothesis, data_sets[hypothesis.data_set])
        if finding is not None:
            return Found(finding, (Draw(at, 0),))
    return None


def _all(
    stage: str, plan: Plan, data_sets: list[DataSet], hypotheses: list[Hypothesis], ranges: Ranges, search: SearchRange
) -> Iterator[Event]:
    """Stage 2."""
    if not plan.roots:
        return
    for progress, hits in _slices(stage, plan, ranges, search):
        for seed, tag in hits:
            finding = confirm(seed, hypotheses[tag], data_sets[hypotheses[tag].data_set])
            if finding is not None:
                yield Found(finding)
                return
        yield progress


def _draws(drawn: int, ranges: Ranges, search: SearchRange, latest: int) -> Iterator[Event]:
    """Stage 3."""
    draws: list[Draw] = []
    yield Progress("well-known generators", 0, len(WELL_KNOWN))
    for index, seed in enumerate(WELL_KNOWN):
        draws += [Draw(seed, word - SAMPLER_SEED_WORD) for word in _words_equal(seed, drawn, latest)]
        yield Progress("well-known generators", index + 1, len(WELL_KNOWN))
    if draws:
        yield Generators(tuple(draws))
    plan = compile_plan([Probe(0, (Condition(SAMPLER_SEED_WORD, ALL_SEEDS, drawn),))])
    for progress, hits in _slices("all generators", plan, ranges, search):
        draws += [Draw(seed, 0) for seed, _ in hits if seed not in WELL_KNOWN]
        yield progress
    yield Generators(tuple(draws))


def _words_equal(seed: int, value: int, latest: int) -> Iterator[int]:
    """Which words of a generator, from the fourth on, are `value`."""
    words = TorchWords(seed)
    for start in range(0, latest, _WORDS_AT_ONCE):
        block = words.take(min(_WORDS_AT_ONCE, latest - start))
        yield from (at for at in (np.flatnonzero(block == value) + start).tolist() if at >= SAMPLER_SEED_WORD)


def _slices(
    stage: str, plan: Plan, ranges: Ranges, search: SearchRange
) -> Iterator[tuple[Progress, list[tuple[int, int]]]]:
    done, of = 0, sum(high - low for low, high in ranges)
    yield Progress(stage, 0, of), []  # before the work: whoever asks may want to be prepared
    size = _SLICE_NUMBA if search is _search_numba else _SLICE_NUMPY
    for low, high in ranges:
        for start in range(low, high, size):
            count = min(size, high - start)
            hits = search(plan, start, count)
            done += count
            yield Progress(stage, done, of), hits


def _searcher(quick: bool) -> SearchRange:
    return _search_numba if quick else _search_with_numpy


def _search_numba(plan: Plan, low: int, count: int) -> list[tuple[int, int]]:
    from mlfs.infer import search_numba

    hits, _ = search_numba.search(plan, low, -(-count // 64) * 64, _MOST_HITS)
    return [(seed, tag) for seed, tag in hits if seed < low + count]


def _search_with_numpy(plan: Plan, low: int, count: int) -> list[tuple[int, int]]:
    seeds = np.arange(low, low + count, dtype=np.uint32)
    return [(low + at, tag) for at, tag in search_numpy.search(plan, seeds)]
