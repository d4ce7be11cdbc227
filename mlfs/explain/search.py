"""The search for the seed that explains first reads: stage by stage, the likely seeds first.

In: what was read, as dataset indices. Out: events, as they come: how far the search is, and what it finds. Called by
`mlfs.explain.seed_search`. `find` is a Python generator: asking for the next event has the next slice of seeds tried,
and the caller may stop at any of them.

1. Hints (numbers on the script's command line), seeds that people choose and the smallest numbers,
   each taken for the seed of a permutation's generator, and for that of torch.manual_seed: a RandomSampler is seeded
   with the fourth word that torch's default generator gives (the DataLoader's base_seed takes the two words before).
2. The first million words of torch's default generator, where a hint, or one of the most usual
   ones, was set and a model initialised before the first epoch: all of them before any is looked at further.
3. The seeds 0 to 2^20 - 1 as in 1; then 2 for more seeds that people choose; then samplers that are not torch's, with
   the seeds that people choose.
4. Parts of the data set, as scripts split it with a popular seed; in each of them a little of 1 to 3. Then samplers and
   seeds that are less usual, where there are few samples; then 2 for all seeds that people choose, and again, further
   for the most usual ones.
5. All 2^32 seeds of a permutation. This also explains scripts that set no seed, for whatever torch drew is one of them.
   `generators` then finds out which generators may have drawn it.
6. All 2^32 seeds again, where none of the ranks that read on this node is rank 0.
7. Less usual parts, and samplers and seeds that are less usual, where there are many samples.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from mlfs.explain.chance import SEED_BITS
from mlfs.explain.confirm import Finding, confirm, confirm_sequential
from mlfs.explain.question import (
    NEVER,
    Condition,
    DataSet,
    Probe,
    Reading,
    Trie,
    compile_trie,
    likely,
    probes,
    unlikely,
)
from mlfs.explain.recipes import FEW, Recipe, explaining, less_usual, of_a_part, usual
from mlfs.explain.search_stages import (
    ALL_SEEDS,
    COMMON_SEEDS,
    SAMPLER_SEED_WORD,
    SHARED_SEED_WORD,
    Draw,
    Event,
    GeneratorsFound,
    Ranges,
    SearchExtent,
    SeedFound,
    StageProgress,
)
from mlfs.explain.splits import MOST_BITS, SplitPart, parts_of
from mlfs.explain.try_seeds import Words, first_words, search
from mlfs.explain.usual import (
    FURTHEST_LOOKED_THROUGH,
    LOOKED_THROUGH,
    POPULAR_SEEDS,
    Seed,
    UsualOrder,
    usual_orders,
    usual_seeds,
)
from mlfs.explain.word_search import find_place
from mlfs.orders.mt19937 import TorchWords

COMMON_STAGE = "common seeds"
OTHERS_STAGE, UNUSUAL_STAGE = "other samplers", "less usual orders"
SPLITS_STAGE = "parts of a data set"
CHOSEN_STAGE = "seeds that people choose, a model made first"
# Stage 1 takes a tenth of a second with so many, and most other seeds are smaller.
_SMALLEST_SEEDS = 1 << 12
# By the samples of a data set, how unusual parts stage 4 tries: it takes seconds, and a quarter of a minute at most.
# Those that are less usual come last.
_BITS_OF_PARTS = ((12_500, MOST_BITS), (FEW, 6.0), (NEVER, 2.5))
# How many words of each seed's generator stage 2 looks at: a model of a million parameters, two for a hint. A tenth of
# a second for each without numba, which costs seconds to compile.
_FIRST_LOOK, _FIRST_LOOK_HINTS = 1 << 20, 1 << 21
# How many words it looks at in the end: so many that all seeds together take seconds, with numba and without, as
# stage 5, which takes minutes, finds the rest. 2^25 is a model of 33 million parameters.
_LAST_LOOK_QUICK, _LAST_LOOK = 1 << 25, 1 << 21
_LESS_USUAL_LOOK = 1 << 22
# A hint is worth more of a look; without numba this takes some two seconds for each.
_LAST_LOOK_HINTS_SLOW = 1 << 24
_WORDS_AT_ONCE = 1 << 22  # 16 MiB
# Some 20 ms: whoever asks for the next event never waits long, and a call costs little beside it.
_SLICE_NUMBA = 1 << 21
_SLICE_NUMPY = 1 << 18
EVERYTHING = SearchExtent()


def find(data_sets: list[DataSet], extent: SearchExtent = EVERYTHING) -> Iterator[Event]:
    """Search until something explains the reads. If nothing does, the last event is a StageProgress that is done."""
    if extent.words is not None:
        yield from find_place(data_sets[0], extent.words, extent.quick)
        return
    for event in chain.from_iterable(_stages(data_sets, extent)):
        yield event
        if isinstance(event, SeedFound) and _may_be_drawn(event.finding, extent):
            yield from generators(event, extent)
        if not isinstance(event, StageProgress):
            return


def _stages(data_sets: list[DataSet], extent: SearchExtent) -> Iterator[Iterator[Event]]:
    """The stages in their order: each gives how far it is, and whatever explains the reads."""
    sure, rest = likely(data_sets), [] if extent.again else unlikely(data_sets)
    every, drawn = _tested(data_sets, [*sure, *rest]), _tested(data_sets, _drawn(sure))
    first, popular, further = _first_looks(extent)
    yield _common(data_sets, every, drawn, extent, range(min(_SMALLEST_SEEDS, extent.common)))
    yield _chosen(data_sets, drawn, first)
    yield _common(data_sets, every, drawn, extent, range(extent.common))
    if not extent.again:
        yield _chosen(data_sets, drawn, popular)
        yield _recipes(OTHERS_STAGE, data_sets, partial(usual, hints=extent.hints))
        yield _parts(data_sets, extent)
        yield _recipes(UNUSUAL_STAGE, data_sets, partial(less_usual, hints=extent.hints))
    yield _chosen(data_sets, drawn, [*further, *_last_looks(extent, [*first, *popular])], extent.quick)
    yield _all("all seeds", data_sets, _tested(data_sets, sure), extent)
    yield _all("all seeds, other nodes' ranks", data_sets, _tested(data_sets, rest), extent)
    if not extent.again:
        yield _parts(data_sets, extent, late=True)
        yield _recipes(UNUSUAL_STAGE, data_sets, partial(less_usual, hints=extent.hints, late=True))


class _Tested(NamedTuple):
    """Ways in which a permutation may have been read, and what they demand of its seed."""

    readings: list[Reading]
    trie: Trie


def _tested(data_sets: list[DataSet], readings: list[Reading]) -> _Tested:
    return _Tested(readings, compile_trie(probes(data_sets, readings)))


def _may_be_drawn(finding: Finding, extent: SearchExtent) -> bool:
    """Whether torch's default generator may have drawn the seed, as no person would choose it, and nobody knows it."""
    chosen = finding.seed < COMMON_SEEDS or finding.seed in extent.hints
    return finding.world == 1 and finding.words_before == 0 and not chosen and not extent.again


