"""The search for a seed: its conditions are exact, with numba and without, and chance is not taken for a seed."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.explaining import FILES

from mlfs.explain.confirm import order_head
from mlfs.explain.question import (
    Condition,
    DataSet,
    Probe,
    Trie,
    compile_trie,
    likely,
    probes,
    reads_needed,
    step,
    unlikely,
)
from mlfs.explain.recipes import Recipe
from mlfs.explain.search import CHOSEN_STAGE, COMMON_STAGE, SPLITS_STAGE, find
from mlfs.explain.search_stages import (
    SAMPLER_SEED_WORD,
    Draw,
    Event,
    GeneratorsFound,
    SearchExtent,
    SeedFound,
    StageProgress,
)
from mlfs.explain.seed_search import SeedSearch
from mlfs.explain.try_seeds import search
from mlfs.explain.usual import FURTHEST_LOOKED_THROUGH, POPULAR_SEEDS, preset_of
from mlfs.job import JobSpec, parse_job
from mlfs.orders.mt19937 import TorchWords, next_randperm, randperm
from mlfs.orders.order import Order, Resolve, build_order

SEEDS = st.integers(0, 2**32 - 1)
NO_RANGE = ((0, 0),)
FEW_WORDS = 1 << 12


def brute_force(tests: list[tuple[int, ...]], seeds: list[int]) -> list[tuple[int, int]]:
    """(index of the seed, index of the probe) that hold; a probe is a chain of (word, modulus, residue) flattened."""
    found = []
    for at, seed in enumerate(seeds):
        words = TorchWords(seed).take(227).tolist()
        for tag, flat in enumerate(tests):
            chain = [flat[i : i + 3] for i in range(0, len(flat), 3)]
            if all(words[word] % modulus == residue for word, modulus, residue in chain):
                found.append((at, tag))
    return sorted(found)


def plan_of(tests: list[tuple[int, ...]]) -> Trie:
    chains = [tuple(Condition(*flat[i : i + 3]) for i in range(0, len(flat), 3)) for flat in tests]
    return compile_trie(Probe(tag, chain) for tag, chain in enumerate(chains))


@st.composite
def chains(draw: st.DrawFn) -> tuple[int, ...]:
    flat: list[int] = []
    for _ in range(draw(st.integers(1, 2))):
        modulus = draw(st.integers(1, 8) | st.sampled_from([3 << 10, 2**31, 2**32]))
        flat += [draw(st.integers(0, 226)), modulus, draw(st.integers(0, min(modulus, 9) - 1))]
    return tuple(flat)


@settings(deadline=None, max_examples=25)
@given(st.lists(chains(), min_size=1, max_size=6, unique=True), SEEDS)
def test_the_search_finds_what_trying_every_seed_finds_with_numba_and_without(
    tests: list[tuple[int, ...]], low: int
) -> None:
    low = min(low, 2**32 - 64)
    trie, seeds = plan_of(tests), list(range(low, low + 64))
    expected = brute_force(tests, seeds)
    for quick in (False, True):
        assert sorted(search(trie, np.array(seeds, dtype=np.uint32), quick)) == expected


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 400), SEEDS, st.integers(0, 5), st.integers(1, 400))
def test_the_head_of_an_order_is_the_orders_head(n: int, seed: int, words: int, count: int) -> None:
    head = order_head(n, seed, words, count)
    if words == 0:
        assert head == randperm(n, seed)[:count].tolist()
    assert len(set(head)) == len(head) == min(n, count)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from([60, 240, 5000, 1_281_167]), SEEDS)
def test_the_right_seed_always_passes(data: st.DataObject, n: int, seed: int) -> None:
    """Whatever the permutation: no condition is only nearly true."""
    empty = [DataSet(n, ((0,) * 16,))]
    extent = data.draw(st.sampled_from(likely(empty) + unlikely(empty)))
    head = order_head(n, seed, extent.words_before, min(n, 1 << 13))
    places = [extent.rank + extent.world * step(i, extent.batch, extent.workers) for i in range(16)]
    places = [place for place in places if place < len(head)]
    reads = (*range(extent.skipped), *(head[place] for place in places))
    for probe in probes([DataSet(n, (reads,))], [extent]):
        assert search(compile_trie([probe]), np.array([seed], dtype=np.uint32)) == [(0, 0)]


def last_of(events: list[Event]) -> Event:
    return [event for event in events if not isinstance(event, StageProgress)][-1]


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 2**20 - 1), st.sampled_from([600, 50_000, 1_281_167]))
def test_a_20_bit_seed_is_found_from_ten_reads(seed: int, n: int) -> None:
    reads = tuple(order_head(n, seed, 0, 10))
    found = last_of(list(find([DataSet(n, (reads,))], SearchExtent(NO_RANGE, latest=FEW_WORDS))))
    assert isinstance(found, SeedFound)
    assert (found.finding.seed, found.finding.world, found.finding.words_before) == (seed, 1, 0)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("rank", [0, 5])
def test_any_seed_is_found_when_the_search_comes_to_it(monkeypatch: pytest.MonkeyPatch, quick: bool, rank: int) -> None:
    monkeypatch.setattr("mlfs.explain.search_stages.has_numba", lambda: quick)
    seed, n = 3_000_000_019, FILES
    reads = tuple(order_head(n, seed, 0, 200)[rank::8][:16])
    ranges = ((seed - 9000, seed - 4000), (seed - 1000, seed + 1000))
    found = last_of(list(find([DataSet(n, (reads,))], SearchExtent(ranges, 256, FEW_WORDS))))
    assert isinstance(found, SeedFound)
    assert (found.finding.seed, found.finding.world, found.finding.ranks) == (seed, 8, (rank,))


def test_the_generator_that_drew_the_seed_is_found_as_well() -> None:
    generator, n = 4_000_000_123, FILES
    drawn = int(TorchWords(generator).take(4)[3])
    reads = (tuple(order_head(n, drawn, 0, 16)),)
    ranges = ((drawn, drawn + 64), (generator - 100, generator + 28))
    events = list(find([DataSet(n, reads)], SearchExtent(ranges, 256, latest=FEW_WORDS)))
    assert [e.finding.seed for e in events if isinstance(e, SeedFound)] == [drawn]
    assert last_of(events) == GeneratorsFound((Draw(generator, 0),))


def test_a_process_of_its_own_tells_what_the_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    sets = [DataSet(3000, (tuple(order_head(3000, 77, 0, 16)),))]
    told: list[object] = []
    assert SeedSearch(sets).run(told.append) == 0
    (found,) = (event for event in told if isinstance(event, SeedFound))
    assert found == last_of(
        [event for event in find(sets, SearchExtent(NO_RANGE, 256)) if isinstance(event, SeedFound)]
    )


def test_shuffles_of_other_generators_are_never_taken_for_torchs() -> None:
    shuffles = [random.SystemRandom().sample(range(1000), 40) for _ in range(32)]
    shuffles += [np.random.default_rng().permutation(1000)[:40].tolist() for _ in range(32)]
    data_sets = [DataSet(1000, tuple(tuple(reads) for reads in shuffles[at::4])) for at in range(4)]
    events = list(find(data_sets, SearchExtent(((7, 1031),), 2048, FEW_WORDS, again=True)))
    assert {type(event) for event in events} == {StageProgress}


@settings(deadline=None, max_examples=2)
@given(st.integers(0, 2**32 - 1), st.sampled_from([40, 100, 1000]))
def test_an_order_of_no_seed_is_never_taken_for_one(chance: int, n: int) -> None:
    order = np.random.default_rng([chance, 12345]).permutation(n)  # of no single number as a seed
    heads = tuple(tuple(order[start : start + 30].tolist()) for start in (0, n // 4, n // 2))
    assert [
        e
        for e in find([DataSet(n, heads)], SearchExtent(((7, 1031),), 2048, FEW_WORDS))
        if not isinstance(e, StageProgress)
    ] == []


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (np.random.default_rng(123).permutation(2000), {"sampler": "hf-datasets", "seed": 123, "batch_size": 8}),
        (np.random.RandomState(7).permutation(2000), {"sampler": "numpy", "seed": 7, "legacy": True}),
    ],
    ids=["numpy", "legacy"],
)
def test_other_samplers_are_tried_with_seeds_that_people_choose(
    order: np.ndarray[tuple[int], np.dtype[np.int64]], expected: dict[str, object]
) -> None:
    workers = [order.reshape(-1, 8)[worker::2].ravel()[:24] for worker in (0, 1)]
    data_set = DataSet(2000, tuple(tuple(reads.tolist()) for reads in workers))
    found = last_of(list(find([data_set], SearchExtent(NO_RANGE, 256, latest=FEW_WORDS))))
    assert isinstance(found, Recipe)
    assert preset_of(found.fields).items() >= expected.items()


def test_a_seed_drawn_after_a_model_was_made_is_found_in_the_words_of_well_known_seeds() -> None:
    n, before = 3000, 51_234
    drawn = int(TorchWords(1337).take(before + 4)[-1])
    reads = (tuple(order_head(n, drawn, 0, 16)),)
    events = list(find([DataSet(n, reads)], SearchExtent(((drawn, drawn + 64),), 256, latest=1 << 16)))
    found = last_of(events)
    assert isinstance(found, SeedFound)  # so early in a well-known generator that it is not by chance
    assert (found.finding.seed, found.draws) == (drawn, (Draw(1337, before),))


def a_loader_with_a_less_usual_seed(n: int) -> list[int]:
    """A model of some thousand parameters is made, then the loader draws its seed."""
    drawn = int(TorchWords(999).take(7004)[-1])
    return order_head(n, drawn, 0, 16)


def a_part_shuffled_with_a_less_usual_seed(n: int) -> list[int]:
    """random_split of eight tenths, and a loader of these, by the same generator."""
    words = TorchWords(999)
    part = next_randperm(n, words)[: n * 8 // 10]
    return part[order_head(len(part), int(words.take(4)[-1]), 0, 16)].tolist()


def by_its_registration(fields: dict[str, object], n: int) -> list[int]:
    job = parse_job({"epochs": 1, "seed": 999, **fields})
    return build_order(job, n).rank_stream(0, 0)[:16].tolist()


@pytest.mark.parametrize(
    "reads",
    [
        a_loader_with_a_less_usual_seed(600),
        a_part_shuffled_with_a_less_usual_seed(600),
        by_its_registration({"sampler": "grain", "seed": 5}, 600),
        by_its_registration({"generator": "python", "draw": "sample", "seeding": "seed+epoch"}, 600),
        by_its_registration({"generator": "polars", "seeding": "same"}, 600),
    ],
    ids=["words", "part", "grain", "sample", "polars"],
)
def test_orders_of_seeds_that_fewer_people_choose_are_found_before_all_seeds_are_tried(reads: list[int]) -> None:
    events = list(find([DataSet(600, (tuple(reads),))], SearchExtent(((0, 64),), 256, latest=1 << 14)))
    found = next(event for event in events if isinstance(event, SeedFound | Recipe))
    assert not [event for event in events[: events.index(found)] if event[0] == "all seeds"]
    seeds = found.orders if isinstance(found, Recipe) else [{"seed": draw.seed} for draw in found.draws]
    assert {order["seed"] for order in seeds} <= {999, 5}


def test_the_end_of_a_shuffled_list_is_a_part_of_it_also_where_samples_lie_in_several_directories() -> None:
    """As a run reads that goes on in the middle of an epoch."""
    head = tuple(randperm(600, 43)[240:256].tolist())
    data_set = DataSet(600, (head,), np.arange(600, dtype=np.int32) // 200)
    found = last_of(list(find([data_set], SearchExtent(NO_RANGE, 256, latest=FEW_WORDS))))
    assert isinstance(found, SeedFound)
    assert found.finding.part == {"split": [240, 360], "part": 1, "split_seed": 43, "split_by": "torch"}


def test_samples_are_in_memory_only_if_something_shows_it() -> None:
    """The worker with the first batch has read so little that it takes what both have read to tell the order."""
    drawn = order_head(600, int(TorchWords(1337).take(4)[-1]), 0, 26)
    reads = (tuple(drawn[8:16] + drawn[24:26]), tuple(drawn[:6]))
    assert min(chain(*reads)) >= 60  # by chance
    found = last_of(list(find([DataSet(600, reads)], SearchExtent(NO_RANGE, 256, latest=FEW_WORDS))))
    assert isinstance(found, Recipe)
    assert (found.fields["seed"], found.fields["batch_size"]) == (1337, 8)
    assert "cached_samples" not in found.fields


def test_all_generators_that_drew_the_seed_are_told_the_likeliest_first() -> None:
    """758485056 has the same fourth word as 3141592653: the order of one epoch cannot tell them apart."""
    generators, n = (758485056, 3141592653), FILES
    drawn = 1398446480
    assert [int(TorchWords(generator).take(4)[3]) for generator in generators] == [drawn, drawn]
    reads = (tuple(order_head(n, drawn, 0, 16)),)
    ranges = tuple((low - 50, low + 50) for low in (drawn, *generators))
    events = list(find([DataSet(n, reads)], SearchExtent(ranges, 256, latest=FEW_WORDS)))
    assert last_of(events) == GeneratorsFound(tuple(Draw(generator, 0) for generator in generators))


def test_how_many_reads_are_needed_follows_from_the_samples() -> None:
    assert [reads_needed(n) for n in (600, 1_281_167)] == [10, 10]
    assert 10 < reads_needed(100) < 16
    assert reads_needed(20) > 2**32  # so few samples that any order may be of some seed


@pytest.mark.parametrize("hints", [(), (555_555,)])
def test_the_first_words_of_all_likely_seeds_come_before_what_takes_long(hints: tuple[int, ...]) -> None:
    """The last one of the most usual seeds, or one from the command line, that has made a model first."""
    seed, words = (hints or POPULAR_SEEDS[:FURTHEST_LOOKED_THROUGH])[-1], 3000
    drawn = TorchWords(seed)
    drawn.skip(words + SAMPLER_SEED_WORD)
    head = order_head(1000, int(drawn.take(1)[0]), 0, 24)
    events = list(find([DataSet(1000, (tuple(head),))], SearchExtent(((0, 0),), latest=1 << 12, hints=hints)))
    *before, found = [event for event in events if not isinstance(event, GeneratorsFound)]
    assert isinstance(found, SeedFound)
    assert found.draws == (Draw(seed, words),)
    assert {event.stage for event in before if isinstance(event, StageProgress)} <= {COMMON_STAGE, CHOSEN_STAGE}
    assert sum(event.of for event in before if isinstance(event, StageProgress) and not event.done) < 1 << 16


def test_parts_of_one_length_are_searched_with_orders_that_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []

    def build(spec: JobSpec, n: int, resolve: Resolve | None) -> Order:
        drawn.append((spec.model_dump_json(), n))
        return build_order(spec, n, resolve)

    monkeypatch.setattr("mlfs.explain.recipes.build_order", build)
    reads = tuple(random.Random("in no order").sample(range(1200), 16))
    events = find([DataSet(1200, (reads,))], SearchExtent(NO_RANGE, 256, latest=FEW_WORDS))
    for event in events:
        if isinstance(event, StageProgress) and event.stage == SPLITS_STAGE:
            if event.done == 0:
                drawn.clear()
            if event.done == event.of:
                break
    assert len(set(drawn)) > 300
    assert len(drawn) < 3 * len(set(drawn))  # few are kept of a data set that is not small
