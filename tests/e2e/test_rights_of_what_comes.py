"""Who may read what comes with a refresh, where its number was not in use before: nothing is known of it by then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mounts import MlfsMount
from support.readers import ACCESS, GROUP, MASK, NOBODYS, OTHER, OWNER, USER, Reader, acl, seen_by
from support.trees import make_tree

READERS = (Reader(1001, 2001), Reader(1002, 2002), Reader(1003, 2003))
COMING = ("b/0", "b/1", "b/2")


@pytest.mark.promise("rights-acl")
def test_the_acl_of_a_directory_is_the_sources_after_a_refresh(tmp_path: Path) -> None:
    """Also where nobody else may read: the directory was found to have none before."""
    source = make_tree(tmp_path / "source", {"b/file": 3000})
    (tmp_path / "mount").mkdir()
    with MlfsMount(source, mountpoint=tmp_path / "mount") as mount:
        for path in ("b", "b/file"):
            with pytest.raises(OSError, match="No data"):
                os.getxattr(mount.path / path, ACCESS)
            rights = ((OWNER, 7), (GROUP, 5), (MASK, 5), (OTHER, 5))
            entries = [*((tag, bits, NOBODYS) for tag, bits in rights), (USER, 4, 1001)]
            os.setxattr(source / path, ACCESS, acl(entries))
        mount.run("refresh", str(mount.path))
        for path in ("b", "b/file"):
            assert os.getxattr(mount.path / path, ACCESS) == os.getxattr(source / path, ACCESS)


@pytest.mark.promise("rights-acl", "rights-noticed")
def test_an_entry_that_comes_has_its_acl(tmp_path: Path) -> None:
    """The last entries of the tree are asked for their ACLs in a row before, as `ls -l` does."""
    source = make_tree(tmp_path / "source", {f"b/{number}x": 3000 for number in range(9)})
    source.chmod(0o755)
    (tmp_path / "mount").mkdir()
    with MlfsMount(source, "--allow-other", mountpoint=tmp_path / "mount") as mount:
        for number in range(9):
            with pytest.raises(OSError, match="No data"):
                os.getxattr(mount.path / f"b/{number}x", ACCESS)
        for path in COMING:
            (source / path).write_bytes(b"for some")
            os.chown(source / path, 0, 2002)
            rights = ((OWNER, 7), (GROUP, 0), (MASK, 4), (OTHER, 0))
            entries = [*((tag, bits, NOBODYS) for tag, bits in rights), (USER, 4, 1001)]
            os.setxattr(source / path, ACCESS, acl(entries))
        mount.run("refresh", str(mount.path))
        for reader in READERS:
            assert seen_by(reader, mount.path, COMING) == seen_by(reader, source, COMING), reader
