"""The lying source is what other tests are measured against: it lies where it was told to, and nowhere else."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.slow import LyingSource
from support.trees import content, make_tree

FILES = {f"{kind}/{name}": 3000 for kind in ("times", "sizes", "listings", "cached", "true") for name in "abcd"}


def stamps(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns


def test_each_lie(tmp_path: Path) -> None:
    with LyingSource(make_tree(tmp_path / "backing", FILES)) as source:
        true = stamps(source.backing / "times" / "a")
        for lie in ("now", "alternating"):
            source.lie("times", ctime=lie)
            first, second = stamps(source.path / "times" / "a"), stamps(source.path / "times" / "a")
            assert (first[0], second[0]) == (true[0], true[0])
            assert first[1] != second[1]
        source.lie("times", ctime="moved", mtime="moved")
        before = stamps(source.path / "times" / "a")
        assert stamps(source.path / "times" / "a") == before
        (source.path / "times" / "a").read_bytes()
        after = stamps(source.path / "times" / "a")
        assert after[0] > before[0]
        assert after[1] > before[1]

        for size, shown in (("zero", 0), (-10, 2990), (7, 3007)):
            source.lie("sizes", size=size)
            assert (source.path / "sizes" / "b").stat().st_size == shown
            assert (source.path / "sizes" / "b").read_bytes() == content("sizes/b", 3000)
        source.truth("sizes")
        assert (source.path / "sizes" / "b").stat().st_size == 3000

        for lie, same in (("none", True), ("alike", True), ("frozen", False)):
            source.lie("", directories=lie)
            assert (stamps(source.path / "times") == stamps(source.path / "true")) is same
        (source.backing / "true" / "new").write_bytes(b"")
        assert stamps(source.path / "true") != stamps(source.backing / "true")
        source.lie("", directories="moved")
        before = stamps(source.path / "true")
        assert os.listdir(source.path / "true")
        assert stamps(source.path / "true") > before

        for field in ("listing", "listed"):
            source.lie("listings", **{field: errno.EIO})
            with pytest.raises(OSError, match="Input/output error"):
                os.listdir(source.path / "listings")
        assert (source.path / "listings" / "a").read_bytes() == content("listings/a", 3000)

        source.lie("cached", cached_s=3600)
        assert (source.path / "cached" / "a").stat().st_size == 3000
        (source.backing / "cached" / "a").write_bytes(b"other")
        assert (source.path / "cached" / "a").stat().st_size == 3000
        assert (source.path / "cached" / "a").read_bytes() == b"other"
        assert (source.path / "true" / "a").read_bytes() == content("true/a", 3000)
        assert stamps(source.path / "true" / "a") == stamps(source.backing / "true" / "a")
