"""A registration that lacks what was drawn from its generator, or has it wrong: the reads tell."""

from __future__ import annotations

import random
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from amounts import words_of_crops
from support.explaining import BATCH, FILES, explaining, order_of, simulate

from mlfs.explain.confirm import order_head
from mlfs.explain.question import DataSet
from mlfs.explain.search import find
from mlfs.explain.search_stages import PlaceFound, SearchExtent, StageProgress, WordsAsked
from mlfs.explain.seed_search import SeedSearch
from mlfs.orders.mt19937 import TorchWords, words_of_randperm


def read_by(order: list[int], workers: int, batch: int, first_process: int) -> list[tuple[int, int]]:
    """(entry, process) in the order of time, as a DataLoader's workers read that take turns; 0 workers: one process."""
    batches = [order[at : at + batch] for at in range(0, len(order), batch)]
    if not workers:
        return [(entry, 7) for entry in order]
    turns = [list(chain(*batches[worker::workers])) for worker in range(workers)]
    rounds = zip_longest(*turns)
    return [(entry, first_process + worker) for one in rounds for worker, entry in enumerate(one) if entry is not None]


GENERATORS = ("default", "shared", "own")


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(("workers", "told_batch"), [(0, BATCH), (2, 32)])
def test_words_drawn_before_and_between_are_found_from_the_registered_seed(
    tmp_path: Path, generator: str, workers: int, told_batch: int
) -> None:
    drawn = random.Random(f"{generator} {workers}")
    seed, before, between = drawn.randrange(1 << 32), drawn.randrange(1, 900_000), drawn.randrange(1, 5000)
    fields = {"sampler": "torch-random", "seed": seed, "generator": generator}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", batch_size=told_batch, **fields)
            truth = fields | {"words_before": before, "words_between": between}
            needed: list[int] = []
            for epoch in range(3):
                order = list(order_of(jobs.manifest, epoch, **truth))
                installed = len(jobs.installed)
                for number, (entry, process) in enumerate(read_by(order, workers, BATCH, 100 * epoch + 10), 1):
                    await jobs.read(entry, process)
                    if len(jobs.installed) > installed and len(needed) == epoch:
                        needed.append(number)
            (job,) = jobs.running.values()
            assert len(needed) == 2  # the third epoch goes on like the second
            assert max(needed) <= 24
            assert (job.spec.words_before, job.spec.words_between) == (before, between)
            assert job.findings.way_out == f"--words-before {before} --words-between {between}"
            assert job.score.observed == 3 * FILES
            assert job.score.agreed == 3 * FILES

    simulate(body)


async def read_epochs(jobs: Any, orders: list[list[int]], workers: int) -> list[int]:
    """Read them; returns for each that began otherwise than predicted after how many reads that was known."""
    needed: list[int] = []
    for epoch, order in enumerate(orders):
        installed = len(jobs.installed)
        for number, (entry, process) in enumerate(read_by(order, workers, BATCH, 100 * epoch + 10), 1):
            await jobs.read(entry, process)
            if len(jobs.installed) > installed:
                needed.append(number)
                installed = len(jobs.installed)
    return needed


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_amounts_that_change_are_found_anew_in_each_epoch_from_its_first_reads(
    tmp_path: Path, generator: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.correction.MOST_SEARCHES", 3)
    drawn = random.Random(f"{generator} {workers} changing")
    seed, epochs = drawn.randrange(1 << 32), 6  # more than searches that may be in vain
    fields = {"sampler": "torch-random", "seed": seed, "generator": generator, "epochs": epochs}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, explainer):
            await jobs.register(name="train", **fields)
            before, orders = 0, []
            for _ in range(epochs):
                orders.append(list(order_of(jobs.manifest, 0, **fields | {"words_before": before})))
                before += 5 * FILES + drawn.randrange(FILES)
            needed = await read_epochs(jobs, orders, workers)
            (job,) = jobs.running.values()
            assert len(needed) == epochs - 1
            assert max(needed) <= 24
            assert job.score.agreed == job.score.observed == epochs * FILES
            assert job.findings.known[-1].startswith("this job draws another number of words")
            assert len(job.findings.known) == 2  # what the second epoch seemed to say, and this once
            assert job.findings.way_out == ""  # nobody could have said it
            assert explainer.statistics().cases["train"].searches == epochs - 1

    simulate(body)


