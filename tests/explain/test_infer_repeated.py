"""Repeated augmentation is told from a plain permutation, and an order that explains some reads of many is given up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, groupby, zip_longest
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import trio
from support.explaining import SearchInline
from test_explainer import explaining, order_of, simulate

from mlfs.explain.chance import borne_out
from mlfs.explain.confirm import Finding
from mlfs.explain.data_sets import Candidate
from mlfs.explain.fields import Fields
from mlfs.explain.first_reads import FirstReads
from mlfs.explain.hypotheses import Before, led_by, of_finding, ranked_fields, repeated, repeated_permutation
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe, repeats_samples
from mlfs.explain.search import find
from mlfs.explain.search_stages import SearchExtent, SeedFound
from mlfs.explain.statistics import InferenceState
from mlfs.follow.score import Cell, Open
from mlfs.job import parse_job
from mlfs.launchers import Whose
from mlfs.orders.order import build_order
from mlfs.orders.streams import build_streams

N = 1008  # of so few the search keeps all orders that it draws, from one test to the next
EXTENT = SearchExtent(((0, 0),), 1 << 12, latest=1 << 12)


def opens_of(fields: Fields, world: int, workers: int, batch: int, each: int, epoch: int = 0) -> list[list[int]]:
    """What each worker of each rank opens first, each file as often as it is opened."""
    order = build_order(parse_job({"name": "j", "epochs": 9, "world_size": world} | fields), N)
    heads = []
    for rank in range(world):
        stream = order.rank_stream(epoch, rank)
        batches = [stream[at : at + batch].tolist() for at in range(0, len(stream), batch)]
        heads += [list(chain(*batches[worker :: max(1, workers)]))[:each] for worker in range(max(1, workers))]
    return heads


def without_repeats(opens: list[list[int]]) -> DataSet:
    """The first reads as they are searched with."""
    return DataSet(N, tuple(tuple(entry for entry, _ in groupby(head)) for head in opens))


def found_in(opens: list[list[int]]) -> Fields:
    """The likeliest hypothesis of an epoch's first opens."""
    data_set = without_repeats(opens)
    event = [event for event in find([data_set], EXTENT) if isinstance(event, SeedFound | Recipe)][-1]
    if isinstance(event, Recipe) and repeats_samples(event.fields):
        return event.fields | (repeated_permutation(N, int(str(event.fields["seed"])), opens) or {})
    if isinstance(event, Recipe):
        return event.fields
    ranked = ranked_fields(event.finding, event.draws)
    return led_by(repeated(event.finding, opens), {"set_epoch": False}, ranked)[0]


# With another seed than the sampler's default, batches must show ten samples in a row, as plain permutations do.
DRAWN = [
    (world, draw.choice((0, 1, 2, 4)), draw.choice((8, 16, 20, 32, 64)), 0)
    for draw in (random.Random(7),)
    for world in (1, 1, 2, 2, 4, 5, 8)
]
DRAWN += [(1, 2, 64, 3259), (2, 0, 32, 77)]


@pytest.mark.parametrize(("world", "workers", "batch", "seed"), DRAWN)
def test_repeated_augmentation_is_found_from_its_first_opens(world: int, workers: int, batch: int, seed: int) -> None:
    opens = opens_of({"sampler": "ra-sampler", "seed": seed}, world, workers, batch, 60)
    found = found_in(opens)
    assert (found["sampler"], found.get("seed"), found["world_size"]) == ("ra-sampler", seed, world)
    assert "ranks" not in found
    assert found.get("batch_size", batch) == batch
    order = build_order(parse_job(found | {"name": "j"}), N)
    for epoch in (0, 1):
        right = opens_of({"sampler": "ra-sampler", "seed": seed}, world, 0, batch, N, epoch)
        assert [order.rank_stream(epoch, rank).tolist() for rank in range(world)] == right


def test_what_a_launcher_says_of_ranks_deals_no_repeated_samples_by_batches() -> None:
    opens = opens_of({"sampler": "ra-sampler"}, 2, 2, 32, 100)
    reads, ranks = FirstReads(), (0, 0, 1, 1)
    for entries in zip(*opens, strict=True):
        for process, entry in enumerate(entries):
            reads.add(entry, process, 9 + ranks[process])
    candidate = Candidate({}, np.arange(N), without_repeats([head[:15] for head in opens]))
    event = next(event for event in find([candidate.data_set], EXTENT) if isinstance(event, SeedFound))
    with patch("mlfs.explain.hypotheses.whose", lambda _: [Whose(9 + rank, rank, 2, True) for rank in ranks]):
        spec = of_finding(candidate, event.finding, event.draws, Before(), reads, 10)[0].spec
    assert (spec.sampler, spec.world_size, spec.batch_size) == ("ra-sampler", 2, 32)


def test_timms_sampler_is_the_same_with_its_own_defaults() -> None:
    found = found_in(opens_of({"sampler": "timm-repeat-aug"}, 8, 2, 32, 60))
    assert (found["sampler"], found["seed"], found["world_size"], found["batch_size"]) == ("ra-sampler", 0, 8, 32)


