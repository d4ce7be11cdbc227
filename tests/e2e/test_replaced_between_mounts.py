"""Files replaced between two mounts, their size and mtime kept: a copy on disk of the old one is not served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import content, make_tree

NAMES = [f"{number}.jpg" for number in range(6)]
REPLACED, CHANGED_RIGHTS = NAMES[1], NAMES[2]


def replace_unseen(path: Path) -> None:
    """Another file takes the name. Only inode and ctime tell."""
    before = path.stat()
    path.with_name("incoming").write_bytes(content(f"{path} replaced", before.st_size))
    os.utime(path.with_name("incoming"), ns=(0, before.st_mtime_ns))
    os.rename(path.with_name("incoming"), path)


@pytest.mark.promise("change-copies")
@pytest.mark.parametrize("kind", ["ssd", "lmdb"])
def test_a_file_replaced_between_two_mounts_is_read_anew_and_the_others_are_not(tmp_path: Path, kind: str) -> None:
    backing = make_tree(tmp_path / "backing", {name: content(name, 50_000) for name in NAMES})
    flags = ("--ram", "4K", f"--{kind}", f"{tmp_path / 'copies'}:8M")
    with SlowSource(backing, open_latency="0ms") as slow:
        with MlfsMount(slow.path, *flags, state=tmp_path / "state") as mount:
            for name in NAMES:
                assert (mount.path / name).read_bytes() == (backing / name).read_bytes()
            wait_until(lambda: bool(mount.status()["tiers"][1]["samples"] == len(NAMES)))
        replace_unseen(backing / REPLACED)
        (backing / CHANGED_RIGHTS).chmod(0o640)
        opened = slow.counts()["opens"]
        with MlfsMount(slow.path, *flags, state=tmp_path / "state") as mount:
            for name in NAMES:
                assert (mount.path / name).read_bytes() == (backing / name).read_bytes(), name
            mount.settle()
            assert slow.counts()["opens"] == opened + 2
            assert mount.status()["tiers"][1]["errors"] == 0
            assert mount.status()["tiers"][1]["samples"] == len(NAMES)
