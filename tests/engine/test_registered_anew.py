"""Jobs registered anew while their script runs, loops left early: clean counts, nothing found out that is not so."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import Mount, running, simulate
from test_corrections import BATCH, EPOCHS, FILES, read_all, script_opens

from mlfs.follow.epochs_at_hand import Timeline
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import build_streams

FIELDS: dict[str, Any] = {"seed": 5, "world_size": 2}


async def register(mount: Mount, **more: Any) -> JobRun:
    spec = parse_job({"epochs": EPOCHS, "batch_size": BATCH} | FIELDS | more)
    return await mount.engine.shared.register(spec, build_streams(spec, mount.engine.manifest))


@pytest.mark.parametrize(
    ("cut", "again", "words"),
    [
        (70, {}, []),
        (70, {"start_step": 4}, ["this job reads its first epoch from the beginning, not from step 4"]),
        (210, {"start_epoch": 1}, []),
    ],
)
def test_a_job_is_registered_anew_while_its_script_goes_on(
    tmp_path: Path, cut: int, again: dict[str, Any], words: list[str]
) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=60 * 8192) as mount:
            await register(mount)
            opens = list(chain(*script_opens(mount, FIELDS, range(4), 3)))
            await read_all(mount, opens[:cut])
            await trio.sleep(1)
            job = await register(mount, **again)
            assert job.score.observed == 0
            await read_all(mount, opens[cut:])
            await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert job.findings.known in ([], words)
            assert job.score.observed <= len(opens) - cut
            # One open of a process is no evidence, and where a step is told its workers' turns are other ones.
            assert job.score.agreed >= job.score.observed - (10 if words else 2)
            assert sum(cell.observed for cell in job.score.cells.values()) == job.score.observed
            assert job.score.agreement_of_last(100) == 1.0

    simulate(body)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("told", [True, False])
def test_a_loop_left_early_that_begins_the_same_order_again(tmp_path: Path, workers: int, told: bool) -> None:
    """Without set_epoch each pass reads the same first batches: they are passes one after the other, not repeats."""

    async def body() -> None:
        async with running(tmp_path, FILES, staging=60 * 8192) as mount:
            await register(mount, set_epoch=not told)
            script = FIELDS | {"set_epoch": False}
            for opens in script_opens(mount, script, range(6), workers, stop_after=5):
                await read_all(mount, opens)
                await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert ["does not call set_epoch" in known for known in job.findings.known] == ([] if told else [True])
            assert job.score.agreement_of_last(100) == 1.0
            if told:
                assert job.ranks.current_epochs() == (5, 5)
                assert job.score.agreed == job.score.observed == 6 * 2 * 5 * BATCH

    simulate(body)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [90, 210])
def test_a_script_killed_in_an_epoch_and_started_again_is_followed(tmp_path: Path, cut: int, workers: int) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=60 * 8192) as mount:
            await register(mount)
            await read_all(mount, list(chain(*script_opens(mount, FIELDS, range(2), workers)))[:cut])
            for opens in script_opens(mount, FIELDS, range(3), workers):
                await read_all(mount, [(entry, pid + 50) for entry, pid in opens])  # other parents
                await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert job.findings.known == []
            assert job.score.agreement_of_last(300) == 1.0
            assert job.ranks.current_epochs()[0] >= 2

    simulate(body)


def test_opens_that_were_disowned_are_not_taken_away_twice(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES) as mount:
            job, wrong = await register(mount), parse_job({"epochs": 3, "seed": 99, "name": "wrong"})
            ids = build_streams(wrong, mount.engine.manifest).epoch_ids(0, 0).tolist()
            for entry in ids[:8]:
                job.observe(entry, 7, 1)
            opens = list(job.score.history)
            job.matcher.disown(7)
            for entry in ids[8:20]:
                job.observe(entry, 9, 1)
            left = job.score.observed
            assert left < 20
            new = JobRun(wrong, build_streams(wrong, mount.engine.manifest), mount.engine.manifest.size)
            new.take_counts(job, opens)
            assert new.score.observed == sum(seen.sample not in ids[:8] for seen in job.score.history)
            assert all(cell.observed >= cell.agreed >= 0 for cell in new.score.cells.values())

    simulate(body)


class Lengths:
    """Streams of which only the lengths are known."""

    batch_files = 1

    def length(self, epoch: int) -> int:
        return epoch % 3


def test_the_epoch_of_a_position_is_that_which_begins_last_before_it() -> None:
    spec = JobSpec.model_construct(epochs=40, start_epoch=0, start_step=0)
    timeline = Timeline(spec, Lengths())  # type: ignore[arg-type]
    for position in range(50):
        epochs = [epoch for epoch in range(40) if timeline.base(epoch) <= position]
        assert Timeline(spec, Lengths()).epoch_of(position) == timeline.epoch_of(position) == epochs[-1]  # type: ignore[arg-type]
