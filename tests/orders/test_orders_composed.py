"""Loops that people write themselves, run here with the real libraries, against the orders put together for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.orders.generators import Seeding, seeding_of
from mlfs.orders.order import build_order

EPOCHS = 4
SEEDINGS: dict[str, Callable[[int, int, int], Any]] = {
    "same": lambda seed, epoch, rank: seed,
    "seed+epoch": lambda seed, epoch, rank: seed + epoch,
    "seed + epoch - 1": lambda seed, epoch, rank: seed + epoch - 1,
    "1000*seed+epoch": lambda seed, epoch, rank: 1000 * seed + epoch,
    "epoch*7+seed+1": lambda seed, epoch, rank: epoch * 7 + seed + 1,
    "seed+epoch+100*rank": lambda seed, epoch, rank: seed + epoch + 100 * rank,
    "[seed,epoch]": lambda seed, epoch, rank: [seed, epoch],
}


class TorchLoop:
    """torch.Generator, as a loop calls it."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)

    def permutation(self, n: int) -> list[int]:
        return torch.randperm(n, generator=self.rng).tolist()

    def shuffle(self, values: list[int]) -> list[int]:
        return [values[at] for at in self.permutation(len(values))]

    def sample(self, n: int, count: int) -> list[int]:
        return self.permutation(n)[:count]

    def choices(self, n: int, count: int) -> list[int]:
        return torch.randint(n, (count,), generator=self.rng).tolist()

    def words(self, count: int) -> None:
        torch.randint(100, (count,), generator=self.rng)


class NumpyLoop:
    """default_rng or RandomState, as a loop calls it."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def permutation(self, n: int) -> list[int]:
        return self.rng.permutation(n).tolist()

    def shuffle(self, values: list[int]) -> list[int]:
        array = np.array(values, dtype=np.int64)
        self.rng.shuffle(array)
        return array.tolist()

    def sample(self, n: int, count: int) -> list[int]:
        return self.rng.choice(n, count, replace=False).tolist()

    def choices(self, n: int, count: int) -> list[int]:
        return self.rng.choice(n, count).tolist()

    def words(self, count: int) -> None:
        draw = self.rng.integers if hasattr(self.rng, "integers") else self.rng.randint
        draw(0, 2**32, count, dtype=np.uint32)


class PythonLoop:
    """random.Random, as a loop calls it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def permutation(self, n: int) -> list[int]:
        return self.shuffle(list(range(n)))

    def shuffle(self, values: list[int]) -> list[int]:
        values = list(values)
        self.rng.shuffle(values)
        return values

    def sample(self, n: int, count: int) -> list[int]:
        return self.rng.sample(range(n), count)

    def choices(self, n: int, count: int) -> list[int]:
        return self.rng.choices(range(n), k=count)

    def words(self, count: int) -> None:
        for _ in range(count):
            self.rng.getrandbits(32)


