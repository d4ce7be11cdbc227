"""Nodes that may not see the same bytes: a file replaced between their mounts, data sets that are copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.cluster import MountedCluster
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, make_tree

NAMES = [f"c{number % 2}/{number}.jpg" for number in range(20)]
REPLACED = NAMES[3]


def test_a_peer_gives_no_copy_of_a_file_that_was_replaced_before_this_node_mounted(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {name: content(name, 20_000) for name in NAMES})
    nodes: list[MlfsMount] = []

    def mounted(node: MlfsMount) -> None:
        nodes.append(node)
        if len(nodes) > 1:
            return
        for name in NAMES:
            (node.path / name).read_bytes()
        wait_until(lambda: bool(node.status()["tiers"][0]["samples"] == len(NAMES)))
        before = (source / REPLACED).stat()
        (source / "incoming").write_bytes(content("another", before.st_size))
        os.utime(source / "incoming", ns=(0, before.st_mtime_ns))
        os.rename(source / "incoming", source / REPLACED)

    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "8M", peer_timeout_s=20.0, mounted=mounted) as cluster:
        cluster.register(0, sampler="torch-distributed", seed=5, epochs=2, batch_size=4, world_size=2)
        for name in NAMES:
            assert (nodes[1].path / name).read_bytes() == (source / name).read_bytes(), name
        assert cluster.fetched("peer")[1] > 0


def test_nodes_whose_sources_are_copies_of_each_other_are_no_peers_and_say_so(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "first", {name: content(name, 20_000) for name in NAMES})
    second = tmp_path / "second"
    shutil.copytree(first, second)  # sizes and mtimes are the same, change times are not
    cluster = MountedCluster(first, 2, tmp_path / "nodes", "--ram", "8M", peer_timeout_s=20.0)
    other = cluster.mounts[1]
    cluster.mounts[1] = MlfsMount(second, "--ram", "8M", mountpoint=other.path, state=other.state)
    with cluster.mounts[0], cluster.mounts[1]:
        try:
            cluster.start()
            wait_until(lambda: all((cluster.peers(node) or {}).get("refused") for node in (0, 1)))
            for node, mount in enumerate(cluster.mounts):
                assert "change times" in (cluster.peers(node) or {})["refused"][str(1 - node)]
                for name in NAMES:
                    assert (mount.path / name).read_bytes() == (first / name).read_bytes()
        finally:
            cluster.__exit__(None, None, None)
