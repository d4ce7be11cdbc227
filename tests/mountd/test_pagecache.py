"""Which pages of a file are in the page cache, as mincore(2) tells."""

from __future__ import annotations

import os
from pathlib import Path

from mountd.pagecache import all_resident


def test_pages_that_are_gone_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        assert all_resident(fd, 300_000)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        # A file system in memory keeps its pages.
        assert all_resident(fd, 300_000) == _is_in_memory(tmp_path)
        os.pread(fd, 300_000, 0)
        assert all_resident(fd, 300_000)
        os.posix_fadvise(fd, 8192, 8192, os.POSIX_FADV_DONTNEED)
        ranges = [(8192, 0), (8192, 8192), (300_000 - 16384, 16384)]
        assert [all_resident(fd, *of) for of in ranges] == [True, _is_in_memory(tmp_path), True]
        assert all_resident(-1, 300_000), "what cannot be told counts as there"
    finally:
        os.close(fd)


def _is_in_memory(path: Path) -> bool:
    """Whether the path lies in a tmpfs."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    below = [fields for fields in mounts if path.is_relative_to(fields[1])]
    return max(below, key=lambda fields: len(fields[1]))[2] == "tmpfs"