def test_the_ranks_of_one_node_of_several_are_found() -> None:
    heads = opens_of({"sampler": "ra-sampler"}, 16, 2, 32, 60)
    found = found_in(heads[8:16])
    assert (found["world_size"], found["ranks"], found["batch_size"]) == (16, [4, 5, 6, 7], 32)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("workers", "batch"), [(0, 16), (2, 8), (3, 64)])
def test_a_plain_permutation_is_none_however_often_its_files_are_opened(times: int, workers: int, batch: int) -> None:
    heads = opens_of({"sampler": "torch-distributed", "seed": 3}, 1, workers, batch, 60)
    found = found_in([[entry for entry in head for _ in range(times)] for head in heads])
    assert (found["sampler"], found["seed"], found["world_size"]) == ("torch-distributed", 3, 1)


def test_nothing_but_a_plain_permutation_of_one_rank_may_be_repeated() -> None:
    opens = opens_of({"sampler": "ra-sampler", "seed": 5}, 1, 2, 16, 60)
    finding = Finding(0, N, 5, 0, 1, (0,), None, None, 90.0)
    assert repeated(finding, opens) is not None
    for other in (finding._replace(world=2), finding._replace(seed=-1), finding._replace(words_before=2)):
        assert repeated(other, opens) is None
    assert repeated(finding, []) is None
    stray = np.random.default_rng(3).permutation(N)[:60].tolist()
    assert repeated(finding, [opens[0], stray, stray[::-1]]) is None  # most processes read otherwise


def test_first_reads_know_how_often_each_was_opened() -> None:
    reads = FirstReads()
    for entry in (4, 4, 4, 5, 5, 6, 4):
        reads.add(entry, 1, 0)
        reads.add(9, 2, 0)
    assert reads.opens() == [[4, 4, 4, 5, 5, 6, 4], [9] * 7]
    assert reads.heads(1) == [[4, 5, 6, 4], [9]]
    assert [read.sample for read in reads.recent] == [4, 9, 4, 9, 4, 9, 5, 9, 5, 9, 6, 9, 4, 9]
    assert (reads.total, reads.opened) == (5, 14)


def opened(process: int, parent: int, agrees: bool) -> Open:
    return Open(0, process, parent, Cell(0, 0), agrees, 0, -1)


def test_a_hypothesis_is_borne_out_by_all_that_a_reader_opens() -> None:
    workers = [opened(100 + at % 4, 10, True) for at in range(40)]
    beside = [opened(7, 1, False) for _ in range(400)]
    assert borne_out([*workers, *beside])
    assert not borne_out([*workers, *(opened(100, 10, False) for _ in range(60))])
    assert not borne_out([*(opened(8, 1, True) for _ in range(11)), *beside])
    assert not borne_out([])


def test_what_explains_a_run_of_reads_and_not_the_rest_is_not_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch begins as a permutation does that mlfs knows, and goes on otherwise."""
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, explainer):
            known = list(order_of(jobs.manifest, 0, seed=3))
            for epoch in range(3):
                rest = np.random.default_rng([epoch, 11]).permutation(known[40:]).tolist()
                for entry in known[:40] + rest:
                    await jobs.read(entry, 100 + epoch)
            await trio.testing.wait_all_tasks_blocked()
            tried = [job.spec.sampler for job, *_ in jobs.installed]
            assert sorted(tried) == ["explicit", "torch-distributed"]  # that they are read again is tried once as well
            assert not jobs.running
            assert explainer.statistics().inference.state == InferenceState.UNKNOWN

    simulate(body)


def in_turn(streams: list[list[int]], workers: int, batch: int, pid: int) -> Iterator[tuple[int, int]]:
    """(process, entry) of processes that read a file each in turn."""
    heads = []
    for stream in streams:
        batches = [stream[at : at + batch] for at in range(0, len(stream), batch)]
        heads += [list(chain(*batches[worker :: max(1, workers)])) for worker in range(max(1, workers))]
    for row in zip_longest(*heads):
        yield from ((pid + number, entry) for number, entry in enumerate(row) if entry is not None)


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 2), (4, 0)])
def test_a_reader_that_repeats_is_followed_over_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, workers: int
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    fields: Fields = {"sampler": "ra-sampler", "seed": 0, "world_size": world, "batch_size": 16, "epochs": 9}

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            for epoch in range(3):
                made = build_streams(parse_job(fields), jobs.manifest)
                streams = [made.epoch_ids(epoch, rank).tolist() for rank in range(world)]
                for process, entry in in_turn(streams, workers, 16, 100 * epoch + 10):
                    await jobs.read(entry, process, 1000 + (process % 100 - 10) // max(1, workers))
            (job,) = jobs.running.values()
            assert len(jobs.installed) == 1
            assert (job.spec.sampler, job.spec.world_size) == ("ra-sampler", world)
            assert job.score.agreed == job.score.observed == 3 * world * made.length(0)

    simulate(body)
