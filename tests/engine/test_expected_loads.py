"""What the simulator expects of a job stands beside what is measured of it, for a job of which one loader is slow."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.job import parse_job
from mlfs.orders.streams import build_streams
from mlfs.plan.rank_load import FEWEST_BATCHES, Limit
from mountd import expected_loads
from mountd.expected_loads import ExpectedLoads, steps_of

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


def test_a_rank_that_is_slow_makes_steps_uneven_as_the_simulator_does_not_expect(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            expected = ExpectedLoads(mount.engine)
            epochs = shuffled(mount.files, EPOCHS, 2)
            await mount.engine.register(*given_job(epochs, BATCH))
            await expected.refresh()
            assert not expected.statistics(), "nothing was read yet"
            training = Training(mount, epochs, [0.01, 0.03])
            await training.run(range(1))
            await expected.refresh()
            (first,) = expected.statistics().values()
            assert (first.epoch, first.steps) == (1, FILES // 2 // BATCH)
            await expected.refresh()
            assert list(expected.statistics().values()) == [first]
            await trio.sleep(expected_loads.FRESH_S)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(training.run, range(1, 2))
                await trio.sleep(0.5)
                await expected.refresh()
            (told,) = expected.statistics().values()
            (load,) = mount.engine.statistics().loads.values()
            assert load.steps >= FEWEST_BATCHES
            assert load.imbalance.apart == pytest.approx(2 / 3, abs=0.1)
            assert load.imbalance.steps > 0.8
            assert load.straggler == 1
            assert [of.limit for of in load.ranks] == [Limit.OTHER_RANKS, Limit.PREPROCESSING]
            assert told is not first
            assert told.imbalance == (pytest.approx(0.0, abs=1e-6), 0.0), "files are alike, and lie in memory"
            mount.engine.end("train")
            assert not expected.statistics()

    simulate(body)


def test_batches_are_what_reads_have_told_whatever_was_registered(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            expected = ExpectedLoads(mount.engine)
            spec = parse_job({"epochs": EPOCHS, "batch_size": 2 * BATCH, "world_size": 2, "seed": 5})
            streams = build_streams(spec, mount.engine.manifest)
            await mount.engine.register(spec, streams)
            epochs = [[streams.epoch_ids(epoch, rank).tolist() for rank in range(2)] for epoch in range(EPOCHS)]
            await Training(mount, epochs, [0.01, 0.01], workers=2).run(range(1))
            await expected.refresh()
            (told,) = expected.statistics().values()
            assert (told.epoch, told.steps) == (1, FILES // 2 // BATCH)
            (load,) = mount.engine.statistics().loads.values()
            a_file = mount.engine.samples.sizes[mount.files[0]]
            for rank in load.ranks:
                assert (rank.workers, rank.batch_bytes) == (2, pytest.approx(BATCH * a_file, rel=0.05))
            (job,) = mount.engine.statistics().jobs
            assert job.batch_files == BATCH
            assert mount.engine.scheduler._following.coming_bytes("train", 0) == BATCH * a_file

    simulate(body)


def test_the_bytes_of_a_part_of_a_batch_are_not_told(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES - 4, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            spec = parse_job({"epochs": EPOCHS, "batch_size": BATCH, "world_size": 2, "seed": 5})
            streams = build_streams(spec, mount.engine.manifest)
            await mount.engine.register(spec, streams)
            epochs = [[streams.epoch_ids(0, rank).tolist() for rank in range(2)]]
            a_file = mount.engine.samples.sizes[mount.files[0]]
            for place, entries in enumerate(zip(*epochs[0], strict=True)):
                left = len(epochs[0][0]) - place
                coming = BATCH * a_file if left >= BATCH else 0
                assert mount.engine.scheduler._following.coming_bytes("train", 0) == coming
                for rank, entry in enumerate(entries):
                    await mount.read(entry, 100 + rank)
                await trio.sleep(0.1)

    simulate(body)


def test_what_cannot_be_told_is_not_tried_again_at_once_and_of_a_finished_job_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            expected = ExpectedLoads(mount.engine)
            times = list[float]()
            monkeypatch.setattr(expected, "_compute", lambda question: times.append(mount.engine.clock()))
            epochs = shuffled(mount.files, EPOCHS, 2)
            await mount.engine.register(*given_job(epochs, BATCH))
            training = Training(mount, epochs, [0.01, 0.01])
            await training.run(range(1))
            for _ in range(3):
                await expected.refresh()
            assert len(times) == 1
            assert not expected.statistics()
            await trio.sleep(expected_loads.FRESH_S)
            await expected.refresh()
            assert len(times) == 2
            await training.run(range(1, 2))
            await trio.sleep(expected_loads.FRESH_S)
            assert mount.engine.jobs["train"].finished
            await expected.refresh()
            assert len(times) == 2

    simulate(body)


def test_of_a_job_that_was_over_before_anybody_asked_it_is_told_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, ram=1 << 21, runner=TimedRunner()) as mount:
            expected = ExpectedLoads(mount.engine)
            epochs = shuffled(mount.files, EPOCHS, 2)
            await mount.engine.register(*given_job(epochs, BATCH))
            await Training(mount, epochs, [0.01, 0.01]).run(range(2))
            assert mount.engine.jobs["train"].finished
            await expected.refresh()
            (told,) = expected.statistics().values()
            await trio.sleep(expected_loads.FRESH_S)
            await expected.refresh()
            assert list(expected.statistics().values()) == [told]

    simulate(body)


def test_steps_that_are_to_come_are_looked_at_and_few_of_very_many() -> None:
    streams = [np.arange(10), np.append(100 + np.arange(9), -2)]
    assert steps_of(streams, 4, 1).tolist() == [
        [[4, 5, 6, 7], [104, 105, 106, 107]],
        [[8, 9, -1, -1], [108, -2, -1, -1]],
    ]
    assert steps_of(streams, 4, 3).shape == (0, 2, 4)
    many = steps_of([np.arange(4000)] * 2, 4, 500, most_reads=40)
    assert many[:, 0, 0].tolist() == [2000, 2400, 2800, 3200, 3600]