def _drawn(readings: list[Reading]) -> list[Reading]:
    """The readings by which torch's default generator may have drawn the permutation's seed."""
    return [h for h in readings if h.world == 1 and h.words_before == 0]


def _recipes(stage: str, data_sets: list[DataSet], orders: Callable[[int], Sequence[UsualOrder]]) -> Iterator[Event]:
    """Stages 3 and 7."""
    of = sum(len(orders(n)) for n in {data_set.n for data_set in data_sets})
    yield StageProgress(stage, 0, of)
    for done, recipe in enumerate(explaining(data_sets, orders), 1):
        yield StageProgress(stage, done, of) if recipe is None else recipe


def _parts(data_sets: list[DataSet], extent: SearchExtent, late: bool = False) -> Iterator[Event]:
    """Stages 4 and 7."""
    seeds = usual_seeds(extent.hints)
    parts: list[tuple[int, SplitPart]] = []
    for at, data_set in enumerate(data_sets):
        early = next(bits for most, bits in _BITS_OF_PARTS if data_set.n <= most)
        tried = parts_of(data_set, seeds, MOST_BITS if late else early)
        # Among parts that are about as usual those of one length and seed follow each other, with orders in common.
        tried.sort(key=lambda part: (round(part.bits), part.data_set.n, part.seed or 0))
        parts += [(at, part) for part in tried if (part.bits > early) is late]
    yield StageProgress(SPLITS_STAGE, 0, len(parts))
    for done, (at, part) in enumerate(parts, 1):
        found = _order_of(part, extent)
        whole = _whole(data_sets[at], part) if isinstance(found, SeedFound) and found.finding.seed < 0 else None
        if whole is not None:
            yield whole._replace(data_set=at)
        elif isinstance(found, Recipe):
            yield Recipe(at, [part.fields | order for order in found.orders])
        elif found is not None:
            yield found._replace(finding=found.finding._replace(data_set=at, part=part.fields))
        yield StageProgress(SPLITS_STAGE, done, len(parts))


