"""Loops that somebody wrote himself and registers nowhere: found in their first epoch, concluded in their second."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.explaining import FILES, SearchInline, explaining, order_of, simulate
from torch.utils.data import DataLoader

SEED, EPOCHS = 42, 3
# An epoch's first reads that find its order.
FOUND_AFTER = 30


def shuffled_by_python(epoch: int) -> list[int]:
    random.Random(SEED + epoch).shuffle(order := list(range(FILES)))
    return order


def shuffled_by_a_loader(epoch: int) -> list[int]:
    torch.manual_seed(SEED + epoch)
    return list(DataLoader(range(FILES), batch_size=None, shuffle=True))  # type: ignore[arg-type]


def sampled_by_fastai(epoch: int) -> list[int]:
    random.seed(SEED)
    rng = random.Random(random.randint(0, 2**32 - 1))
    for _ in range(epoch + 1):
        rng = random.Random(rng.randint(0, 2**32 - 1))
        order = rng.sample(range(FILES), FILES)
    return order


LOOPS: dict[str, Callable[[int], list[int]]] = {
    "pandas' rows, the same in each epoch": lambda epoch: np.random.RandomState(SEED).permutation(FILES).tolist(),
    "a sequence of seed and epoch": lambda epoch: np.random.default_rng([SEED, epoch]).permutation(FILES).tolist(),
    "Python's shuffle, seeded anew": shuffled_by_python,
    "Python's sample": lambda epoch: random.Random(SEED + epoch).sample(range(FILES), FILES),
    "a loader, torch seeded anew": shuffled_by_a_loader,
    "fastai's loader": sampled_by_fastai,
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
