"""Tasks beside the readers' way fail and are begun again; readers notice nothing, and the status tells."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import given_job, running, shuffled, simulate

from mlfs.engine.background import LONGEST_PAUSE_S, Background
from mlfs.engine.digest import Digest
from mlfs.engine.driver import Driver
from mlfs.engine.fetch import Fetcher
from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.page_watch import PageWatch
from mlfs.engine.peering import Peering
from mlfs.engine.planner import Planner
from mlfs.engine.shortages import Shortages, patiently
from mlfs.engine.write_behind import WriteBehind
from mlfs.limits import Limit, Resource

FAULT = frozenset({"background_fault"})


def limit(_: Resource) -> Limit:
    return Limit("it may have 3", "give it more")


def test_a_task_that_fails_is_begun_again_later_and_later(caplog: pytest.LogCaptureFixture) -> None:
    times: list[float] = []

    async def fails() -> None:
        times.append(trio.current_time())
        raise KeyError("gone")

    async def body() -> None:
        background = Background(Shortages(limit))
        with trio.move_on_after(600):
            await background.keep_going("planning", fails)
        pauses = [after - before for before, after in pairwise(times)]
        assert all(after > 0.99 * before for before, after in pairwise(pauses))
        assert pauses[0] < 1
        assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
        (fault,) = background.statistics()
        assert (fault.task, fault.times, fault.error) == ("planning", len(times), "KeyError('gone')")

    with caplog.at_level(logging.ERROR):
        simulate(body)
    assert len(caplog.records) == 1


def test_what_is_lacking_is_told_also_from_a_group_within_a_group() -> None:
    async def fails() -> None:
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise MemoryError

    async def body() -> None:
        shortages = Shortages(limit)
        with trio.move_on_after(0.05):
            await Background(shortages).keep_going("planning", fails)
        assert [(one.resource, one.times, one.way_out) for one in shortages.statistics()] == [
            ("memory", 1, "give it more")
        ]

    simulate(body)


def test_a_task_that_ends_or_is_cancelled_is_not_begun_again() -> None:
    async def body() -> None:
        begun: list[str] = []

        async def ends() -> None:
            begun.append("ends")

        async def waits() -> None:
            begun.append("waits")
            await trio.sleep_forever()

        background = Background(Shortages(limit))
        await background.keep_going("one", ends)
        with trio.move_on_after(100) as scope:
            await background.keep_going("two", waits)
        assert scope.cancelled_caught
        assert begun == ["ends", "waits"]
        assert background.statistics() == ()

    simulate(body)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "files")])
def test_a_reader_is_given_some_time_for_what_is_lacking(error: BaseException) -> None:
    shortages, calls = Shortages(limit), []

    def call() -> OSError | str:
        calls.append(1)
        return OSError(24, "too many open files") if len(calls) < 3 else "bytes"

    assert patiently(shortages, call) == "bytes"
    assert shortages.statistics()[0].times == 2
    assert shortages.noticed(error)


# The tasks of an engine, and what each of them runs.
TASKS: dict[str, tuple[type, str]] = {
    "counting reads": (Digest, "run"),
    "the scheduler's clock": (Driver, "run"),
    "explaining reads": (MountJobs, "explain"),
    "planning": (Planner, "run"),
    "keeping copies": (WriteBehind, "run"),
    "the door for peers": (Peering, "run"),
    "watching pages": (PageWatch, "run"),
}


@pytest.mark.promise("background-faults")
@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize("task", TASKS)
def test_whichever_task_fails_every_read_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, times: int
) -> None:
    """Once, or for as long as the mount lives; with a job and without."""
    kind, method = TASKS[task]
    goes_on, calls = getattr(kind, method), []

    async def fails_at_first(self: object) -> None:
        calls.append(1)
        if len(calls) <= times:
            await trio.sleep(0.3)
            raise MemoryError
        await goes_on(self)

    monkeypatch.setattr(kind, method, fails_at_first)

    async def body() -> None:
        async with running(tmp_path, 24, ram=1 << 20, expected_faults=FAULT) as mount:
            (order,) = shuffled(mount.files, 1, 1)
            for entry in mount.files[:8]:
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(0.2)
            await mount.engine.shared.register(*given_job([order]))
            for entry in order[0]:
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(1)
            told = mount.engine.statistics()
            (fault,) = told.faults
            assert (fault.task, fault.error) == (task, "MemoryError()")
            assert told.errors["background_fault"] == fault.times
            assert fault.times == 1 if times == 1 else fault.times > 3
            assert [one.resource for one in told.shortages] == ["memory"]

    simulate(body)


def test_copies_that_could_not_be_kept_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes are not held any longer, nothing waits for them, and the next ones are kept."""
    keeps, failing = Fetcher.keep, [True]

    def keep(self: Fetcher, batch: Any) -> Any:
        if failing:
            raise MemoryError
        return keeps(self, batch)

    monkeypatch.setattr(Fetcher, "keep", keep)

    async def body() -> None:
        async with running(tmp_path, 24, ram=1 << 20, expected_faults=FAULT) as mount:
            for entry in mount.files[:12]:
                assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            under_way = mount.engine.statistics().under_way
            assert (under_way["copies_to_keep"], under_way["copies_to_keep_bytes"]) == (0, 0)
            failing.clear()
            await trio.sleep(60)
            for entry in mount.files[12:]:
                assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            assert mount.engine.statistics().scheduler.keeping.held[1] == 12

    simulate(body)