def _whole(data_set: DataSet, part: SplitPart) -> Recipe | None:
    """The shuffled list as a whole, if a part that is read as it stands is its beginning: the first reads are of both,
    and a part is the less usual one."""
    if part.fields.get("part") != 0:
        return None
    orders = usual_orders(data_set.n, (Seed(0.0, part.seed or 0),), None, MOST_BITS)
    loops = [order for order in orders if order.is_loop]
    return next(filter(None, explaining([data_set], lambda _: loops)), None)


def _order_of(part: SplitPart, extent: SearchExtent) -> SeedFound | Recipe | None:
    """The order in which a part is read: as it stands, or as the seed of the split or another small one shuffles it.

    The words of the split's seed are looked through, the further, the more usual the part is.
    """
    data_sets = [part.data_set]
    as_it_stands = confirm_sequential(data_sets) if part.seed is not None else None
    if as_it_stands is not None:
        return SeedFound(as_it_stands) if as_it_stands.bits >= SEED_BITS else None
    orders = partial(of_a_part, part=part, hints=extent.hints)
    found = next(filter(None, explaining(data_sets, orders, part.cached)), None)
    if found is not None or part.seed is None:
        return found
    by_seeds: Iterator[Event] = iter(())
    if part.data_set.n > FEW:
        sure = _tested(data_sets, likely(data_sets))
        by_seeds = _common(data_sets, sure, _tested(data_sets, _drawn(sure.readings)), extent, range(0))
    by_words = _of_words(part.seed, min(extent.latest, _FIRST_LOOK >> int(part.bits)), part.data_set)
    return next((event for event in chain(by_seeds, by_words) if isinstance(event, SeedFound)), None)


def _of_words(seed: int, end: int, data_set: DataSet) -> Iterator[SeedFound]:
    """The words of a split's seed that seed the order of a part. Many parts are of one seed: each of its words is tried
    as a seed once for all of them, up to the first word that it gives, which tells what is drawn first."""
    words, begun = _words_that_seed(seed, end)
    drawn_first = np.zeros(data_set.n, dtype=bool)
    drawn_first[begun % data_set.n] = True
    readings = [h for h in _drawn(likely([data_set])) if drawn_first[data_set.heads[h.head][h.skipped]]]
    trie = _tested([data_set], readings).trie
    for at, finding in _confirmed(words, search(trie, words, begun=begun), readings, [data_set]):
        yield SeedFound(finding, (Draw(seed, at),))


@lru_cache(maxsize=64)
def _words_that_seed(seed: int, end: int) -> tuple[Words, Words]:
    """The words of a seed's generator that may seed a sampler, and the first word of each such generator."""
    words = TorchWords(seed).take(max(end, SAMPLER_SEED_WORD))[SAMPLER_SEED_WORD:]
    return words, first_words(words, 0)[0]


def _confirmed(
    seeds: Words, hits: list[tuple[int, int]], readings: list[Reading], data_sets: list[DataSet]
) -> Iterator[tuple[int, Finding]]:
    """The hits that explain all first reads of their process: the index among the seeds, and what it explains."""
    for at, tag in hits:
        reading = readings[tag]
        finding = confirm(int(seeds[at]), reading, data_sets[reading.data_set])
        if finding is not None:
            yield at, finding


