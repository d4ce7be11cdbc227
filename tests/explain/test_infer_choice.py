"""Several hypotheses fit the first epoch: the next one's first reads choose, and tell what is drawn in between."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from math import lgamma, log, log2
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlfs.errors import JobError
from mlfs.explain.confirm import Finding
from mlfs.explain.data_sets import MOST_CANDIDATES, candidates
from mlfs.explain.fields import Fields
from mlfs.explain.hypotheses import ranked_fields
from mlfs.explain.next_epoch import chosen, continued
from mlfs.explain.question import MOST_HEADS, DataSet, likely, read_in, reads_needed, unlikely
from mlfs.explain.search_stages import LATEST_WORD, Draw
from mlfs.explain.usual import LOOKED_THROUGH, Seed, preset_of, usual_orders
from mlfs.job import JobSpec, parse_job
from mlfs.launchers import MOST_SEEDS, seeds_on_command_lines
from mlfs.orders.layouts.rows import ROWS
from mlfs.orders.order import Order, build_order
from mlfs.tree.scan import scan

N = 1600
# The same fourth word, 1398446480: one epoch's order cannot tell them apart.
GENERATORS = (758485056, 3141592653)
FINDING = Finding(0, N, 1398446480, 0, 1, (0,), 8, 2, 90.0)


def reads(fields: Fields, epoch: int, workers: int, batch: int, each: int) -> DataSet:
    """What each of a rank's workers reads first."""
    order = build_order(parse_job(fields), N).rank_stream(epoch, 0)
    batches = [order[at : at + batch].tolist() for at in range(0, N, batch)]
    return DataSet(N, tuple(tuple(chain(*batches[worker::workers]))[:each] for worker in range(workers)))


RANKED = ranked_fields(FINDING, [Draw(seed, 0) for seed in GENERATORS])


def parsed(ranked: list[Fields]) -> list[JobSpec]:
    return [parse_job(fields) for fields in ranked]


@pytest.mark.parametrize("right", range(len(RANKED)))
@pytest.mark.parametrize(("workers", "each"), [(1, 10), (4, 3), (12, 2)])
def test_the_first_reads_of_the_second_epoch_choose(right: int, workers: int, each: int) -> None:
    found = chosen(parsed(RANKED), reads(RANKED[right], 1, workers, 8, each), (1, 0))
    assert found is not None
    number, epoch = found
    chosen_order = build_order(parse_job(RANKED[number]), N).rank_stream(epoch, 0)
    assert chosen_order.tolist() == build_order(parse_job(RANKED[right]), N).rank_stream(1, 0).tolist()


def test_reads_of_another_order_choose_nothing() -> None:
    other = ranked_fields(FINDING._replace(seed=4711), ())[0]
    assert chosen(parsed(RANKED), reads(other, 1, 2, 8, 40), (1, 0)) is None
    assert chosen(parsed(RANKED), reads(RANKED[1], 1, 12, 8, 1), (1, 0)) is None  # too few of each process to tell


def test_ranks_that_read_side_by_side_choose_together() -> None:
    two = ranked_fields(FINDING._replace(world=2, ranks=(0, 1)), ())
    order = build_order(parse_job(two[0]), N)
    data_set = DataSet(N, tuple(tuple(order.rank_stream(3, rank)[:8].tolist()) for rank in (1, 0)))
    assert chosen(parsed(two), data_set, (3, 0)) == (0, 3)


def test_the_end_of_the_epoch_before_does_not_choose_what_reads_it_again() -> None:
    """A stream without an end begins its second epoch within a batch, before other workers have read the first one."""
    ranked = parsed(ranked_fields(FINDING._replace(n=N - 8, world=2, ranks=(0, 1)), ()))
    endless = next(number for number, spec in enumerate(ranked) if spec.endless)
    order = build_order(ranked[endless], N - 8)
    ends = [(*order.rank_stream(0, rank)[-8:].tolist(), *order.rank_stream(1, rank)[:12].tolist()) for rank in (0, 1)]
    assert chosen(ranked, DataSet(N - 8, tuple(ends)), (1, 0)) == (endless, 1)


def test_a_stream_without_an_end_is_told_by_one_pass() -> None:
    """A sample that one rank reads where its pass begins comes up again where the other one reads of the next pass."""
    loop: Fields = {"name": "j", "epochs": 9, "seed": 2025, "world_size": 2, "batch_size": 8, "seeding": "goes-on"}
    ends, begins = ((268, 574, 374), (557, 474, 562, 65)), ((457, 108, 36, 89, 360), (34, 417, 552, 310, 103))
    heads = (begins[0], (*ends[0], 157, 516), (*ends[1], 276, 321), begins[1])
    assert chosen(parsed([loop | {"endless": True}, loop]), DataSet(600, heads), (1, 0)) == (0, 1)


def test_a_sample_that_comes_up_again_is_the_one_that_goes_on() -> None:
    order = np.array([3, 1, 4, 1, 5, 2, 3, 0])
    heads = ((3, 1, 4, 1), (5, 2, 3), (0, 9))
    assert read_in(order, DataSet(10, heads)).heads == ((0, 1, 2, 3), (4, 5, 6), (7, -1))


