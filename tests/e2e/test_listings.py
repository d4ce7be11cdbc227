"""Directory listings: whatever names, sizes and places in them, the records are right; and what the kernel learns."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mounts import MlfsMount
from support.trees import Link, make_tree

from mlfs.engine.looks import Looks
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan
from mountd import dirents
from mountd.dirents import Direntries

FILES = 700


GENERATION = 77


class Record(NamedTuple):
    """A `struct fuse_direntplus`, as linux/fuse.h lays it out."""

    nodeid: int
    valid_s: tuple[int, int]
    attributes: tuple[int, ...]
    ino: int
    following: int
    kind: int
    name: bytes


def parse(data: bytes) -> Iterator[Record]:
    """Each record in turn."""
    at = 0
    while at < len(data):
        nodeid, generation, entry_s, attr_s, entry_ns, attr_ns = struct.unpack_from("=QQQQII", data, at)
        attributes = struct.unpack_from("=QQQQQQIIIIIIIIII", data, at + 40)
        ino, following, length, kind = struct.unpack_from("=QQII", data, at + 128)
        assert (generation, entry_ns, attr_ns) == (GENERATION if nodeid else 0, 0, 0)
        name = data[at + 152 : at + 152 + length]
        at += 152 + -(-length // 8) * 8
        yield Record(nodeid, (entry_s, attr_s), attributes, ino, following, kind, name)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Names of all lengths up to 255, directories, links, hard links and files mixed; some files have changed."""
    tree: dict[str, bytes | str | int | Link | None] = {"d/" + "n" * n: n * 37 for n in range(1, 256)}
    tree |= {f"d/{n:03d}": None if n % 5 else Link("target") for n in range(60)}
    root = make_tree(tmp_path_factory.mktemp("listings") / "tree", tree)
    for number in range(0, 200, 3):
        (root / "d" / f"linked {number:03d}").hardlink_to(root / "d" / ("n" * (1 + number % 40)))
    fd = os.open(root, os.O_RDONLY)
    try:
        manifest = scan(fd)
    finally:
        os.close(fd)
    for number in range(1, 256, 7):
        entry = manifest.find(b"d/" + b"n" * number)
        manifest.update(entry, 5, 6, 7, nlink=8, blocks=9)
    return manifest


def inode(manifest: Manifest, entry: int) -> int:
    """As mountd.inodes has it."""
    return entry + 1 + (int(manifest.generation[entry]) << 32)


@given(start=st.integers(0, 390), room=st.integers(450, 20_000), attributes=st.booleans(), block=st.integers(1, 400))
@settings(max_examples=60)
def test_any_part_of_a_directory(manifest: Manifest, start: int, room: int, attributes: bool, block: int) -> None:
    directory = manifest.lookup(0, b"d")
    children = manifest.children(directory)
    built_at_once, dirents.BUILT_AT_ONCE = dirents.BUILT_AT_ONCE, 8 * block
    try:
        listing = Direntries(manifest, 5.0, GENERATION, cast(Looks, SimpleNamespace(needed=False)))
        found = listing.records(directory, start, attributes)
    finally:
        dirents.BUILT_AT_ONCE = built_at_once
    assert (found is None) == (start >= len(children))
    if found is None:
        return
    begin, end = found.part(start, room)
    assert 0 < end - begin <= room
    for number, record in enumerate(parse(found.data[begin:end].tobytes()), start):
        entry = children[number]
        first = manifest.hard_links.first_of(entry)
        shown = inode(manifest, first)
        assert (record.name, record.ino, record.following) == (manifest.name(entry), shown, entry + 1)
        mode = manifest.mode_view[entry]
        assert record.kind == stat.S_IFMT(mode) >> 12
        if not attributes and not stat.S_ISDIR(mode):
            assert (record.nodeid, set(record.attributes)) == (0, {0})
            continue
        size, mtime, ctime = manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
        (mtime_s, mtime_ns), (ctime_s, ctime_ns) = divmod(mtime, 10**9), divmod(ctime, 10**9)
        owner = (manifest.nlink_view[entry], manifest.uid_view[entry], manifest.gid_view[entry], 0)
        assert (record.nodeid, record.valid_s) == (inode(manifest, entry), (5, 5))
        assert record.attributes == (
            shown, size, manifest.blocks_view[entry], mtime_s, mtime_s, ctime_s, mtime_ns, mtime_ns, ctime_ns,
            mode, *owner, 4096, 0,
        )  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlfsMount]:
    """Directories of many files; the names are of many lengths."""
    files = {f"c{c}/{'x' * (n % 90)}{n:04d}.jpg": 10 + n for c in range(3) for n in range(FILES)}
    with MlfsMount(make_tree(tmp_path_factory.mktemp("large") / "source", files)) as mount:
        yield mount


def lookups(mount: MlfsMount) -> int:
    """Look-ups that the kernel has asked for."""
    count: int = mount.status()["requests"]["lookup"]
    return count


def test_a_walk_lists_everything_once_and_looks_nothing_up(large: MlfsMount) -> None:
    before = lookups(large)
    for _ in range(2):
        walked = {os.path.relpath(path, large.path): sorted(files) for path, _, files in os.walk(large.path)}
        names = [f"{'x' * (n % 90)}{n:04d}.jpg" for n in range(FILES)]
        assert walked == {".": []} | {f"c{c}": sorted(names) for c in range(3)}
    assert lookups(large) - before < FILES


def test_a_jobs_files_and_those_beside_looked_up_ones_get_known(large: MlfsMount) -> None:
    large.register(epochs=1, root="c0", layout="sorted", sampler="sequential")
    large.settle()
    before = lookups(large)
    sizes = {name: os.stat(large.path / "c0" / name).st_size for name in os.listdir(large.path / "c0")}
    assert sorted(sizes.values()) == [10 + n for n in range(FILES)]
    assert lookups(large) - before < FILES // 2
    names = sorted(os.listdir(large.path / "c1"))
    for name in names[:50]:
        os.stat(large.path / "c1" / name)
    large.settle()
    before = lookups(large)
    for name in names:
        os.stat(large.path / "c1" / name)
    assert lookups(large) - before < FILES // 2
