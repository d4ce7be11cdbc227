"""Strangers and the explaining of reads, under simulated time: who came first does not have the job."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import Mount, running, simulate
from support.drawn import cases
from test_corrections import BATCH, EPOCHS, FILES, read_all, script_opens

from mlfs.follow.job_statistics import strangers_to_all
from mlfs.job import parse_job
from mlfs.orders.streams import build_streams

CP = 99  # its parent is another one than those of the ranks: see `fakes.kin`


async def register(mount: Mount, **fields: Any) -> None:
    spec = parse_job({"epochs": EPOCHS, "batch_size": BATCH, "seed": 5} | fields)
    await mount.engine.shared.register(spec, build_streams(spec, mount.engine.manifest))


def mixed(opens: list[tuple[int, int]], other: list[tuple[int, int]], seed: int) -> list[tuple[int, int]]:
    """Both in their order, one beside the other."""
    rng = random.Random(seed)
    both, left, right = [], list(opens), list(other)
    while left or right:
        side = left if not right or (left and rng.random() < len(left) / (len(left) + len(right))) else right
        both.append(side.pop(0))
    return both


@pytest.mark.parametrize("workers", [0, 3])
def test_a_walk_that_came_first_does_not_have_the_job(tmp_path: Path, workers: int) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=60 * 8192, ram=1 << 22) as mount:
            await register(mount)
            await read_all(mount, [(entry, CP) for entry in mount.files])
            assert mount.engine.jobs["train"].findings.known == []  # it might be the job's script, or `cp -r`
            for epoch, opens in enumerate(script_opens(mount, {"seed": 5}, range(3), workers)):
                await read_all(mount, mixed(opens, [(entry, CP + 100 * epoch) for entry in mount.files], epoch))
                await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert job.findings.known == []
            assert job.spec.shuffle
            # A correction that the walk brought about, and that the job's own reads take back, may cost one read.
            assert job.score.agreed >= job.score.observed - 1
            assert job.score.observed >= 3 * FILES - 32
            assert sum(stranger.reads for stranger in strangers_to_all([job.statistics()])) > FILES

    simulate(body)


@pytest.mark.parametrize("seed", range(cases(1)))
@pytest.mark.parametrize("workers", [0, 3])
def test_a_wrong_registration_is_corrected_beside_a_walk(tmp_path: Path, workers: int, seed: int) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=60 * 8192, ram=1 << 22) as mount:
            await register(mount)
            for epoch, opens in enumerate(script_opens(mount, {"seed": 42}, range(4), workers)):
                beside = [(entry, CP + 100 * epoch) for entry in mount.files]
                begun = 0 if epoch else 24
                await read_all(mount, opens[:begun])
                await read_all(mount, mixed(opens[begun:], beside, seed))
                await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert [said for said in job.findings.known if "seed is 42, not 5" in said], job.findings.known
            assert job.score.agreement_of_last(200) == 1.0

    simulate(body)
