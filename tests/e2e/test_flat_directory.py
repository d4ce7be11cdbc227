"""A source that takes its time for each look: the scan asks about many files at once, also in one flat directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.slow import SlowSource

from mlfs.tree.scan import scan

WORKERS = 8


@pytest.mark.parametrize("directories", [1, 3])
def test_looks_are_spread_over_the_threads(tmp_path: Path, directories: int) -> None:
    backing = tmp_path / "backing"
    names = [f"d{number}" for number in range(directories)]
    for name in names:
        (backing / name).mkdir(parents=True)
        for number in range(300):
            (backing / name / f"{number:03d}").write_bytes(b"x" * number)
        (backing / name / "link").symlink_to("007")
    with SlowSource(backing) as source:
        source.control(look_latency_s=0.005)
        fd = os.open(source.path, os.O_RDONLY | os.O_DIRECTORY)
        seen: list[tuple[int, int]] = []
        try:
            manifest = scan(fd, WORKERS, lambda *counts: seen.append(counts))
        finally:
            os.close(fd)
        most = source.counts()["most_looks"]
    assert most >= WORKERS - 1, f"{most} looks at once"
    assert manifest.n_files == 300 * directories
    for name in names:
        for number in (0, 7, 299):
            assert manifest.size_view[manifest.find(f"{name}/{number:03d}".encode())] == number
        assert manifest.target(manifest.find(f"{name}/link".encode())) == b"007"
    assert any(0 < files < 301 * directories for _, files in seen), "the counts do not move"
