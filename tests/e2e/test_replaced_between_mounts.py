"""Files replaced between two mounts, their size and mtime kept: a copy on disk of the old one is not served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import content, make_tree

SIZES = {f"{number}.jpg": 50_000 if number < 4 else 300_000 for number in range(8)}  # LMDB takes the small ones
REPLACED, CHANGED_RIGHTS = ["1.jpg", "5.jpg"], ["2.jpg", "6.jpg"]


def replace_unseen(path: Path) -> None:
    """Another file takes the name. Only inode and ctime tell."""
    before = path.stat()
    path.with_name("incoming").write_bytes(content(f"{path} replaced", before.st_size))
    os.utime(path.with_name("incoming"), ns=(0, before.st_mtime_ns))
    os.rename(path.with_name("incoming"), path)


@pytest.mark.promise("change-copies")
def test_a_file_replaced_between_two_mounts_is_read_anew_and_the_others_are_not(tmp_path: Path) -> None:
    backing = make_tree(tmp_path / "backing", {name: content(name, size) for name, size in SIZES.items()})
    flags = ("--ram", "4K", "--lmdb", f"{tmp_path / 'copies'}:8M", "--ssd", f"{tmp_path / 'copies'}:8M")
    state = tmp_path / "state"

    def kept(mount: MlfsMount) -> list[int]:
        return [tier["samples"] for tier in mount.status()["tiers"]]

    with SlowSource(backing, open_latency="0ms") as slow:
        with MlfsMount(slow.path, *flags, state=state) as mount:
            for name in SIZES:
                assert (mount.path / name).read_bytes() == (backing / name).read_bytes()
            wait_until(lambda: kept(mount) == [0, 4, 4])
        for name in REPLACED:
            replace_unseen(backing / name)
        for name in CHANGED_RIGHTS:
            (backing / name).chmod(0o640)
        opened = slow.counts()["opens"]
        with MlfsMount(slow.path, *flags, state=state) as mount:
            for name in SIZES:
                assert (mount.path / name).read_bytes() == (backing / name).read_bytes(), name
            mount.settle()
            assert slow.counts()["opens"] == opened + len(REPLACED) + len(CHANGED_RIGHTS)
            assert kept(mount) == [0, 4, 4]
            assert [tier["errors"] for tier in mount.status()["tiers"]] == [0, 0, 0]
