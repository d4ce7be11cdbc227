"""Status and metrics under many readers: how often they are made, and that none of them is old. On a mock clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from mountd.statistics import LONGEST_PAUSE_S, PAUSE, MountStatistics, SharedTexts


class Mount:
    """A mount that counts how often they were asked for; each time costs so many seconds of the loop."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.made = 0
        self.spent_s = 0.0

    def statistics(self) -> Any:
        self.made += 1
        self.spent_s += self.cost_s
        return self.made

    def clock(self) -> float:
        return self.spent_s


def as_text(now: MountStatistics) -> bytes:
    return b"%d" % now  # type: ignore[str-bytes-safe, operator]


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that works is no reason for the mock clock to wait."""

    async def at_once(call: Callable[[], bytes], **_: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return call()

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


def run(main: Callable[[], Any]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.promise("told-cheap")
@pytest.mark.parametrize("seed", range(5))
def test_fifty_readers_cost_a_twentieth_of_a_core(seed: int) -> None:
    rng = random.Random(seed)
    mount = Mount(rng.choice([0.004, 0.02, 0.2]))
    texts, longest = SharedTexts(mount, mount.clock), 0.0

    async def reader(kind: str) -> None:
        nonlocal longest
        while trio.current_time() - began < 8:
            asked, before = trio.current_time(), mount.made
            text = await texts.text(kind, as_text)
            assert int(text) > before, "it was made before it was asked for"
            longest = max(longest, trio.current_time() - asked)
            await trio.sleep(rng.random() * 0.1)

    async def main() -> None:
        nonlocal began
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(reader, "metrics" if number % 5 else "status")

    began = 0.0
    run(main)
    pause_s = min(PAUSE * mount.cost_s, LONGEST_PAUSE_S)
    assert 0 < mount.made <= 10 / pause_s + 2
    assert longest <= 4 * pause_s + 0.1


@pytest.mark.promise("told-cheap")
def test_a_lone_reader_waits_for_nothing() -> None:
    mount = Mount(0.01)

    async def main() -> None:
        texts = SharedTexts(mount, mount.clock)
        for number in range(1, 6):
            await trio.sleep(5)
            before = trio.current_time()
            assert await texts.text("status", as_text) == b"%d" % number
            assert trio.current_time() == before

    run(main)


def test_who_goes_away_takes_nobody_with_it() -> None:
    """The reader who was to make the text for all is interrupted in the pause, and one whose text cannot be made."""
    mount = Mount(0.05)

    def fails(_: MountStatistics) -> bytes:
        raise ValueError("of a bug")

    async def main() -> None:
        texts, found = SharedTexts(mount, mount.clock), []

        async def reader() -> None:
            found.append(await texts.text("status", as_text))

        await reader()
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.1):
                nursery.start_soon(trio.sleep, 0)
                async with trio.open_nursery() as within:
                    within.start_soon(reader)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(reader)
        with pytest.raises(ValueError, match="of a bug"):
            await texts.text("metrics", fails)
        await reader()
        assert found == [b"1", b"2", b"4"]

    run(main)
