"""A manifest that grows: after each drawn change of the source and each refresh it shows what a new scan shows.

Entries keep their numbers, what comes back has the number that it had, and what lists and looks up while a change is
taken over sees no wrong name.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlfs.tree.growing import GrowingManifest
from mlfs.tree.manifest import Manifest
from mlfs.tree.refresh import Difference, as_scanned, difference
from mlfs.tree.scan import scan

NAMES = [b"a", b"b", b"c", b"ab", b"\xff", b"zz", b"m.npy"]
pytestmark = pytest.mark.usefixtures("no_tick")


def scanned(path: bytes) -> Manifest:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return scan(fd, workers=2)
    finally:
        os.close(fd)


def all_paths(root: bytes) -> list[bytes]:
    found = [b""]
    for directory, directories, files in os.walk(root):
        found += [os.path.relpath(os.path.join(directory, name), root) for name in directories + files]
    return sorted(found)


def change(root: bytes, draw: random.Random) -> None:
    """One change of the source: something comes, goes, is replaced or moved, or has other attributes."""
    at = os.path.join(root, draw.choice(all_paths(root))).rstrip(b"/")
    directory = at if os.path.isdir(at) and not os.path.islink(at) else os.path.dirname(at)
    path = os.path.join(directory, draw.choice(NAMES))
    kind = draw.choice(["file", "file", "directory", "link", "gone", "gone", "rename", "chmod", "fifo", "hard"])
    if kind == "gone" or (os.path.lexists(path) and kind in ("directory", "link", "fifo", "hard")):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    if kind == "file" and not os.path.isdir(path):
        Path(os.fsdecode(path)).unlink(missing_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"x" * draw.randrange(5))
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(draw.choice(NAMES), path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "hard" and os.path.isfile(at) and not os.path.islink(at):
        os.link(at, path)
    elif kind == "chmod" and not os.path.islink(at) and os.path.exists(at):
        os.chmod(at, draw.choice([0o755, 0o700, 0o644]) | 0o500)
    elif kind == "rename":
        other = os.path.join(root, draw.choice(NAMES))
        if at != root and not os.path.lexists(other) and not other.startswith(at + b"/"):
            os.rename(at, other)


def told(tree: Manifest, entry: int = 0, path: bytes = b"") -> dict[bytes, tuple[object, ...]]:
    """What a tree shows, by path."""
    mode = tree.mode_view[entry]
    attributes: tuple[object, ...] = (mode, tree.uid_view[entry], tree.nlink_view[entry], tree.mtime_ns_view[entry])
    if not stat.S_ISDIR(mode):
        attributes += (tree.size_view[entry], tree.ctime_ns_view[entry])
    if stat.S_ISLNK(mode):
        attributes += (tree.target(entry),)
    found = {path: attributes}
    children = tree.children(entry)
    names = [tree.name(child) for child in children]
    assert names == sorted(set(names))
    for name, child in zip(names, children, strict=True):
        assert tree.lookup(entry, name) == child
        assert tree.parent_view[child] == entry
        below = path + b"/" + name if path else name
        assert tree.path(child) == below
        found |= told(tree, child, below)
    assert tree.lookup(entry, b"not there") == -1
    return found


def linked(tree: Manifest) -> set[frozenset[bytes]]:
    """Which paths are names of one file."""
    files: dict[int, set[bytes]] = {}
    for path, entry in numbers(tree).items():
        files.setdefault(tree.hard_links.first_of(entry), set()).add(path)
    each = tree.hard_links.first_of_each(np.arange(len(tree)))
    assert all(each[entry] == tree.hard_links.first_of(entry) for entry in numbers(tree).values())
    return {frozenset(paths) for paths in files.values() if len(paths) > 1}


def refresh(tree: GrowingManifest, root: bytes, top: bytes = b"") -> Difference:
    """As the daemon does it."""
    new = scanned(os.path.join(root, top))
    found = difference(tree, tree.find(top), new)
    tree.grow(found.growth)
    for entry, seen in found.changed:
        rights = {name: int(getattr(new, name)[seen]) for name in ("mode", "uid", "gid", "nlink", "blocks")}
        tree.update(entry, new.size_view[seen], new.mtime_ns_view[seen], new.ctime_ns_view[seen], **rights)
    return found


def numbers(tree: Manifest) -> dict[bytes, int]:
    return {path: tree.find(path) for path in told(tree)}


@pytest.mark.parametrize("seed", range(25))
def test_drawn_changes_and_refreshes(root: Path, seed: int) -> None:
    draw, path = random.Random(seed), os.fsencode(root)
    for _ in range(draw.randrange(12)):
        change(path, draw)
    tree = GrowingManifest(scanned(path), room=2000)
    frozen = tree.fingerprint()
    assert frozen == scanned(path).fingerprint()
    assert told(tree) == told(scanned(path))
    had: dict[tuple[bytes, int], int] = {}
    for _ in range(6):
        before = numbers(tree)
        for _ in range(draw.randrange(8)):
            change(path, draw)
        found = refresh(tree, path)
        now = scanned(path)
        assert told(tree) == told(now)
        assert linked(tree) == linked(now)
        for name, entry in numbers(tree).items():
            kind = stat.S_IFMT(tree.mode_view[entry])
            if name in before and stat.S_IFMT(tree.mode_view[before[name]]) == kind and kind != stat.S_IFLNK:
                assert before[name] == entry
            if kind != stat.S_IFLNK:
                assert had.setdefault((name, kind), entry) == entry, "it came back under another number"
        alive = set(numbers(tree).values())
        assert {entry for entry in before.values() if entry not in alive} == set(found.growth.gone)
        assert sorted(tree.files.tolist()) == sorted(e for e in alive if tree.is_file(e))
        assert tree.total_bytes == now.total_bytes
        assert tree.n_files == now.n_files
        for entry in found.growth.gone:
            assert tree.is_gone(entry)
            assert not tree.is_file(entry)
        again = as_scanned(tree)
        assert told(again) == told(now)
        assert linked(again) == linked(now)
        assert again.fingerprint() == now.fingerprint() != tree.fingerprint()
        assert not refresh(tree, path).growth.children, "nothing has changed"


@pytest.mark.parametrize("seed", range(8))
def test_a_refresh_of_a_part_leaves_the_rest(root: Path, seed: int) -> None:
    draw, path = random.Random(seed), os.fsencode(root)
    for name in ("in", "out"):
        (root / name).mkdir()
    for _ in range(15):
        change(path + b"/" + draw.choice([b"in", b"out"]), draw)
    tree = GrowingManifest(scanned(path), room=2000)
    for _ in range(3):
        before = told(tree)
        for _ in range(5):
            change(path + b"/" + draw.choice([b"in", b"out"]), draw)
        refresh(tree, path, b"in")
        now, shown = told(scanned(path)), told(tree)
        assert {at: it for at, it in shown.items() if at.startswith(b"in")} == {
            at: it for at, it in now.items() if at.startswith(b"in")
        }
        assert {at: it for at, it in shown.items() if at.startswith(b"out")} == {
            at: it for at, it in before.items() if at.startswith(b"out")
        }


def listed(tree: Manifest, directory: int, following: int, most: int) -> tuple[list[bytes], int]:
    """Names from where a listing has come to, and where it goes on: as the request handlers do it."""
    children: Sequence[int] = tree.children(directory)
    start = tree.behind(directory, following - 1) if following else 0
    some = list(children[start : start + most])
    return [tree.name(child) for child in some], some[-1] + 1 if some else following


@pytest.mark.parametrize("seed", range(10))
def test_a_listing_over_refreshes_has_all_that_was_there_all_the_time(root: Path, seed: int) -> None:
    draw, path = random.Random(seed), os.fsencode(root)
    for number in range(40):
        (root / f"{number * 7:04d}").write_bytes(b"")
    tree = GrowingManifest(scanned(path), room=2000)
    always, ever = set(os.listdir(path)), set(os.listdir(path))
    seen: list[bytes] = []
    following = 0
    while True:
        names, following = listed(tree, 0, following, draw.randrange(1, 8))
        if not names:
            break
        seen += names
        for name in draw.sample(sorted(os.listdir(path)), 2):
            os.unlink(path + b"/" + name)
        for _ in range(3):
            (root / f"{draw.randrange(300):04d}").write_bytes(b"")
        refresh(tree, path)
        always &= set(os.listdir(path))
        ever |= set(os.listdir(path))
    assert len(seen) == len(set(seen))
    assert always <= set(seen) <= ever


def test_a_directory_that_cannot_be_read_now_stays_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.fsencode(root)
    for name in ("d/x", "d/e/y", "f"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"1")
    tree = GrowingManifest(scanned(path), room=10)
    before = numbers(tree)
    real = os.listdir

    def listdir(at: int) -> list[str]:
        if b"d" in real(path) and os.path.samestat(os.fstat(at), os.stat(root / "d")):
            raise OSError(5, "Input/output error")
        return real(at)

    monkeypatch.setattr(os, "listdir", listdir)
    (root / "new").write_bytes(b"2")
    found = refresh(tree, path)
    assert numbers(tree) == before | {b"new": tree.find(b"new")}
    assert (found.added, found.gone) == (1, 0)


def test_no_more_than_there_is_room_for(root: Path) -> None:
    path = os.fsencode(root)
    tree = GrowingManifest(scanned(path), room=3)
    for name in "abc":
        (root / name).write_bytes(b"")
    refresh(tree, path)
    assert tree.room == 0
    (root / "d").write_bytes(b"")
    with pytest.raises(ValueError, match="room"):
        refresh(tree, path)
    assert tree.find(b"d") == -1
    os.unlink(root / "a")
    os.unlink(root / "d")
    refresh(tree, path)
    (root / "a").write_bytes(b"it is back")
    refresh(tree, path)
    assert told(tree) == told(scanned(path))
