"""A small file system of its own for a test, and a clock that tests move."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SmallDisk:
    """A tmpfs of a given size. Needs root, as the tests of mounts do."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path], check=True)

    def read_only(self, value: bool) -> None:
        subprocess.run(["mount", "-o", f"remount,{'ro' if value else 'rw'}", self.path], check=True)
