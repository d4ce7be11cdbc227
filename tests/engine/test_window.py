"""The window's budget, where readers are faster than the prefetcher."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from fakes import given_job, running, shuffled, simulate

from mlfs.plan.scheduler.states import footprint_bytes


@pytest.mark.parametrize("window", [3, 6, 12])
def test_what_waiting_readers_brought_is_not_kept_for_later_beyond_the_window(tmp_path: Path, window: int) -> None:
    """A data set so small that the look-ahead comes to a sample's next use while it still lies there."""

    async def body() -> None:
        staging = window * footprint_bytes(5000)
        async with running(tmp_path, 24, seconds={"pfs": 0.02, "drop": 0.01}, staging=staging) as mount:
            epochs = shuffled(mount.files, 6, 1)
            await mount.engine.shared.register(*given_job(epochs, batch_size=2))
            table = mount.table
            for (stream,) in epochs:
                for entry in stream:
                    assert await mount.read(entry, 100) == mount.content(entry)
                await trio.sleep(1)
                assert table.window_bytes <= table.window_capacity_bytes
            assert mount.engine.jobs["train"].finished

    simulate(body)