LOOPS: dict[str, Callable[[Any], Any]] = {
    "torch": TorchLoop,
    "numpy": lambda seed: NumpyLoop(np.random.default_rng(seed)),
    "numpy-legacy": lambda seed: NumpyLoop(np.random.RandomState(seed)),
    "python": PythonLoop,
}
DEALT: dict[str, Callable[[list[int], int, int], list[int]]] = {
    "strided": lambda order, rank, world: order[rank::world],
    "contiguous": lambda order, rank, world: np.array_split(np.array(order, dtype=np.int64), world)[rank].tolist(),
    "padded": lambda order, rank, world: (order + order * world)[: -(-len(order) // world) * world][rank::world],
    "alike": lambda order, rank, world: order,
}


def drawn(loop: Any, kind: str, n: int, count: int, before: list[int]) -> list[int]:
    """What a loop reads of n in an epoch, and what it goes on with."""
    if kind == "permutation":
        return loop.permutation(n)
    if kind == "shuffle":
        return loop.shuffle(before)
    return loop.sample(n, count) if kind == "sample" else loop.choices(n, count)


def written(fields: dict[str, Any], n: int) -> dict[tuple[int, int], list[int]]:
    """The reads of each epoch and rank, by a loop with the real library."""
    world, seeding, kind = fields["world_size"], fields["seeding"], fields["draw"]
    reads: dict[tuple[int, int], list[int]] = {}
    for rank in range(world):
        mine = DEALT[fields["dealing"]](list(range(n)), rank, world) if fields["shard_first"] else list(range(n))
        count = fields["num_samples"] if kind == "with-replacement" else min(fields["num_samples"], len(mine))
        values, loop = list(range(len(mine))), None
        for epoch in range(EPOCHS):
            if seeding != "goes-on" or loop is None:
                number = fields["seed"] if seeding == "goes-on" else SEEDINGS[seeding](fields["seed"], epoch, rank)
                loop = LOOPS[fields["generator"]](number)
                loop.words(fields["words_before"])
            values = drawn(loop, kind, len(mine), count, values)
            loop.words(fields["words_between"])
            order = [mine[at] for at in values[:count]]
            reads[epoch, rank] = order if fields["shard_first"] else DEALT[fields["dealing"]](order, rank, world)
    return reads


@given(data=st.data(), n=st.integers(4, 150), world=st.integers(1, 4))
@settings(max_examples=cases(100), deadline=None)
def test_a_loop_of_ones_own_is_predicted(data: st.DataObject, n: int, world: int) -> None:
    generator = data.draw(st.sampled_from(list(LOOPS)))
    usual = [*SEEDINGS, "goes-on"]
    seeding = data.draw(st.sampled_from([one for one in usual if one[0] != "[" or generator.startswith("numpy")]))
    fields = {
        "generator": generator,
        "seeding": seeding,
        "draw": data.draw(st.sampled_from(["permutation", "shuffle", "sample", "with-replacement"])),
        "dealing": data.draw(st.sampled_from(list(DEALT))),
        "shard_first": data.draw(st.booleans()),
        "num_samples": data.draw(st.integers(1, n)),
        "words_before": data.draw(st.integers(0, 9)),
        "words_between": data.draw(st.integers(0, 9)),
        "seed": data.draw(st.integers(1, 4_000_000)),
        "world_size": world,
    }
    reads = written(fields, n)
    assert_same_order(n, lambda epoch, rank: reads[epoch, rank], epochs=EPOCHS, **fields)


def test_giving_a_part_puts_an_order_together() -> None:
    """`--draw`, `--seeding` and `--dealing` need no `--sampler composed` beside them."""
    spec = parse_job({"epochs": 2, "seeding": "seed+epoch", "generator": "numpy", "seed": 7})
    assert spec.sampler == "composed"
    assert build_order(spec, 30).rank_stream(1, 0).tolist() == np.random.default_rng(8).permutation(30).tolist()
    assert parse_job(spec.to_json()) == spec


@pytest.mark.parametrize("fields", [{"generator": "numpy"}, {"generator": "jax", "seeding": "same"}, {"copies": 2}])
def test_what_nothing_else_reads_puts_an_order_together(fields: dict[str, object]) -> None:
    assert job(**fields).sampler == "composed"
    assert job(generator="own", sampler="torch-random").sampler == "torch-random"


@pytest.mark.parametrize(
    ("field", "called", "word"),
    [
        ("generator", "random", "python"),
        ("generator", "RandomState", "numpy-legacy"),
        ("draw", "randperm", "permutation"),
    ],
)
def test_words_of_scripts_are_known(field: str, called: str, word: str) -> None:
    with pytest.raises(JobError, match=f'did you mean "{word}"'):
        job(**{field: called})


@pytest.mark.parametrize("name", ["numpy", "numpy-legacy", "python", "torch"])
def test_millions_of_words_are_passed_over_in_portions(name: str) -> None:
    words = 1_000_001
    loop = LOOPS[name](5)
    loop.words(words)
    spec = job(draw="permutation", generator=name, seed=5, words_before=words)
    assert build_order(spec, 40).rank_stream(0, 0).tolist() == loop.permutation(40)


@pytest.mark.parametrize(
    ("text", "seeding"),
    [
        ("seed+epoch", Seeding("linear", seed=1, epoch=1)),
        (" 1000 * seed + epoch - 1 ", Seeding("linear", seed=1000, epoch=1, constant=-1)),
        ("epoch*3+seed+rank*10", Seeding("linear", seed=1, epoch=3, rank=10)),
        ("epoch", Seeding("linear", epoch=1)),
        ("[seed, epoch]", Seeding("[seed,epoch]")),
        ("fold-in", Seeding("fold-in")),
        ("", None),
        ("3", None),
        ("seed epoch", None),
        ("seed**2", None),
        ("seed+worker", Seeding("linear", seed=1, worker=1)),
        ("seed+node", None),
        ("9" * 30 + "*seed", None),
    ],
)
def test_a_rule_of_seeding_is_a_sum_or_a_word(text: str, seeding: Seeding | None) -> None:
    assert seeding_of(text) == seeding


@pytest.mark.parametrize(
    ("fields", "field", "way_out"),
    [
        ({"seeding": "seed^epoch"}, "seeding", "1000*seed"),
        ({"seeding": "goes-on", "generator": "jax"}, "seeding", "split"),
        ({"seeding": "fold-in", "generator": "numpy"}, "seeding", "seed+epoch"),
        ({"seeding": "[seed,epoch]", "generator": "torch"}, "seeding", "only numpy"),
        ({"seeding": "split", "generator": "jax", "words_before": 3}, "words_before", "left out"),
        ({"seeding": "same", "generator": "polars", "words_once": 2}, "words_once", "left out"),
        ({"seeding": "seed+epoch-1", "generator": "numpy"}, "seeding", "takes 0 or more, and gets -1"),
        ({"seeding": "seed-epoch", "generator": "numpy-legacy", "seed": 3, "epochs": 9}, "seeding", "gets -5"),
        ({"draw": "with-replacement"}, "num_samples", "needs it"),
        ({"draw": "permutation", "generator": "numpy-legacy", "seed": 2**32}, "seed", "0 to 4294967295"),
        ({"draw": "weighted", "generator": "jax", "seeding": "same"}, "generator", "torch, loader"),
        ({"draw": "repeat-factors", "weights_file": "/w"}, "endless", "differ in length"),
        ({"draw": "weighted"}, "weights_file", "needs it"),
        ({"draw": "per-group", "per_group": 2, "generator": "numpy-legacy"}, "column", "column_file"),
        ({"grouping": "batches", "column": "size", "endless": True}, "grouping", "by-length"),
        ({"grouping": "by-length", "column": "size", "draw": "permutation"}, "column", "give column_file"),
        ({"grouping": "by-length", "column": "size", "shard_first": True}, "shard_first", "over all samples"),
        ({"seed_below": 9, "draw": "permutation"}, "seed_below", "seed_drawn_by"),
        ({"epoch_steps": 9, "draw": "permutation"}, "epoch_steps", '"endless"'),
        ({"endless": True, "dealing": "padded"}, "dealing", "strided"),
        ({"endless": True, "drop_last": True}, "drop_last", "no last batch"),
        ({"endless": True, "shard_first": True}, "shard_first", "as it comes"),
        ({"endless": True, "worker_dealing": "samples"}, "num_workers", "dealt to workers"),
        ({"endless": True, "worker_dealing": "samples", "num_workers": 3, "epoch_steps": 4}, "epoch_steps", "multiple"),
        ({"seeding": "drawn", "generator": "jax"}, "seeding", "split"),
        ({"sampler": "torch-random", "generator": "jax"}, "generator", '"shared"'),
        ({"sampler": "torch-random", "draw": "permutation"}, "draw", "left out"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_with_those_that_do(
    fields: dict[str, object], field: str, way_out: str
) -> None:
    with pytest.raises(JobError) as caught:
        build_order(job(**fields), 9)
    assert caught.value.field == field
    assert way_out in str(caught.value)


def test_polars_shuffles_are_known() -> None:
    # pl.int_range(68, eager=True).shuffle(seed=0) of polars 2.1.0
    read = [
        31,
        0,
        5,
        63,
        62,
        15,
        67,
        40,
        24,
        25,
        61,
        58,
        35,
        56,
        21,
        52,
        12,
        6,
        57,
        54,
        53,
        45,
        3,
        44,
        38,
        66,
        65,
        46,
        59,
        39,
        36,
        22,
        51,
        2,
        26,
        50,
        42,
        23,
        20,
        4,
        47,
        8,
        41,
        33,
        7,
        55,
        13,
        49,
        10,
        18,
        16,
        9,
        27,
        34,
        11,
        43,
        1,
        37,
        30,
        32,
        17,
        29,
        64,
        19,
        60,
        28,
        48,
        14,
    ]
    assert_same_order(68, lambda epoch, rank: read, draw="permutation", generator="polars", seeding="same", seed=0)


def test_each_rank_draws_of_its_own_part_no_more_than_it_has() -> None:
    """Words are passed over as they are drawn: four ranks of ten samples each, of which forty are wanted."""
    fields = {"draw": "sample", "generator": "torch", "shard_first": True, "num_samples": 40, "world_size": 4}
    order = build_order(parse_job({"name": "j", "epochs": 4, "seed": 3} | fields), 40)
    for rank in range(4):
        generator = torch.Generator().manual_seed(3)
        for epoch in range(4):
            part = np.arange(rank, 40, 4)[torch.randperm(10, generator=generator).numpy()]
            assert order.rank_stream(epoch, rank).tolist() == part.tolist()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"endless": True, "generator": "loader"}, "generator"),
        ({"endless": True, "generator": "own"}, "generator"),
        ({"draw": "weighted", "generator": "torch", "weights_file": "/nowhere", "num_samples": 1}, "num_samples"),
    ],
)
def test_what_no_library_draws_so_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(JobError) as refused:
        build_order(parse_job({"name": "j", "epochs": 4, "sampler": "composed"} | fields), 40)
    assert refused.value.field == field


def test_factors_by_which_passes_are_empty_are_refused(tmp_path: Path) -> None:
    (tmp_path / "factors").write_text("\n".join(["1e-60"] * 40))
    fields = {"draw": "repeat-factors", "endless": True, "weights_file": str(tmp_path / "factors")}
    with pytest.raises(JobError, match="less than 1"):
        build_order(parse_job({"name": "j", "epochs": 4} | fields), 40)
