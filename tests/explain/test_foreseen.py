"""Where an epoch begins in a generator's words, looked up by its first reads: found at once, and not by chance."""

from __future__ import annotations

import random
from math import perm

import numpy as np
import pytest
import trio
from amounts import words_of_crops
from support.explaining import Inline

from mlfs.explain.evidence import LEAST_BITS
from mlfs.explain.foreseen import MOST_BEGINNINGS, MOST_PLACES, Foreseen, Generator, Place, reads_needed, spans
from mlfs.explain.foresight import Foresight
from mlfs.job import parse_job
from mlfs.orders.registry import build_order

# By generator, as `mlfs.explain.words` has it: whether a word seeds the order, and how many lie between.
AHEAD = {"default": (True, 3), "shared": (False, 2), "own": (False, 0)}


def order(n: int, seed: int, words_before: int, generator: str = "default") -> list[int]:
    told = {"sampler": "torch-random", "generator": generator, "seed": seed, "words_before": words_before, "epochs": 1}
    samples: list[int] = build_order(parse_job(told), n).rank_stream(0, 0).tolist()
    return samples


@pytest.mark.parametrize("generator", AHEAD)
@pytest.mark.parametrize("n", [40, 600, 1500, 100_000])
def test_a_table_tells_each_place_by_few_reads(generator: str, n: int) -> None:
    rng = random.Random(f"{generator} {n}")
    seed, low = rng.randrange(1 << 32), rng.randrange(1 << 20)
    table = Foreseen(Generator(seed, *AHEAD[generator], (low,)), n, (low, low + (1 << 12)))
    for place in (low, low + rng.randrange(1 << 12), low + (1 << 12) - 1):
        reads = reads_needed(n, table.places)
        assert reads <= 10
        assert table.places_of(order(n, seed, place, generator)[:reads]) == [place]


@pytest.mark.parametrize("n", [40, 100, 600, 1500, 100_000])
def test_a_wrong_place_is_taken_less_often_than_once_in_a_million(n: int) -> None:
    for places in (1 << 10, MOST_PLACES):
        reads = reads_needed(n, places)
        assert places * MOST_BEGINNINGS * 2**LEAST_BITS <= perm(n, reads)
        assert places * MOST_BEGINNINGS * 2**LEAST_BITS > perm(n, reads - 1)  # no more reads than that takes


def test_reads_in_other_orders_fit_as_often_as_is_said() -> None:
    n, rng = 100, random.Random(1)
    table = Foreseen(Generator(9, True, 3, (0,)), n, (0, 1 << 14))
    heads = [rng.sample(range(n), reads_needed(n, 1 << 14)) for _ in range(2000)]
    by_chance = sum(len(table.places_of(head[:2])) for head in heads) / len(heads)
    assert by_chance == pytest.approx((1 << 14) / (n * (n - 1)), rel=0.1)
    assert not any(table.places_of(head) for head in heads)


@pytest.mark.parametrize("accepted", [0.15, 0.5, 0.95])
@pytest.mark.parametrize("images", [100, 1500])
def test_what_the_epochs_before_drew_tells_where_to_look(images: int, accepted: float) -> None:
    rng = random.Random(f"{images} {accepted}")
    places = [rng.randrange(1 << 20)]
    for epoch in range(8):
        asked = spans(places)
        places.append(places[-1] + 4 + words_of_crops(images, rng, accepted))
        begin = [low <= places[-1] < high for low, high in asked]
        assert begin[0]
        assert sum(begin) == 1
        assert asked[0][1] - asked[0][0] <= (2 * (places[-1] - places[-2]) if epoch else MOST_PLACES)


def foresight(generators: list[Generator], n: int) -> Foresight:
    """One that is ready. A file's number is its sample's and a thousand."""
    made = Foresight(np.arange(1000, 1000 + n), generators)
    trio.run(made.prepare, Inline(0.0))
    return made


@pytest.mark.parametrize("workers", [1, 3])
def test_the_place_is_told_by_the_first_read_that_leaves_no_doubt(workers: int) -> None:
    n, batch = 600, 16
    generators = [Generator(seed, True, 3, (500, 3700)) for seed in (4, 5)]
    made, needed = foresight(generators, n), 0
    first, next_epoch = order(n, 5, 3700), order(n, 5, 6950)
    for sample in first[-20:]:
        assert made.read(1000 + sample, 7, as_predicted=True) is None
    for turn in range(batch):
        for worker in range(workers):
            found = made.read(1000 + next_epoch[worker * batch + turn], 7 + worker, as_predicted=turn == 1)
            needed += 1
            if found is not None:
                assert found == Place(generators[1], 6950)
                assert needed <= reads_needed(n, 2 * MOST_PLACES) * workers
                return
    raise AssertionError("not found")


def test_reads_of_another_order_or_of_files_that_are_no_samples_tell_nothing() -> None:
    made = foresight([Generator(5, True, 3, (500,))], 600)
    for sample in order(600, 6, 900)[:50]:
        assert made.read(1000 + sample, 7, as_predicted=False) is None
    for entry in range(50):
        assert made.read(entry, 7, as_predicted=False) is None