def _common(
    data_sets: list[DataSet], every: _Tested, drawn: _Tested, extent: SearchExtent, numbers: range
) -> Iterator[Event]:
    """Stage 1, and 3: hints, seeds that people choose, and these numbers. Args: drawn: see `_drawn`."""
    yield StageProgress(COMMON_STAGE, 0, len(numbers))
    liked = [seed for _, seed in usual_seeds(extent.hints) if seed not in numbers and seed < ALL_SEEDS]
    seeds = np.concatenate([np.array(liked, dtype=np.uint32), np.arange(len(numbers), dtype=np.uint32)])
    hits = sorted(search(every.trie, seeds), key=lambda hit: hit[1])  # the likeliest ways of reading are the first ones
    for _, finding in _confirmed(seeds, hits, every.readings, data_sets):
        yield SeedFound(finding)
    before = (SAMPLER_SEED_WORD, SHARED_SEED_WORD)
    for word, words in zip(before, first_words(seeds, *before), strict=True):
        for at, finding in _confirmed(words, search(drawn.trie, words), drawn.readings, data_sets):
            yield SeedFound(finding, (Draw(int(seeds[at]), word - SAMPLER_SEED_WORD),))
    yield StageProgress(COMMON_STAGE, len(numbers), len(numbers))


class _Look(NamedTuple):
    """Words of a seed's generator that may seed a sampler: the first of them, and the one behind the last."""

    seed: int
    first: int
    end: int


def _first_looks(extent: SearchExtent) -> tuple[list[_Look], list[_Look], list[_Look]]:
    """The words that stage 2 looks at first, of all seeds before it looks at any further; those of less usual seeds;
    those of all that people choose."""
    hints, popular = extent.hints, () if extent.again else POPULAR_SEEDS
    ends = {seed: _FIRST_LOOK_HINTS if seed in hints else _FIRST_LOOK for seed in (*hints, *popular)}
    looks = [_Look(seed, SAMPLER_SEED_WORD, min(extent.latest, end)) for seed, end in ends.items()]
    first, second = (len({*hints, *popular[:count]}) for count in (FURTHEST_LOOKED_THROUGH, LOOKED_THROUGH))
    return looks[:first], looks[first:second], looks[second:]


def _last_looks(extent: SearchExtent, before: list[_Look]) -> list[_Look]:
    """How much further stage 2 looks at the same seeds."""
    last = _LAST_LOOK_QUICK if extent.quick else _LAST_LOOK
    ends = dict.fromkeys(POPULAR_SEEDS[:LOOKED_THROUGH], min(last, _LESS_USUAL_LOOK))
    ends |= dict.fromkeys(POPULAR_SEEDS[:FURTHEST_LOOKED_THROUGH], last)
    ends |= dict.fromkeys(extent.hints, extent.latest if extent.quick else _LAST_LOOK_HINTS_SLOW)
    looks = [_Look(seed, end, min(extent.latest, ends[seed])) for seed, _, end in before]
    return [look for look in looks if look.first < look.end]


def _words_of(seed: int, latest: int, first: int = SAMPLER_SEED_WORD) -> Iterator[tuple[int, Words]]:
    """A generator's words that may seed a sampler, in portions, each with the number of its first."""
    words = TorchWords(seed)
    words.skip(first)
    for start in range(first, latest, _WORDS_AT_ONCE):
        yield start, words.take(min(_WORDS_AT_ONCE, latest - start))


def _chosen(data_sets: list[DataSet], drawn: _Tested, looks: list[_Look], quick: bool = False) -> Iterator[Event]:
    """Search stage 2: seeds that people choose."""
    readings, trie = drawn
    if not looks or not trie.below:
        return
    done, of = 0, sum(end - first for _, first, end in looks)
    if quick:
        search(trie, np.zeros(1, dtype=np.uint32), quick)
    yield StageProgress(CHOSEN_STAGE, 0, of)
    for seed, first, end in looks:
        for start, words in _words_of(seed, end, first):
            for at, finding in _confirmed(words, search(trie, words, quick), readings, data_sets):
                yield SeedFound(finding, (Draw(seed, start + at - SAMPLER_SEED_WORD),))
            done += len(words)
            yield StageProgress(CHOSEN_STAGE, done, of)


