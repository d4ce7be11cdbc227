"""The same shell starts a script again within its first epoch, drawn: it is no script that forgets set_epoch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.explaining import BATCH, FILES, FakeJobs, explaining, order_of, simulate

SHELL = 50
FORGETS = "this job does not call set_epoch: every epoch reads the same order"


async def read(jobs: FakeJobs, order: list[int], process: int, parent: int = SHELL) -> None:
    for entry in order:
        await jobs.read(entry, process, parent)


@pytest.mark.parametrize("seed", range(8))
def test_a_script_that_is_started_again_in_its_first_epoch_calls_set_epoch(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fields = {"seed": rng.choice([0, 5, 42])}

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            await jobs.register(name="train", **fields)
            orders = [list(order_of(jobs.manifest, epoch, **fields)) for epoch in range(3)]
            for run in range(rng.randrange(1, 4)):
                await read(jobs, orders[0][: rng.randrange(40, FILES - 2 * BATCH)], 100 + run)
            for order in orders:
                await read(jobs, order, 200)
            (job,) = jobs.running.values()
            assert [said for _, _, said, _ in jobs.installed if said] == []
            assert job.ranks.current_epochs() == (3, 3)
            assert job.score.agreement_of_last(2 * FILES) == 1.0

    simulate(body)


@pytest.mark.parametrize("seed", range(8))
def test_a_script_that_begins_its_order_anew_where_it_has_ended_forgets_set_epoch(tmp_path: Path, seed: int) -> None:
    """Each epoch is read by the process itself, or by another worker of it."""
    rng = random.Random(seed)
    fields, is_worker = {"seed": rng.choice([0, 5, 42])}, rng.random() < 0.5

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            await jobs.register(name="train", **fields)
            order = list(order_of(jobs.manifest, 0, **fields))
            for epoch in range(3):
                await read(jobs, order, 100 + epoch * is_worker)
            assert [said for _, _, said, _ in jobs.installed if said] == [FORGETS]

    simulate(body)
