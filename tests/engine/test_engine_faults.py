"""Faults of mlfs' own beside the read path: they cost what they are about, never the mount."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import given_job, running, simulate

from mlfs.follow.evidence import Read
from mlfs.measure.rates import Rates
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.events import Dropped, Landed, Opened, ReadsSeen, Waits
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import IllegalTransitionError


class Listens:
    """A listener that notes what it hears, or fails."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.told = 0
        self.seen: list[int] = []

    def opened(self, opens: Sequence[Read]) -> None:
        self.told += 1
        if self.fails:
            raise ZeroDivisionError
        self.seen += [opened.sample for opened in opens]

    def installed(self, job: object) -> None:
        pass


def test_a_fault_of_who_listens_to_the_opens_costs_the_listening_only(tmp_path: Path) -> None:
    async def body() -> None:
        faulty, other = Listens(True), Listens(False)
        async with running(tmp_path, 3, listeners=(faulty, other)) as mount:
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(1)
            assert other.seen == list(mount.files)
            assert faulty.told == 1

    simulate(body)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [Waits, ReadsSeen, Opened, Landed, Dropped])
def test_a_bug_in_the_scheduler_costs_what_the_event_is_about_and_no_read(
    tmp_path: Path, kind: type, late: bool
) -> None:
    async def body() -> None:
        expected = frozenset({"scheduler_fault"})
        async with running(tmp_path, 12, ram=1 << 20, hedge_s=1.0, timeout_s=1.0, expected_faults=expected) as mount:
            handlers = mount.engine.scheduler.handlers
            right, faults = handlers[kind], [0]

            def wrong(event: Any, now_s: float) -> None:
                faults[0] += 1
                if late or faults[0] != 3:
                    right(event, now_s)
                if faults[0] == 3:
                    raise ZeroDivisionError

            handlers[kind] = wrong
            await mount.engine.shared.register(*given_job([[mount.files]] * 2))
            for entry in [*mount.files, *mount.files]:
                with trio.fail_after(10):
                    assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(0.01)
            if faults[0] >= 3:
                assert mount.engine.counters.errors["scheduler_fault"] == 1

    simulate(body)


def test_without_goes_on_a_bug_raises() -> None:
    source = PlaceInfo(PlaceKind.SOURCE, "pfs", 1)
    scheduler = Scheduler(memoryview(bytearray(b"\x01" * 4)), [source], Limits(1 << 20), Rates())
    with pytest.raises(IllegalTransitionError):
        scheduler.step(0.0, [Dropped((0,))])
