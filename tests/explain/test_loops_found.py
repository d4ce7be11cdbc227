"""Loops that somebody wrote himself and registers nowhere: found in their first epoch, concluded in their second."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.explaining import BATCH, FILES, SearchInline, explaining, order_of, simulate
from torch.utils.data import DataLoader, RandomSampler

SEED, EPOCHS = 42, 3
# An epoch's first reads that find its order.
FOUND_AFTER = 30


def shuffled_by_python(epoch: int) -> list[int]:
    random.Random(SEED + epoch).shuffle(order := list(range(FILES)))
    return order


def shuffled_by_a_loader(epoch: int, seed: int = SEED) -> list[int]:
    torch.manual_seed(seed + epoch)
    return list(DataLoader(range(FILES), batch_size=None, shuffle=True))  # type: ignore[arg-type]


def sampled_by_fastai(epoch: int) -> list[int]:
    random.seed(SEED)
    rng = random.Random(random.randint(0, 2**32 - 1))
    for _ in range(epoch + 1):
        rng = random.Random(rng.randint(0, 2**32 - 1))
        order = rng.sample(range(FILES), FILES)
    return order


def read_by_nodes(epoch: int) -> list[int]:
    """torchdata.nodes: a sampler that draws from torch's default generator, and no loader around it."""
    torch.manual_seed(SEED)
    sampler = RandomSampler(range(FILES))
    return [list(sampler) for _ in range(epoch + 1)][-1]


LOOPS: dict[str, Callable[[int], list[int]]] = {
    "pandas' rows, the same in each epoch": lambda epoch: np.random.RandomState(SEED).permutation(FILES).tolist(),
    "a sequence of seed and epoch": lambda epoch: np.random.default_rng([SEED, epoch]).permutation(FILES).tolist(),
    "Python's shuffle, seeded anew": shuffled_by_python,
    "Python's sample": lambda epoch: random.Random(SEED + epoch).sample(range(FILES), FILES),
    "a loader, torch seeded anew": shuffled_by_a_loader,
    "fastai's loader": sampled_by_fastai,
    "a sampler without a loader": read_by_nodes,
    "SPDL's sampler": lambda epoch: np.random.default_rng(epoch).choice(FILES, FILES, replace=False).tolist(),
    "SpeechBrain's sampler": lambda epoch: torch.randperm(
        FILES, generator=torch.Generator().manual_seed(563375142 + 1 + epoch)
    ).tolist(),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_concluded_after_its_second_epoch(tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            entries = list(order_of(jobs.manifest, 0, sampler="sequential"))
            for epoch in range(EPOCHS):
                agreed = 0
                for index in LOOPS[loop](epoch):
                    before = {id(job): job.score.agreed for job in jobs.running.values()}
                    await jobs.read(entries[index], 7)
                    agreed += any(job.score.agreed > before.get(id(job), 1 << 30) for job in jobs.running.values())
                assert agreed >= FILES - (FOUND_AFTER if epoch < EPOCHS - 1 else 0), epoch

    simulate(body)


SHARDS: list[dict[str, object]] = [
    {"preset": "webdataset", "layout": "sorted", "seed": 0},  # by which the first reads are of one directory
    {"preset": "webdataset", "layout": "sorted", "seed": 1, "seeding": "seed+epoch"},
    {"preset": "hf-streaming", "seed": 42},
]


@pytest.mark.parametrize("fields", SHARDS, ids=str)
def test_shards_that_workers_read_are_found_by_what_all_of_them_read(
    tmp_path: Path, fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a list of webdataset's, or of HF's, two workers of which are new in each epoch."""
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            for epoch in range(EPOCHS):
                agreed, order = 0, list(order_of(jobs.manifest, epoch, num_workers=2, batch_size=1, **fields))
                for at, entry in enumerate(order):
                    before = {id(job): job.score.agreed for job in jobs.running.values()}
                    await jobs.read(entry, 10 + 2 * epoch + at % 2, 9)
                    agreed += any(job.score.agreed > before.get(id(job), 1 << 30) for job in jobs.running.values())
                assert agreed >= FILES - (FOUND_AFTER if epoch < EPOCHS - 1 else 2), epoch

    simulate(body)


@pytest.mark.parametrize("seed", [SEED, 2025])  # 2026 is a popular seed as well
def test_a_registered_loader_that_is_seeded_anew_is_corrected_for_good(seed: int, tmp_path: Path) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            entries = list(order_of(jobs.manifest, 0, sampler="sequential"))
            await jobs.register(name="train", sampler="torch-random", seed=seed)
            agreed = []
            for epoch in range(EPOCHS):
                before = jobs.running["train"].score.agreed
                for index in shuffled_by_a_loader(epoch, seed):
                    await jobs.read(entries[index], 7)
                agreed.append(jobs.running["train"].score.agreed - before)
            assert agreed[1] >= FILES - FOUND_AFTER
            assert (agreed[0], agreed[2]) == (FILES, FILES)

    simulate(body)


@pytest.mark.parametrize(("seed", "workers"), [(2025, 0), (999, 2)])
def test_what_a_script_has_in_memory_is_left_out_of_the_order(
    tmp_path: Path, seed: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MONAI's CacheDataset reads the first samples once, in their order, and each epoch's others as they are drawn.

    With these seeds the order begins with samples that a walk might read next, or workers: they count for the order.
    """
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            entries, kept = list(order_of(jobs.manifest, 0, sampler="sequential")), FILES // 2
            for entry in entries[:kept]:
                await jobs.read(entry, 7)
            torch.manual_seed(seed)
            loader: DataLoader[int] = DataLoader(range(FILES), batch_size=None, shuffle=True)  # type: ignore[arg-type]
            for epoch in range(EPOCHS):
                order = [(at // BATCH, index) for at, index in enumerate(loader) if index >= kept]
                agreed = 0
                for number, index in order:
                    before = {id(job): job.score.agreed for job in jobs.running.values()}
                    worker = 10 + workers * epoch + number % workers if workers else 7
                    await jobs.read(entries[index], worker, 7 if workers else 1)
                    agreed += any(job.score.agreed > before.get(id(job), 1 << 30) for job in jobs.running.values())
                assert agreed >= len(order) - (0 if epoch else 2 * FOUND_AFTER), epoch
            (job,) = jobs.running.values()
            assert (job.spec.seed, job.spec.cached_samples) == (seed, kept)

    simulate(body)
