"""Fixtures of the manifest's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories are listed at once, however new: the tests that need the wait ask for it."""
    monkeypatch.setattr("mlfs.tree.stable_stat.TICK_NS", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty source directory."""
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    """Its descriptor."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)
