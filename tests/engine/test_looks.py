"""What the kernel may be told of: looks at entries and at the directories above, over a real tree and a given clock."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from fakes import CountingSource
from support.readers import GROUP, NOBODYS, OTHER, OWNER, acl

from mlfs.engine.looks import AGAIN_S, Looks
from mlfs.places.place import FileChange
from mlfs.tree.manifest import ROOT, Manifest
from mlfs.tree.scan import scan

EVERYBODY = acl((tag, 7, NOBODYS) for tag in (OWNER, GROUP, OTHER))


class Tree:
    """a/b/file and a/b/other, and looks at them; nothing was looked at before the mount."""

    def __init__(self, root: Path) -> None:
        (root / "a/b").mkdir(parents=True)
        for name in ("file", "other"):
            (root / "a/b" / name).write_bytes(b"content")
        self.root = root
        self.fd = os.open(root, os.O_RDONLY)
        self.manifest: Manifest = scan(self.fd)
        self.now_s = 1000.0
        self.adopted: list[int] = []
        self.source = CountingSource(self.fd, self.manifest)
        seen = np.zeros(len(self.manifest), dtype=np.uint8)
        self.looks = Looks(self.manifest, self.source, self._adopt, lambda: self.now_s, seen)

    def _adopt(self, entry: int, change: FileChange) -> None:
        """As the engine does on its loop."""
        self.adopted.append(entry)
        assert change.rights is not None
        self.manifest.set_rights(entry, change.rights)
        self.looks.adopted(entry)

    def id(self, path: str) -> int:
        return self.manifest.find(path.encode())

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self.root / path, mode)

    def mode(self, path: str) -> int:
        return stat.S_IMODE(self.manifest.mode_view[self.id(path)])


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "source")


def test_an_entry_is_looked_at_before_it_is_told_of_and_the_root_at_the_start(tree: Tree) -> None:
    file, other = tree.id("a/b/file"), tree.id("a/b/other")
    assert tree.looks.has_seen(ROOT)
    assert not tree.looks.has_seen(file)
    tree.chmod("a/b/file", 0o600)
    assert tree.looks.look([file]) is None
    assert (tree.adopted, tree.mode("a/b/file")) == ([file], 0o600)
    assert tree.looks.seen_of(np.arange(len(tree.manifest))).tolist() == [True] * 3 + [
        entry == file for entry in (file, other)
    ]


def test_what_cannot_be_looked_at_is_not_told_of(tree: Tree) -> None:
    file, other = tree.id("a/b/file"), tree.id("a/b/other")
    os.unlink(tree.root / "a/b/file")
    os.unlink(tree.root / "a/b/other")
    os.symlink("/etc/passwd", tree.root / "a/b/other")
    failed = tree.looks.look([file])
    assert failed is not None
    assert failed.errno == errno.ENOENT
    replaced = tree.looks.look([other])
    assert replaced is not None
    assert replaced.errno == errno.ESTALE
    assert not tree.looks.seen_of(np.array([file, other])).any()


def test_directories_above_are_looked_at_once_a_second_and_their_change_counts_for_what_lies_below(tree: Tree) -> None:
    file, other = tree.id("a/b/file"), tree.id("a/b/other")
    tree.looks.look([file])
    before = tree.looks.changes
    tree.chmod("a", 0o700)
    tree.looks.way_to(file)
    assert tree.mode("a") == 0o755
    tree.now_s += AGAIN_S
    tree.looks.way_to(file)
    assert (tree.adopted, tree.mode("a")) == ([tree.id("a")], 0o700)
    assert tree.looks.changed_since(other, before)
    assert not tree.looks.changed_since(other, tree.looks.changes)
    assert not tree.looks.changed_since(ROOT, before)


def test_a_directory_whose_acl_may_have_changed_is_adopted_once(tree: Tree) -> None:
    """Only its change time tells, as the mode need not change."""
    file, directory = tree.id("a/b/file"), tree.id("a/b")
    tree.looks.note_no_acl(directory, 0, tree.looks.last_change(directory))
    assert tree.looks.has_no_acl(directory, 0)
    assert not tree.looks.has_seen(directory)
    assert not tree.looks.has_no_acl(directory, 1)
    for number in range(3):
        tree.now_s += AGAIN_S
        (tree.root / "a/b" / f"new-{number}").write_bytes(b"moves the change time")
        tree.looks.way_to(file)
    assert tree.adopted == [directory]  # at first nobody knows which ACL it had
    os.setxattr(tree.root / "a/b", "system.posix_acl_default", EVERYBODY)
    for _ in range(3):
        tree.now_s += AGAIN_S
        tree.looks.way_to(file)
    assert tree.adopted == [directory, directory]
    assert not tree.looks.has_no_acl(directory, 0)
    last = tree.looks.last_change(directory)
    tree.looks.adopted(directory)
    tree.looks.note_no_acl(directory, 0, last)  # of before the change
    assert not tree.looks.has_no_acl(directory, 0)


def test_where_only_its_user_reads_nothing_is_looked_at(tree: Tree) -> None:
    looks = Looks(tree.manifest, tree.source, tree._adopt, lambda: 0.0, None)
    assert looks.has_seen(tree.id("a/b/file"))
    assert looks.seen_of(np.arange(3)).all()
    tree.chmod("a", 0o700)
    looks.way_to(tree.id("a/b/file"))
    assert not tree.adopted
