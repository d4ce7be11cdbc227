"""The staging window's bookkeeping."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import FakePages, InlineRunner

from mlfs.engine.staging import Staging
from mlfs.engine.table import SampleTable, State
from mlfs.stats import Counters


@pytest.fixture
def staging() -> Staging:
    """Room for two of four pages."""
    table = SampleTable(4, memoryview(bytearray(b"\x01" * 4)), 2 * 4096)
    runner: Any = InlineRunner()
    return Staging(table, FakePages(), Counters(), runner)


def read(staging: Staging, entry: int) -> None:
    """A demand read of an entry, from fetch to close."""
    if staging.table.state[entry] == State.ABSENT:
        staging.table.move(entry, State.RECENT)
    staging.retire(entry)


def test_an_entry_lingers_once_however_often_it_is_read(staging: Staging) -> None:
    for _ in range(1000):
        read(staging, 0)
        read(staging, 1)
    assert list(staging._recent) == [0, 1]
    read(staging, 2)
    assert list(staging._recent) == [1, 2]
    assert staging.table.state[0] == State.DROPPING


def test_an_entry_that_was_open_when_its_turn_came_lingers_again(staging: Staging) -> None:
    read(staging, 0)
    staging.table.open_count[0] = 1
    read(staging, 1)
    read(staging, 2)
    assert list(staging._recent) == [2]  # 0 is open, and 1 made the room
    staging.table.open_count.clear()
    staging.retire(0)
    assert list(staging._recent) == [2, 0]


@pytest.mark.parametrize("dropping_already", [False, True])
def test_what_is_of_the_past_is_not_rescued(staging: Staging, dropping_already: bool) -> None:
    read(staging, 0)
    if dropping_already:
        staging.drop_lingering()
    staging.forget(0)
    assert not staging.rescue(0, State.RECENT)
    assert staging.table.state[0] == State.DROPPING
    read(staging, 1)
    staging.drop_lingering()
    assert staging.rescue(1, State.RECENT)