@pytest.mark.parametrize(("generator", "workers", "reads"), [("default", 0, 17), ("shared", 0, 17), ("default", 2, 20)])
def test_amounts_that_augmentation_draws_are_found_by_the_first_reads_of_each_epoch(
    tmp_path: Path, generator: str, workers: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number that was told is the one between the first two epochs, as whoever looks at a run finds it."""
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)
    drawn = random.Random(f"{generator} {workers} augments")
    fields = {"sampler": "torch-random", "seed": drawn.randrange(1 << 32), "generator": generator, "epochs": 6}
    own = 4 if generator == "default" else 2 + 2 * words_of_randperm(FILES)
    amounts = [words_of_crops(FILES, drawn, accepted) for accepted in (0.5, 0.9, 0.2, 0.2, 0.6)]

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            told = amounts[0] if not workers else 0
            await jobs.register(name="train", words_before=1000, words_between=told, **fields)
            before, orders = 1000, []
            for amount in [*amounts, 0]:
                orders.append(list(order_of(jobs.manifest, 0, **fields | {"words_before": before})))
                before += own + amount
            needed = await read_epochs(jobs, orders, workers)
            (job,) = jobs.running.values()
            assert len(needed) == (5 if workers else 4)
            assert max(needed) <= reads
            assert job.score.agreed == job.score.observed == 6 * FILES

    simulate(body)


def test_a_script_that_is_started_again_begins_with_its_first_epoch(tmp_path: Path) -> None:
    fields = {"sampler": "torch-random", "seed": 5, "generator": "default"}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", **fields)
            places = [3000, 9000, 16000]
            orders = [list(order_of(jobs.manifest, 0, **fields | {"words_before": place})) for place in places]
            await read_epochs(jobs, orders, 0)
            assert jobs.running["train"].spec.start_epoch == 2
            await read_epochs(jobs, orders[:1], 2)
            (job,) = jobs.running.values()
            assert job.spec.start_epoch == 0
            assert job.score.agreed == job.score.observed == 4 * FILES
            assert [job.score.cells[epoch, 0].observed for epoch in range(3)] == [2 * FILES, FILES, FILES]

    simulate(body)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("seeded", [True, False])
def test_a_place_is_found_among_millions(monkeypatch: pytest.MonkeyPatch, quick: bool, seeded: bool) -> None:
    monkeypatch.setattr("mlfs.explain.search_stages.has_numba", lambda: quick)
    seed, place, n = 1, 3_123_457, 1_281_167
    words = TorchWords(seed)
    words.skip(place)
    head = order_head(n, int(words.take(1)[0]), 0, 64) if seeded else order_head(n, seed, place, 64)
    asked = WordsAsked(seed, seeded, 0, ((0, 1 << 20), (3 << 20, 4 << 20), (1 << 20, 3 << 20)))
    data_set = DataSet(n, (tuple(head[32:48]), tuple(head[:16])))
    events = list(find([data_set], SearchExtent(words=asked)))
    assert events[-1] == PlaceFound(place)
    if quick:  # a process of its own knows of no other
        told: list[object] = []
        assert SeedSearch([data_set], words=asked).run(told.append) == 0
        assert told[-1] == PlaceFound(place)
    (*_, last) = find([data_set], SearchExtent(words=asked._replace(seed=2)))
    assert last == StageProgress("words of seed 2", 1 << 22, 1 << 22)


# What is told, and what is true: another seed, other samplers, other numbers of ranks.
WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"sampler": "torch-random", "seed": 1}, {"sampler": "torch-random", "seed": 77_001, "words_before": 0}),
    ({"sampler": "torch-random", "seed": 1}, {"sampler": "torch-random", "seed": 42, "words_before": 999}),
    ({"seed": 1}, {"sampler": "torch-random", "seed": 1, "words_before": 3000, "words_between": 2}),
    ({"seed": 1}, {"sampler": "numpy", "seed": 1, "legacy": True}),
    ({"seed": 7, "world_size": 8, "ranks": [0, 1]}, {"sampler": "grain", "seed": 7}),
    ({"sampler": "accelerate", "seed": 7, "world_size": 4}, {"sampler": "torch-random", "seed": 7, "words_before": 70}),
]


@pytest.mark.parametrize(("told", "true", "workers"), [(*one, 2 * (at % 2)) for at, one in enumerate(WRONG)])
@pytest.mark.promise("wrong")
def test_a_wrong_registration_is_never_worse_than_none(
    tmp_path: Path, told: dict[str, Any], true: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")  # no minutes for all seeds: what is asked is whether they come to it
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)
    predicted: dict[bool, list[list[bool]]] = {}

    async def body(registered: bool) -> None:
        async with explaining(tmp_path / str(registered), infer=True) as (jobs, _):
            if registered:
                await jobs.register(name="train", **told)
            predicted[registered] = [[], []]
            for epoch in range(2):
                order = list(order_of(jobs.manifest, epoch, **true))
                for entry, process in read_by(order, workers, BATCH, 100 * epoch + 10):
                    before = {name: job.score.agreed for name, job in jobs.running.items()}
                    await jobs.read(entry, process)
                    agreed = {name: job.score.agreed for name, job in jobs.running.items()}
                    predicted[registered][epoch].append(agreed != before)

    for registered in (False, True):
        simulate(lambda registered=registered: body(registered))
    for told_nothing, told_wrong in zip(predicted[False], predicted[True], strict=True):
        assert sum(told_nothing) > 0.8 * FILES
        assert sum(told_wrong) >= sum(told_nothing) - 40  # some reads are spent on what was told


def test_agreement_counts_from_where_the_order_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 10)
    fields = {"sampler": "torch-random", "seed": 5, "generator": "default"}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", **fields)
            places = [0, 5_000_000, 7000]  # the second is further than is looked for
            orders = [list(order_of(jobs.manifest, 0, **fields | {"words_before": place})) for place in places]
            await read_epochs(jobs, orders, 2)
            (job,) = jobs.running.values()
            told = job.statistics()
            assert sum(told.findings.order_unknown.values()) + told.share.opens == 3 * FILES
            assert told.share.agreed == told.share.opens >= 2 * FILES
            assert set(told.findings.order_unknown) <= {1, 2}

    simulate(body)


@pytest.mark.parametrize("told", [2, 4])
def test_words_are_found_whatever_world_size_was_told(tmp_path: Path, told: int) -> None:
    """Batches are dealt like cards: two ranks read what two of four do, each the batches of two."""
    true = {"sampler": "accelerate", "seed": 8, "world_size": 2, "words_before": 70_000}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", **true | {"world_size": told, "words_before": 0})
            ranks = [list(order_of(jobs.manifest, 0, rank=rank, **true)) for rank in (0, 1)]
            for reads in zip(*(read_by(ranks[rank], 1, BATCH, 10 + 10 * rank) for rank in (0, 1)), strict=True):
                for entry, process in reads:
                    await jobs.read(entry, process, process // 10)
            (job,) = jobs.running.values()
            assert job.spec.words_before == 70_000
            assert "--words-before 70000" in job.findings.way_out
            assert job.score.agreement_of_last(400) >= 0.9

    simulate(body)