def _slices(
    stage: str, trie: Trie, ranges: Ranges, quick: bool
) -> Iterator[tuple[StageProgress, Words, list[tuple[int, int]]]]:
    """Try all seeds of the ranges: for each slice how far the stage is, its seeds, and those that pass.

    The first slice is empty: it says that the stage begins, which may compile for some seconds.
    """
    done, of = 0, sum(high - low for low, high in ranges)
    none = np.zeros(0, dtype=np.uint32)
    if quick:  # it compiles: the stage's progress shall tell how long the rest takes
        search(trie, np.zeros(1, dtype=np.uint32), quick)
    yield StageProgress(stage, 0, of), none, []
    size = _SLICE_NUMBA if quick else _SLICE_NUMPY
    for low, high in ranges:
        for start in range(low, high, size):
            seeds = np.arange(start, min(start + size, high), dtype=np.uint32)
            hits = search(trie, seeds, quick)
            done += len(seeds)
            yield StageProgress(stage, done, of), seeds, hits


def _all(stage: str, data_sets: list[DataSet], tested: _Tested, extent: SearchExtent) -> Iterator[Event]:
    """Stages 5 and 6."""
    readings, trie = tested
    for progress, seeds, hits in _slices(stage, trie, extent.ranges, extent.quick) if trie.below else ():
        for _, finding in _confirmed(seeds, hits, readings, data_sets):
            yield SeedFound(finding)
        yield progress


# -- which generators may have drawn a permutation's seed

# The order of an epoch tells 32 bits of the generator and no more. So of all 2^32 generators one, on average, has the
# same word in the same place by chance. All that fit are events, the likeliest first; the next epoch's first reads
# choose.

# The script may have drawn this before: nothing, or another loader's base_seed, or that and its sampler's seed.
WORDS_BEFORE = (0, 2, 4)
# A word that a likely seed's generator gives so early is there by chance in one case of 100: 21 * 2^21 / 2^32. It is
# looked for before all seeds are, which takes minutes; if it was chance, the next epoch's order is found anew.
_SURELY_NOT_CHANCE = 1 << 21
# One is expected for each of the three places; more than these are no help.
_MOST_GENERATORS = 16
_POPULAR_STAGE, _GENERATORS_STAGE = "well-known generators", "all generators"


def generators(found: SeedFound, extent: SearchExtent) -> Iterator[Event]:
    """Tell all generators that fit, anew with each that is found; nothing if the generator is known beyond doubt."""
    drawn, draws = found.finding.seed, list(found.draws)
    if any(draw.words_before < _SURELY_NOT_CHANCE for draw in draws):
        return
    if not draws:
        draws = yield from _popular(drawn, extent)
        if draws:
            yield GeneratorsFound(tuple(draws))
    known = {draw.seed for draw in draws}
    probes = [Probe(words, (Condition(SAMPLER_SEED_WORD + words, ALL_SEEDS, drawn),)) for words in WORDS_BEFORE]
    draws.sort(key=lambda draw: draw.words_before)
    others: list[Draw] = []
    for progress, seeds, hits in _slices(_GENERATORS_STAGE, compile_trie(probes), extent.ranges, extent.quick):
        new = [Draw(int(seeds[at]), words) for at, words in hits if int(seeds[at]) not in known]
        yield progress
        if new and len(others) < _MOST_GENERATORS:
            others = sorted([*others, *new], key=lambda draw: (draw.words_before, draw.seed))
            yield GeneratorsFound((*draws, *others))


def _popular(drawn: int, extent: SearchExtent) -> Generator[StageProgress, None, list[Draw]]:
    """Look through what popular seeds' generators give, as far as one that has made a large model first. Returns where
    they draw this word."""
    found: list[Draw] = []
    seeds = [seed for seed in POPULAR_SEEDS[:LOOKED_THROUGH] if seed not in extent.hints]
    yield StageProgress(_POPULAR_STAGE, 0, len(seeds))
    for index, seed in enumerate(seeds):
        for start, words in _words_of(seed, extent.latest):
            found += (Draw(seed, start + at - SAMPLER_SEED_WORD) for at in np.flatnonzero(words == drawn).tolist())
        yield StageProgress(_POPULAR_STAGE, index + 1, len(seeds))
    return found
