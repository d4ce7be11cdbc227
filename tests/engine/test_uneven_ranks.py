"""How unevenly the ranks of a job load is measured, and its status tells the simulator what to expect of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.errors import ConfigError
from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.job import parse_job
from mlfs.lab.commands.simulate import compared
from mlfs.lab.policies.clairvoyant import POLICY
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.like import like
from mlfs.lab.sim.run import Simulation
from mlfs.orders.streams import build_streams
from mlfs.plan.rank_load import FEWEST_BATCHES, StepLimit
from mountd.statistics import About, MountStatistics, ProcessStatistics
from mountd.status import status

BATCH, FILES, EPOCHS, AHEAD = 4, 96, 2, 2


class TimedRunner(InlineRunner):
    """Threads of which each sample that is fetched ahead takes its time, so that places have a rate."""

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if not (args and isinstance(args[0], Generator)):
            return await super().run(pool, call, *args)
        try:
            while True:
                next(args[0])
                await trio.sleep(0.002)
        except StopIteration as end:
            return end.value


class Training:
    """Ranks whose loaders read up to two batches ahead of a training loop, which waits for the slowest rank.

    Args:
        work_s: by rank, how long it preprocesses a file. workers: processes of a rank that take batches by turns.
    """

    def __init__(self, mount: Mount, epochs: list[list[list[int]]], work_s: list[float], workers: int = 1) -> None:
        self.mount, self.epochs, self.work_s, self.workers = mount, epochs, work_s, workers
        self.done = [0] * len(work_s)  # steps that each rank has loaded
        self.changed = trio.Event()

    async def run(self, epochs: range) -> None:
        """Read these epochs."""
        async with trio.open_nursery() as nursery:
            for rank in range(len(self.work_s)):
                nursery.start_soon(self._load, rank, epochs)
        await trio.sleep(1)

    async def _load(self, rank: int, epochs: range) -> None:
        for epoch in epochs:
            stream = self.epochs[epoch][rank]
            for start in range(0, len(stream), BATCH):
                while self.done[rank] - min(self.done) > AHEAD:
                    await self.changed.wait()
                for entry in stream[start : start + BATCH]:
                    await self.mount.read(entry, 100 * (1 + start // BATCH % self.workers) + rank)
                    await trio.sleep(self.work_s[rank])
                self.done[rank] += 1
                self.changed.set()
                self.changed = trio.Event()


def status_of(mount: Mount) -> dict[str, Any]:
    """What `mlfs status --json` would print of it."""
    explainer = ExplainerStatistics(InferenceStatistics(InferenceState.IDLE), {})
    about, process = About("/pfs/set", "/data/set", "", 0.0), ProcessStatistics("0.1", 1, 1.0, 1, 4)
    engine = mount.engine.statistics()
    now = MountStatistics(about, process, engine, explainer, {}, 0)
    return dict(json.loads(json.dumps(status(now))))


def test_a_rank_that_is_slow_makes_steps_uneven_as_the_simulator_does_not_expect(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            epochs = shuffled(mount.files, EPOCHS, 2)
            await mount.engine.shared.register(*given_job(epochs, BATCH))
            with pytest.raises(ConfigError, match="too few batches"):
                like(status_of(mount))
            training = Training(mount, epochs, [0.01, 0.03])
            await training.run(range(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(training.run, range(1, 2))
                await trio.sleep(0.5)
                told = status_of(mount)
            (load,) = mount.engine.statistics().loads.values()
            assert load.steps >= FEWEST_BATCHES
            assert load.imbalance.apart == pytest.approx(2 / 3, abs=0.1)
            assert load.imbalance.steps > 0.8
            assert load.straggler == 1
            assert [of.limit for of in load.ranks] == [StepLimit.OTHER_RANKS, StepLimit.PREPROCESSING]
            job = like(told)
            scenario = job.scenario
            assert (scenario.cluster.nodes, scenario.cluster.gpus, scenario.job.batch) == (1, 2, 2 * BATCH)
            assert (scenario.data.samples, scenario.job.epochs) == (FILES, EPOCHS)
            sizes = np.asarray(mount.engine.samples.sizes)[mount.files]
            assert scenario.data.mean == pytest.approx(sizes.mean(), abs=1)
            assert scenario.data.deviation == pytest.approx(sizes.std(), abs=1)
            assert [(one.name, one.capacity) for one in scenario.cluster.classes] == [("ram", 1 << 21)]
            assert job.measured[0].pfs_bytes == pytest.approx(sizes.sum(), rel=0.05)
            simulation = Simulation(scenario)
            found = compared(job, simulation, simulation.run(POLICY, Sharing.CONSERVING), 1)
            assert found["uneven"]["measured"]["imbalanced_steps"] > 0.8
            assert found["uneven"]["simulated"]["imbalanced_steps"] < 0.1, "files are alike, and lie in memory"
            assert "a worker of rank 1 works" in found["because"]
            assert found["epochs"]["0"]["simulated"]["pfs_bytes"] == pytest.approx(sizes.sum(), rel=0.05)

    simulate(body)


def coming_bytes(mount: Mount, rank: int) -> int:
    """The bytes of the next batch of a rank of the only job."""
    [job] = mount.engine.scheduler.records.values()
    return job.coming_bytes(rank, mount.engine.scheduler.table.sizes)


def test_batches_are_what_reads_have_told_whatever_was_registered(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            spec = parse_job({"epochs": EPOCHS, "batch_size": 2 * BATCH, "world_size": 2, "seed": 5})
            streams = build_streams(spec, mount.engine.manifest)
            await mount.engine.shared.register(spec, streams)
            epochs = [[streams.epoch_ids(epoch, rank).tolist() for rank in range(2)] for epoch in range(EPOCHS)]
            await Training(mount, epochs, [0.01, 0.01], workers=2).run(range(1))
            assert like(status_of(mount)).scenario.job.batch == 2 * BATCH
            (load,) = mount.engine.statistics().loads.values()
            a_file = mount.engine.samples.sizes[mount.files[0]]
            for rank in load.ranks:
                assert (rank.workers, rank.batch_bytes) == (2, pytest.approx(BATCH * a_file, rel=0.05))
            (job,) = mount.engine.statistics().jobs
            assert job.batch_files == BATCH
            assert coming_bytes(mount, 0) == BATCH * a_file

    simulate(body)


def test_the_bytes_of_a_part_of_a_batch_are_not_told(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES - 4, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            spec = parse_job({"epochs": EPOCHS, "batch_size": BATCH, "world_size": 2, "seed": 5})
            streams = build_streams(spec, mount.engine.manifest)
            await mount.engine.shared.register(spec, streams)
            epochs = [[streams.epoch_ids(0, rank).tolist() for rank in range(2)]]
            a_file = mount.engine.samples.sizes[mount.files[0]]
            for place, entries in enumerate(zip(*epochs[0], strict=True)):
                left = len(epochs[0][0]) - place
                coming = BATCH * a_file if left >= BATCH else 0
                assert coming_bytes(mount, 0) == coming
                for rank, entry in enumerate(entries):
                    await mount.read(entry, 100 + rank)
                await trio.sleep(0.1)

    simulate(body)
