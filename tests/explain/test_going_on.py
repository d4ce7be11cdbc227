"""What a script draws between two epochs, when nobody registered it: told by the first reads of the next one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from amounts import words_of_crops
from support.explaining import BATCH, FILES, explaining, order_of, simulate
from support.trees import make_tree
from test_words import read_by

from mlfs.explain.confirm import order_head
from mlfs.explain.next_epoch import NEAR, ONWARD, goes_on
from mlfs.explain.question import DataSet
from mlfs.explain.search_stages import SAMPLER_SEED_WORD
from mlfs.explain.usual import FURTHEST_LOOKED_THROUGH, POPULAR_SEEDS
from mlfs.job import parse_job
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import build_order

MAIN, VALIDATION_FILES = 7, 40
# An inferred order is given up after twelve reads, and the place is known by ten of one process.
GIVEN_UP = {0: 14, 2: 28}
# New workers may begin where nobody is expected to: counted as predicted with the next read.
FIRST_OF_WORKERS = 4


def both(root: Path) -> Path:
    """A data set to train with and one to validate with."""
    parts = (("val", VALIDATION_FILES), ("train", FILES))
    return make_tree(root, {f"{part}/c{i % 2}/{i:03d}.jpg": 1 for part, count in parts for i in range(count)})


def drawn_job(name: str) -> dict[str, Any]:
    """A seed that people choose, and a model made first."""
    draw = random.Random(name)
    seed = draw.choice(POPULAR_SEEDS[:FURTHEST_LOOKED_THROUGH])
    fields = {"sampler": "torch-random", "generator": "default", "root": "train"}
    return fields | {"seed": seed, "words_before": draw.randrange(4, 4000)}


async def read_epoch(jobs: Any, order: list[int], workers: int, first_process: int) -> int:
    """Read an epoch of the training files; returns how many opens were predicted as they came."""
    predicted = 0
    for entry, process in read_by(order, workers, BATCH, first_process):
        before = [(job, job.score.agreed) for job in jobs.running.values()]
        await jobs.read(entry, process, 1 if process == MAIN else MAIN)
        predicted += any(job.score.agreed > agreed for job, agreed in before)
    return predicted


async def validate(jobs: Any, workers: int, first_process: int, root: str = "val") -> None:
    files = list(order_of(jobs.manifest, 0, sampler="sequential", root=root))
    for entry, process in read_by(files, workers, BATCH, first_process):
        await jobs.read(entry, process, 1 if process == MAIN else MAIN)


# 0 workers: the main process reads all by itself, and its random crops may draw, too.
@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_validates_is_predicted_from_the_second_epochs_first_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job(f"validates {workers}") | {"words_between": 2}

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, _):
            for epoch in range(3):
                order = list(order_of(jobs.manifest, epoch, **true))
                predicted = await read_epoch(jobs, order, workers, 100 * epoch + 10)
                assert predicted >= FILES - (40, GIVEN_UP[workers], FIRST_OF_WORKERS)[epoch], epoch
                await validate(jobs, workers, 100 * epoch + 50)

    simulate(body)


def test_a_validation_loader_that_draws_once_is_told_by_the_third_epochs_first_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job("lives on") | {"words_once": 2, "persistent_workers": True}

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, _):
            for epoch in range(4):  # the second begins where it does if nobody draws, and new workers do
                order = list(order_of(jobs.manifest, epoch, **true))
                predicted = await read_epoch(jobs, order, 2, 10)
                assert predicted >= FILES - (40, FIRST_OF_WORKERS, GIVEN_UP[2], FIRST_OF_WORKERS)[epoch], epoch
                await validate(jobs, 2, 50)
            assert jobs.running["inferred"].spec.words_once == 2

    simulate(body)


@pytest.mark.parametrize("workers", [0, 2])
def test_amounts_that_change_are_found_anew_in_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job(f"changing {workers}")
    draw = random.Random(3)

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, explainer):
            for epoch in range(4):
                order = list(order_of(jobs.manifest, 0, **true))
                predicted = await read_epoch(jobs, order, workers, 100 * epoch + 10)
                assert predicted >= FILES - (GIVEN_UP[workers] if epoch else 40), epoch
                await validate(jobs, workers, 100 * epoch + 50)
                true["words_before"] += 4 + draw.choice((5 * FILES, NEAR, ONWARD // 2)) + draw.randrange(FILES)
            assert explainer.statistics().inference.searches == 1

    simulate(body)


# What a call of inferring takes, and how many reads of an epoch it costs then: the second epoch waits for what explains
# the validation, too.
@pytest.mark.parametrize(("infer_s", "reads"), [(0.0, 12), (0.1, 90)])
def test_random_crops_in_the_main_process_cost_the_first_reads_of_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, infer_s: float, reads: int
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job("augments 0")
    draw = random.Random(5)

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data"), infer_s=infer_s) as (
            jobs,
            explainer,
        ):
            for epoch in range(5):
                order = list(order_of(jobs.manifest, 0, **true))
                predicted = await read_epoch(jobs, order, 0, 10)
                assert predicted >= FILES - (reads if epoch else reads + 40), epoch
                await validate(jobs, 0, 50)
                true["words_before"] += 6 + words_of_crops(FILES, draw, draw.choice((0.15, 0.5, 0.95)))
            assert explainer.statistics().inference.searches == 1

    simulate(body)


def test_an_epoch_is_found_whose_first_read_lies_by_chance_where_the_expected_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job("by chance")
    words, draw = TorchWords(int(true["seed"])).take(1 << 16), random.Random(7)

    def first_sample(words_before: int) -> int:
        return order_head(FILES, int(words[words_before + SAMPLER_SEED_WORD]), 0, 1)[0]

    async def body() -> None:
        step = 4  # of a script that draws nothing between its epochs
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, _):
            for epoch in range(3):
                order = list(order_of(jobs.manifest, 0, **true))
                assert await read_epoch(jobs, order, 0, 10) >= FILES - 40, epoch
                before, expected = true["words_before"], first_sample(true["words_before"] + step)
                places = (before + 4 + 5 * FILES + more for more in range(draw.randrange(FILES), 20 * FILES))
                true["words_before"] = next(place for place in places if first_sample(place) == expected)
                step = true["words_before"] - before

    simulate(body)


@pytest.mark.parametrize(("workers", "reads"), [(0, 13), (2, 26)])
def test_an_evaluation_over_the_same_files_costs_no_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, reads: int
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job(f"evaluates {workers}")

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, _):
            for epoch in range(4):
                order = list(order_of(jobs.manifest, 0, **true))
                predicted = await read_epoch(jobs, order, workers, 100 * epoch + 10)
                assert predicted >= FILES - (reads if epoch else 40), epoch
                await validate(jobs, workers, 100 * epoch + 50, "train")
                true["words_before"] += 6 + 70 * FILES // (epoch + 1)
            (job,) = jobs.running.values()
            assert job.score.agreed >= job.score.observed - 2

    simulate(body)


def test_of_several_generators_the_one_goes_on_that_the_reads_are_of() -> None:
    shape = {"sampler": "torch-random", "generator": "default", "epochs": 9, "name": "j"}
    lost = [parse_job(shape | {"seed": seed, "words_before": 1000 + seed}) for seed in (5, 6, 7)]
    known = shape | {"seed": 6, "words_before": 1006, "words_between": 777}
    order = build_order(parse_job(known), 900).rank_stream(3, 0).tolist()
    data_set = DataSet(900, (tuple(order[:16]), tuple(order[16:32])))
    found = goes_on([lost[0], parse_job(known), lost[2]], 2, data_set)
    assert found is not None
    assert (found.hypothesis.spec, found.epoch) == (parse_job(known), 3)
    assert goes_on([lost[0], lost[2]], 2, data_set) is None