@pytest.mark.parametrize("between", [0, 2, 500, 123_457])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_is_drawn_between_two_epochs_tells_the_third(between: int, persistent: bool) -> None:
    shape: Fields = {"sampler": "torch-random", "generator": "default", "epochs": 9, "batch_size": 8, "name": "j"}
    lost = shape | {"seed": 42, "words_before": 1000, "words_between": 0}
    right = lost | {"words_between": between, "persistent_workers": persistent}
    seed_of_second = 1000 + (2 if persistent else 4) + between  # words before the second epoch's base_seed or its place
    (more,) = continued(parsed([lost]), 0, [Draw(42, seed_of_second), Draw(7, 1)])
    found = build_order(parse_job(lost | more), N)
    for epoch in (1, 2, 3):
        expected = build_order(parse_job(right), N).rank_stream(epoch, 0)
        assert found.rank_stream(epoch - 1, 0).tolist() == expected.tolist()


def test_a_false_finding_is_rarer_than_one_in_a_million() -> None:
    """Seeds tried, times hypotheses, times shapes (batch and workers), times the share of orders that begin so."""
    seeds = 2**32 + 2**20 + (LOOKED_THROUGH + MOST_SEEDS) * LATEST_WORD
    shapes = 2**10
    for n in (40, 41, 50, 64, 100, 600, 50_000, 1_281_167):
        counted = reads_needed(n) - 1  # the last one need not fit
        head = tuple(range(n - counted - 1, n))
        data_sets = [DataSet(n, (head,) * MOST_HEADS)] * MOST_CANDIDATES
        hypotheses = len(likely(data_sets)) + len(unlikely(data_sets))
        orders_bits = (lgamma(n + 1) - lgamma(n - counted + 1)) / log(2)
        assert log2(seeds) + log2(hypotheses) + log2(shapes) - orders_bits < log2(1e-6)


class Classes:
    """A data set of five directories, one after the other."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, path: bytes) -> int:
        return -1

    def sizes(self) -> npt.NDArray[np.int64]:
        return np.ones(self.n, dtype=np.int64)

    def directories(self) -> npt.NDArray[np.int64]:
        return np.arange(self.n) // -(-self.n // 5)


def built(fields: Fields, n: int) -> Order:
    return build_order(parse_job(fields), n, Classes(n))


@pytest.mark.parametrize("n", [100, 60])
def test_orders_that_stand_together_begin_alike_and_those_with_presets_are_the_same(n: int) -> None:
    for usual in usual_orders(n, (Seed(0.0, 3),), 50):
        made = [built({"name": "j", "epochs": 3} | fields, n) for fields in usual.orders]
        named = [built({"name": "j", "epochs": 3} | preset_of(fields), n) for fields in usual.orders]
        firsts = [order.rank_stream(0, 0).tobytes() for order in made]
        assert len(set(firsts)) == 1, usual
        for order, preset in zip(made, named, strict=True):
            assert [order.rank_stream(epoch, 0).tolist() for epoch in range(3)] == [
                preset.rank_stream(epoch, 0).tolist() for epoch in range(3)
            ]


@pytest.mark.parametrize("dealing", ["strided", "padded", "contiguous"])
def test_an_order_by_its_own_name_is_dealt_as_its_parts_are(dealing: str) -> None:
    for usual in usual_orders(101, (Seed(0.0, 3),)):
        for fields in usual.orders:
            parts = {"name": "j", "epochs": 2, "world_size": 3, "dealing": dealing} | fields
            ends = not parts.get("endless") and parts.get("worker_dealing") != "parts"  # else nothing is padded, or cut
            if parts["sampler"] == "composed" and ends:
                made, named = (built(job, 101) for job in (parts, preset_of(parts)))
                assert all(np.array_equal(made.rank_stream(1, rank), named.rank_stream(1, rank)) for rank in range(3))


def test_a_seed_is_looked_for_on_the_command_line() -> None:
    words = [
        "--lr=0.1",
        "--batch-size",
        "64",
        "--epochs=90",
        "--seed=3141592653",
        "id",
        "1234567890123",
        "--data-seed",
        "-1",
    ]
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert seeds_on_command_lines([process.pid]) == (3141592653, 2**32 - 1, 1234567890123 & 0xFFFFFFFF)
        process.communicate(b"")
    assert not Path(f"/proc/{process.pid}").exists()
    assert seeds_on_command_lines([process.pid]) == ()


def test_files_of_no_job_are_not_opened_to_see_whether_they_have_rows(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.h5").touch()
    fd, asked = os.open(tmp_path, os.O_RDONLY), list[str]()
    manifest = scan(fd, workers=1)
    os.close(fd)

    def samples(spec: JobSpec) -> npt.NDArray[np.int64]:
        asked.append(spec.layout)
        raise JobError("none")

    assert candidates(manifest, [range(1, 15)], samples, [0]) == []
    assert asked
    assert not {*asked} & ROWS.keys()
