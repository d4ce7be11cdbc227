"""Nodes that may not see the same bytes: a file that is replaced between their mounts, a data set that is a copy."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from support.cluster import MountedCluster
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, make_tree

NAMES = [f"c{number % 2}/{number}.jpg" for number in range(20)]
REPLACED = NAMES[3]


def replace_unseen(source: Path) -> None:
    """Another file takes the name, its size and mtime kept."""
    before = (source / REPLACED).stat()
    (source / "incoming").write_bytes(content("another", before.st_size))
    os.utime(source / "incoming", ns=(0, before.st_mtime_ns))
    os.rename(source / "incoming", source / REPLACED)


def test_no_node_gets_a_copy_of_what_was_replaced_and_nodes_that_see_another_file_system_are_no_peers(
    tmp_path: Path,
) -> None:
    source = make_tree(tmp_path / "source", {name: content(name, 20_000) for name in NAMES})
    cluster = MountedCluster(source, 3, tmp_path / "nodes", "--ram", "8M", peer_timeout_s=20.0)
    early, late, last = cluster.mounts
    elsewhere = cluster.mounts[2] = MlfsMount(
        tmp_path / "copy", "--ram", "8M", "--infer", "off", mountpoint=last.path, state=last.state
    )
    with ExitStack() as mounts:
        mounts.enter_context(early)
        for name in NAMES:
            (early.path / name).read_bytes()
        wait_until(lambda: bool(early.status()["tiers"][0]["samples"] == len(NAMES)))
        replace_unseen(source)
        shutil.copytree(source, tmp_path / "copy")  # sizes and mtimes are the same, change times are not
        mounts.enter_context(late)
        mounts.enter_context(elsewhere)
        try:
            cluster.start()
            wait_until(lambda: [len((cluster.peers(node) or {}).get("refused", ())) for node in range(3)] == [1, 1, 2])
            assert "change times" in (cluster.peers(0) or {})["refused"]["2"]
            early.register(sampler="torch-distributed", seed=5, epochs=2, batch_size=4, world_size=2)
            wait_until(lambda: bool(late.status()["jobs"]))
            late.settle()
            for node in (late, elsewhere):
                for name in NAMES:
                    assert (node.path / name).read_bytes() == (source / name).read_bytes(), name
            by_peers = cluster.fetched("peer")
            assert by_peers[1] > 0
            assert by_peers[2] == 0
        finally:
            cluster.__exit__(None, None, None)
