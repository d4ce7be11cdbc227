"""Open files of the POSIX source: ranges, and what becomes of them when the file is changed, replaced or removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from source_support import Tree, error_of, overwrite

from mlfs.places.posix import PosixSource
from mlfs.tree.scan import scan


def test_ranges_beyond_4_gib(tree: Tree) -> None:
    size = (4 << 30) + 100
    with open(tree.path / "big", "wb") as file:
        file.seek((4 << 30) - 3)
        file.write(b"across!")
        file.truncate(size)
    opened = tree.source.open(tree.id("big"))
    assert opened.version.size == size
    assert opened.read((4 << 30) - 3, 7) == b"across!"
    assert opened.read(size - 10, 100) == bytes(10)
    assert opened.read(size, 10) == opened.read(1 << 62, 10) == opened.read(0, 0) == b""
    opened.close()


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), ranges=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400))))
def test_ranges_are_slices(no_tick: None, tmp_path: Path, data: bytes, ranges: list[tuple[int, int]]) -> None:
    (tmp_path / "f").write_bytes(data)
    fd = os.open(tmp_path, os.O_RDONLY)
    manifest = scan(fd, workers=1)
    source = PosixSource(fd, manifest)
    opened = source.open(manifest.find(b"f"))
    for offset, size in ranges:
        assert opened.read(offset, size) == data[offset : offset + size]
    assert source.bytes_read == sum(len(data[offset : offset + size]) for offset, size in ranges)
    opened.close()
    source.close()
    os.close(fd)


@pytest.mark.parametrize("new", [b"B" * 1000, b"B" * 5000, b"B" * 10], ids=["same size", "grown", "cut"])
def test_an_open_file_written_in_place_is_stale(tree: Tree, new: bytes) -> None:
    path = tree.add("f", b"A" * 1000)
    opened = tree.source.open(tree.id("f"))
    assert opened.read(0, 10) == b"A" * 10
    overwrite(path, new, 7)
    for _ in range(2):
        assert error_of(opened.read, 0, 10) == errno.ESTALE
    opened.close()
    again = tree.source.open(tree.id("f"))
    assert again.read(0, 9999) == new
    assert again.changed
    again.close()


def test_an_open_file_changed_during_the_read_is_stale(
    tree: Tree, during_read: Callable[[Callable[[int], None]], None]
) -> None:
    path = tree.add("f", b"A" * 1000)
    opened = tree.source.open(tree.id("f"))
    during_read(lambda number: overwrite(path, b"B" * 1000, 7))
    assert error_of(opened.read, 0, 10) == errno.ESTALE
    opened.close()


@pytest.mark.promise("change-renamed")
def test_an_open_file_goes_on_when_it_is_replaced_renamed_or_removed(tree: Tree) -> None:
    path = tree.add("f", b"A" * 100)
    opened = tree.source.open(tree.id("f"))
    os.replace(tree.add("new", b"B" * 100), path)
    assert opened.read(0, 100) == b"A" * 100
    path.unlink()
    assert opened.read(50, 100) == b"A" * 50
    assert opened.version == (100, opened.version.mtime_ns, os.fstat(opened.fd).st_ino)
    opened.close()


def test_an_open_file_goes_on_after_chmod(tree: Tree) -> None:
    path = tree.add("f", b"A" * 100)
    opened = tree.source.open(tree.id("f"))
    path.chmod(0o400)
    assert opened.read(0, 100) == b"A" * 100
    opened.close()


def test_after_close(tree: Tree) -> None:
    tree.add("f", b"A")
    opened = tree.source.open(tree.id("f"))
    opened.close()
    opened.close()
    assert error_of(opened.read, 0, 1) == errno.EBADF
    entry = tree.id("f")
    tree.source.close()
    tree.source.close()
    assert error_of(tree.source.read_whole, entry) == errno.EBADF
    os.fstat(tree.fd)  # the caller's own descriptor lives on
