"""tf.data and Keras: threads of one process read in nearly the order."""

from __future__ import annotations

import random

import pytest

from mlfs.explain.chance import REACH, bits_near_the_start
from mlfs.explain.fields import Fields
from mlfs.explain.next_epoch import chosen
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe
from mlfs.explain.search import find
from mlfs.explain.search_stages import SearchExtent
from mlfs.job import parse_job
from mlfs.orders.order import build_order

N = 1500


def read_by_threads(fields: Fields, epoch: int, threads: int, count: int, chance: int) -> DataSet:
    """A process' first reads: each thread takes the next file, and some take longer than others."""
    stream = build_order(parse_job({"name": "j", "epochs": 9} | fields), N).rank_stream(epoch, 0).tolist()
    draw = random.Random(chance)
    waiting, reads = stream[:threads], []
    ahead = iter(stream[threads:])
    for _ in range(count):
        reads.append(waiting.pop(draw.randrange(len(waiting))))
        waiting.append(next(ahead))
    return DataSet(N, (tuple(reads),))


KNOWN: list[Fields] = [
    {"sampler": "keras", "seed": 1337, "batch_size": 32},
    {"sampler": "keras", "seed": 123, "batch_size": 64},
    {"sampler": "tf-data", "seed": 42, "buffer_size": 1000},
    {"sampler": "tf-data", "seed": 0, "buffer_size": N},
]


@pytest.mark.parametrize("threads", [1, 4, 12])
@pytest.mark.parametrize("fields", KNOWN, ids=lambda fields: " ".join(map(str, fields.values())))
def test_what_threads_read_by_a_seed_that_people_choose_is_found(fields: Fields, threads: int) -> None:
    extent = SearchExtent(((0, 0),), 256, latest=1 << 12)
    event = list(find([read_by_threads(fields, 0, threads, 14, 3)], extent))[-1]
    assert isinstance(event, Recipe)
    assert {key: event.fields.get(key) for key in fields} == fields
    assert "ranks" not in event.fields


@pytest.mark.parametrize("between", [0, 1])
@pytest.mark.parametrize("fields", KNOWN[:3], ids=["32", "64", "tf-data"])
def test_the_second_epoch_tells_model_fit_from_a_loop(fields: Fields, between: int) -> None:
    event = list(find([read_by_threads(fields, 0, 4, 14, 3)], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(event, Recipe)
    both = [parse_job({"name": "j"} | one) for one in event.orders]
    seen = read_by_threads(fields | {"passes_between": between}, 1, 4, 20, 5)
    found = chosen(both, seen, (1, 0))
    assert found is not None
    assert (both[found[0]].passes_between or 0, found[1]) == (between, 1)


def test_reads_in_nearly_the_order_are_evidence_and_others_are_none() -> None:
    in_order = list(range(20))
    assert bits_near_the_start(in_order, N) == bits_near_the_start([at ^ 3 for at in in_order], N) > 90
    assert bits_near_the_start([at + REACH + 1 for at in in_order], N) == 0
    assert bits_near_the_start([*in_order[:-2], 900, 901], N) > 80  # two strays
    assert bits_near_the_start([*in_order[:-4], 900, 901, 902, 903], N) == 0
    assert bits_near_the_start([], N) == 0
