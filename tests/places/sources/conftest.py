"""Fixtures of the sources' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from source_support import Tree

from mlfs.places import known_file
from mlfs.tree import stable_stat


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    (tmp_path / "source").mkdir()
    made = Tree(tmp_path / "source")
    yield made
    made.close()


@pytest.fixture
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read at once, however new."""
    monkeypatch.setattr(stable_stat, "TICK_NS", 0)


@pytest.fixture
def during_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Arms an action that runs after each read of bytes and before the check; it gets the number of the read."""
    true = known_file.pread_all

    def arm(action: Callable[[int], None]) -> None:
        reads = iter(range(1_000))

        def read_and_act(fd: int, offset: int, size: int, ends: bool = False) -> bytes | bytearray:
            data = true(fd, offset, size, ends)
            action(next(reads))
            return data

        monkeypatch.setattr(known_file, "pread_all", read_and_act)

    return arm
