"""What a source gives of files whose attributes are those of an hour ago, and of files whose size is wrong."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from source_support import Tree, error_of
from support.slow import LyingSource
from support.trees import content, make_tree

from mlfs.places.posix import ASKED_S, PosixSource
from mlfs.tree.scan import scan

NAMES = [f"{kind}/{n}" for kind in ("cached", "other") for n in range(12)]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lying(tmp_path: Path) -> Iterator[LyingSource]:
    with LyingSource(make_tree(tmp_path / "backing", dict.fromkeys(NAMES, 5000))) as source:
        yield source


def change(path: Path, draw: random.Random) -> bytes:
    """Another content of another size, in place or as another file."""
    new = content(f"new {path.name}", draw.choice([0, 1, 4999, 5001, 8192, draw.randrange(20_000)]))
    if draw.random() < 0.5:
        path.write_bytes(new)
    else:
        incoming = path.parent.parent / "incoming"
        incoming.write_bytes(new)
        os.rename(incoming, path)
    return new


def test_a_changed_file_is_whole_and_new_though_the_client_believes_to_know_it(lying: LyingSource) -> None:
    draw, clock = random.Random(5), Clock()
    lying.lie("", cached_s=3600)
    fd = os.open(lying.path, os.O_RDONLY | os.O_DIRECTORY)
    manifest = scan(fd, workers=1)
    with closing(PosixSource(fd, manifest, clock=clock)) as source:
        for name in NAMES:
            entry = manifest.find(name.encode())
            held = source.open(entry)
            assert held.read(0, 5000) == content(name, 5000)
            new = change(lying.backing / name, draw)
            if draw.random() < 0.5:
                found = source.read_whole(entry)
                assert (bytes(found.data), found.size, found.changed) == (new, len(new), True)
            with closing(source.open(entry)) as opened:
                assert (opened.version.size, opened.changed, opened.unsized) == (len(new), True, False)
                assert opened.read(0, 30_000) == new
            clock.now_s += 2 * ASKED_S
            refused = error_of(held.read, 0, 5000)  # what was open is read on whole, or refused
            assert refused == errno.ESTALE or held.read(0, 5000) == content(name, 5000)
            held.close()
        assert not manifest.unsized.statistics().count
    os.close(fd)


def test_no_file_is_cut_and_none_is_padded_whatever_its_size_says(lying: LyingSource) -> None:
    draw = random.Random(6)
    fd = os.open(lying.path, os.O_RDONLY | os.O_DIRECTORY)
    for name in NAMES:
        lying.lie(name, size=draw.choice(["zero", -1, -4000, -5000]))
    for name in NAMES[::5]:
        lying.lie(name, size=draw.choice([1, 3000, 100_000]))
    manifest = scan(fd, workers=1)
    with closing(PosixSource(fd, manifest)) as source:
        for name in NAMES:
            entry = manifest.find(name.encode())
            if draw.random() < 0.5:
                assert error_of(source.read_whole, entry) == errno.EOVERFLOW
                assert entry in manifest.unsized.files
            with closing(source.open(entry)) as opened:
                assert opened.unsized
                assert opened.read(0, 10_000) == content(name, 5000)
                assert opened.read(4990, 100) == content(name, 5000)[4990:]
                assert opened.read(9000, 100) == b""
        assert source.statistics().unsized_files == len(NAMES)
        lying.truth(NAMES[1])
        source.open(manifest.find(NAMES[1].encode())).close()
        assert source.statistics().unsized_files == len(NAMES) - 1
    os.close(fd)


def test_a_file_that_has_grown_at_its_end_is_stale_and_no_part_of_it_is_cut(tree: Tree) -> None:
    path = tree.add("f", b"a" * 6000)
    with closing(tree.source.open(tree.id("f"))) as opened:
        before = os.stat(path)
        with open(path, "ab") as file:
            file.write(b"b")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert error_of(opened.read, 4096, 4096) == errno.ESTALE
