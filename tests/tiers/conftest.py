"""Fixtures for the stores on disk: small file systems of their own, and a clock that tests move."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


class SmallDisk:
    """A tmpfs of a given size. Needs root, as the tests of mounts do."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path], check=True)

    def read_only(self, value: bool) -> None:
        subprocess.run(["mount", "-o", f"remount,{'ro' if value else 'rw'}", self.path], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    disks: list[SmallDisk] = []

    def make(size_bytes: int) -> SmallDisk:
        disks.append(SmallDisk(tmp_path / f"disk{len(disks)}", size_bytes))
        return disks[-1]

    yield make
    for disk in disks:
        subprocess.run(["umount", "-l", disk.path], check=True)
