"""A moment after the first call, once; no call is lost."""

from __future__ import annotations

import pytest
import trio
from fakes import simulate

from mlfs.engine.coalesce import Coalesced


def test_calls_within_a_moment_are_dealt_with_together_and_none_is_lost() -> None:
    async def body() -> None:
        soon, ends, began = Coalesced(1.0), [], trio.current_time()

        async def wait() -> None:
            while True:
                await soon.wait()
                ends.append(trio.current_time() - began)
                if len(ends) == 2:
                    soon.call()  # while nobody waits

        soon.call()  # before anybody waits
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(5)
            soon.call()
            await trio.sleep(0.5)
            soon.call()
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        assert ends == pytest.approx([1.0, 6.0, 7.0])

    simulate(body)
