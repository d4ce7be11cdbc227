"""Hard links: entries are taken for one file exactly where they are one, whatever the tree and the inode numbers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from mlfs.tree.hard_links import HardLinks, columns_of
from mlfs.tree.index import load, save
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan


def linked_tree(root: Path, chance: random.Random) -> None:
    """Files in some directories, some of them under several names, one of which may lie outside."""
    for name in ("a", "b/c", "d"):
        (root / "tree" / name).mkdir(parents=True)
    for number in range(chance.randrange(1, 12)):
        names = [
            root / chance.choice(["tree", "tree/a", "tree/b/c", "tree/d", "."]) / f"{number}-{link}"
            for link in range(chance.randrange(1, 5))
        ]
        names[0].write_bytes(bytes(chance.randrange(9000)))
        for name in names[1:]:
            name.hardlink_to(names[0])
    (root / "tree" / "link").symlink_to("a")
    os.link(root / "tree" / "link", root / "tree" / "other link", follow_symlinks=False)


def scanned(path: Path) -> Manifest:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return scan(fd, workers=2)
    finally:
        os.close(fd)


@pytest.mark.parametrize("seed", range(8))
def test_names_of_one_file(seed: int, tmp_path: Path) -> None:
    linked_tree(tmp_path, random.Random(seed))
    manifest = scanned(tmp_path / "tree")
    save(manifest, tmp_path / "index", "me")
    again, _ = load(tmp_path / "index", "me")
    assert again is not None
    of_file: dict[int, list[int]] = {}
    for entry, path in enumerate(manifest.paths(range(len(manifest)))):
        status = os.lstat(os.path.join(os.fsencode(tmp_path), b"tree", path))
        of_file.setdefault(status.st_ino, []).append(entry)
    for names in of_file.values():
        for tree in (manifest, again):
            assert [tree.hard_links.first_of(entry) for entry in names] == [min(names)] * len(names)
            assert [list(tree.hard_links.names_of(entry) or [entry]) for entry in names] == [names] * len(names)
    firsts = [manifest.hard_links.first_of(entry) for entry in range(len(manifest))]
    assert [
        manifest.hard_links.first_of_each(np.arange(entry, entry + 2)).tolist() for entry in range(len(manifest) - 1)
    ] == [firsts[entry : entry + 2] for entry in range(len(manifest) - 1)]


def test_inode_numbers_that_tell_nothing() -> None:
    """More names than links, or other times under one number: these are no names of one file."""
    rows = [(3, 2, 7, 1, 5), (4, 2, 7, 1, 5), (9, 2, 7, 1, 5), (5, 2, 7, 1, 6), (6, 2, 7, 1, 7), (1, 3, 8, 1, 1)]
    linked, first = columns_of(np.array(rows, dtype=np.int64))
    assert not len(linked)
    assert not len(first)


def test_regrouped() -> None:
    """What is found out later counts: two of three names are one file still, the third is another now."""
    links = HardLinks(np.array([2, 5, 7], dtype=np.uint32), np.array([2, 2, 2], dtype=np.uint32))
    links.regroup([(2,), (5, 7)])
    assert [links.first_of(entry) for entry in (2, 5, 7)] == [2, 5, 5]
    assert links.first_of_each(np.arange(1, 9)).tolist() == [1, 2, 3, 4, 5, 6, 5, 8]
    assert list(links.names_of(7)) == [2, 5, 7]
