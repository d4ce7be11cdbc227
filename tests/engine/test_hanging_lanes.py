"""A lane that hangs at one sample gives back those that lie behind it in its batch: they are fetched without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import InlineRunner, running, simulate

from mlfs.engine.lanes import exhaust
from mlfs.job import parse_job
from mlfs.orders.streams import build_streams

HEDGE_S = 2.0


class Hanging(InlineRunner):
    """A lane does what it does until it begins a sample that hangs."""

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if call is not exhaust:
            return await super().run(pool, call, *args)
        work = args[0]
        while True:
            try:
                begun = next(work)
            except StopIteration as end:
                return end.value
            if begun in self.hang:
                await trio.sleep_forever()
            await trio.sleep(0)


@pytest.mark.promise("hang-others")
@pytest.mark.parametrize("at", range(3))
def test_what_lies_behind_a_sample_that_hangs_is_fetched_by_other_lanes(tmp_path: Path, at: int) -> None:
    async def body() -> None:
        runner = Hanging()
        async with running(tmp_path, 40, hedge_s=HEDGE_S, timeout_s=2 * HEDGE_S, runner=runner) as mount:
            hung = mount.files[at]
            runner.hang.add(hung)
            spec = parse_job({"sampler": "sequential", "epochs": 1, "batch_size": 4, "layout": "sorted"})
            await mount.engine.shared.register(spec, build_streams(spec, mount.engine.manifest))
            await trio.sleep(HEDGE_S / 2)
            behind = [entry for entry in mount.files if not mount.pages.resident(entry) and entry != hung]
            for entry in mount.files[:at]:
                await mount.read(entry)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mount.open, hung)  # its reader waits, which tells that the lane hangs
                await trio.sleep(2 * HEDGE_S)
                assert [entry for entry in behind if not mount.pages.resident(entry)] == []
                assert mount.engine.statistics().errors["prefetch_hung"] == 1
                nursery.cancel_scope.cancel()
            assert behind  # they lay in the lane's batch

    simulate(body)
