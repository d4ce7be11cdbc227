"""Fixtures for the stores on disk: small file systems of their own, and a clock that tests move."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disks import Clock, SmallDisk


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    disks: list[SmallDisk] = []

    def make(size_bytes: int) -> SmallDisk:
        disks.append(SmallDisk(tmp_path / f"disk{len(disks)}", size_bytes))
        return disks[-1]

    yield make
    for disk in disks:
        subprocess.run(["umount", "-l", disk.path], check=True)
