"""A process whose threads wait for slow samples gets them in any order. It is followed in the order of its asking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.plan.scheduler.states import State

FILES, THREADS, EPOCHS, PID = 240, 8, 3, 100


class SlowRunner(InlineRunner):
    """Calls of the source take drawn times: most of them none, some very long."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = np.random.default_rng(seed)

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if pool in ("pfs", "demand"):
            await trio.sleep(float(self._draw.choice([0.0, 0.01, 0.5], p=[0.5, 0.4, 0.1])))
        return await super().run(pool, call, *args)


class Threads:
    """The threads of one process: each takes the next sample of the epoch when it is free."""

    def __init__(self, mount: Mount, epochs: list[list[list[int]]]) -> None:
        self.mount, self.epochs = mount, epochs
        self.asked = 0
        self.refused: set[int] = set()

    async def run(self) -> None:
        """Read all epochs, one after the other."""
        for epoch in self.epochs:
            ahead = iter(epoch[0])
            async with trio.open_nursery() as nursery:
                for _ in range(THREADS):
                    nursery.start_soon(self._work, ahead)

    async def _work(self, ahead: Any) -> None:
        for entry in ahead:
            self.asked += 1
            try:
                await self.mount.read(entry, PID)
            except OSError:
                self.refused.add(entry)
            # What was asked for is counted a moment later, so nobody is believed to be further than it is.
            [rank] = self.mount.engine.scheduler.jobs["train"].ranks.progress
            assert rank.frontier <= self.asked
            await trio.sleep(0.02)


@pytest.mark.parametrize("seed", range(4))
def test_all_reads_are_predicted_and_nobody_is_believed_to_be_further_than_he_is(tmp_path: Path, seed: int) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, runner=SlowRunner(seed)) as mount:
            epochs = shuffled(mount.files, EPOCHS, 1, seed)
            await mount.engine.shared.register(*given_job(epochs))
            await Threads(mount, epochs).run()
            await trio.sleep(1)
            [job] = mount.engine.statistics().jobs
            assert job.share == (EPOCHS * FILES, EPOCHS * FILES)
            assert not mount.table.readers

    simulate(body)


def test_who_is_refused_has_nothing_open_and_his_read_counts(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, runner=SlowRunner(0)) as mount:
            epochs = shuffled(mount.files, 1, 1)
            missing = epochs[0][0][7]
            mount.source.failures[missing] = 100
            await mount.engine.shared.register(*given_job(epochs))
            threads = Threads(mount, epochs)
            await threads.run()
            await trio.sleep(1)
            [job] = mount.engine.statistics().jobs
            assert threads.refused == {missing}
            assert job.share == (FILES, FILES)
            assert not mount.table.readers
            assert mount.table.state[missing] == State.ABSENT

    simulate(body)


def test_what_the_source_gave_counts_where_it_was_asked_for_also_after_a_refusal(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with running(tmp_path, FILES, staging=1 << 16, runner=SlowRunner(1)) as mount:
            epochs = shuffled(mount.files, EPOCHS, 1)
            missing = epochs[0][0][7]
            mount.source.failures[missing] = 1000
            await mount.engine.shared.register(*given_job(epochs))
            threads = Threads(mount, epochs[:1])
            await threads.run()
            assert threads.refused == {missing}
            mount.source.failures[missing] = 0
            threads.epochs = epochs[1:]
            await threads.run()
            await trio.sleep(1)
            told = mount.engine.statistics()
            counted = told.jobs[0].pfs_bytes_by_epoch
            assert sum(counted.values()) == told.counters.all.fetches["pfs"].bytes
            size = len(mount.content(missing))
            # What is staged still when the next epoch reads it comes from the source once.
            assert counted[0] == (FILES - 1) * size
            assert all((FILES - 2 * THREADS) * size <= counted[epoch] <= FILES * size for epoch in (1, 2))

    simulate(body)


def test_an_epoch_is_over_when_its_last_reader_has_what_he_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with running(tmp_path, 24, staging=1, runner=SlowRunner(2)) as mount:  # all comes on demand
            epochs = shuffled(mount.files, 2, 1)
            await mount.engine.shared.register(*given_job(epochs))
            await Threads(mount, epochs).run()
            await trio.sleep(1)
            [job] = mount.engine.statistics().jobs
            assert len(set(job.pfs_bytes_by_epoch.values())) == 1
            told = [record.getMessage() for record in caplog.records if "epoch" in record.getMessage()]
            said = [line for line in told if "120000" in line or "120.0 kB" in line or "117.2 KiB" in line]
            assert len(said) == 2, told

    with caplog.at_level("INFO"):
        simulate(body)
