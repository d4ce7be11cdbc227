"""Real mounts, real agents under MPI: what a node has read of the source, the others get from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.slow import SlowSource
from support.trees import make_tree

from mlfs.lab.sim.like import like

FILES = 240


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(11)
    files = {f"c{number % 5}/f{number:03}.jpg": draw.bytes(int(draw.integers(1, 40_000))) for number in range(FILES)}
    return make_tree(tmp_path / "source", files)


READER = """
import sys, pathlib
mount, source, epoch, *ranks = sys.argv[1:]
mount, source = pathlib.Path(mount), pathlib.Path(source)
for rank in ranks:
    paths = (mount / ".mlfs" / "order" / "train" / epoch / rank).read_text().splitlines()
    assert paths
    for path in paths:
        assert (mount / path).read_bytes() == (source / path).read_bytes(), path
"""


def read_epoch(cluster: MountedCluster, source: Path, epoch: int, ranks_a_node: int) -> None:
    """All ranks at once, each a process on its node: they read in their order and compare every byte."""
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(mount.path), str(source), str(epoch), str(node * ranks_a_node + local)]
        )
        for node, mount in enumerate(cluster.mounts)
        for local in range(ranks_a_node)
    ]
    assert [reader.wait(120) for reader in readers] == [0] * len(readers)


def test_nodes_that_wait_for_each_other_do_so_for_as_long_as_the_source_takes(source: Path, tmp_path: Path) -> None:
    """All lanes of both nodes wait for the other node, and somebody still gives."""
    slow = SlowSource(source, open_latency="20ms")
    with (
        slow,
        MountedCluster(
            slow.path, 2, tmp_path / "nodes", "--ram", "64M", "--staging", "1M", peer_timeout_s=3.0
        ) as cluster,
    ):
        cluster.register(0, sampler="torch-distributed", seed=5, epochs=1, batch_size=8, world_size=8)
        read_epoch(cluster, source, 0, 4)
        assert [(cluster.peers(node) or {}).get("missed") for node in (0, 1)] == [0, 0]
        assert sum(cluster.fetched("pfs")) == FILES


def test_the_source_is_read_once_for_all_nodes_and_never_again(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 3, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=20.0) as cluster:
        cluster.register(1, sampler="torch-distributed", seed=3, epochs=3, batch_size=8, world_size=6)
        assert [job["spec"]["ranks"] for mount in cluster.mounts for job in mount.status()["jobs"]] == [
            [0, 1], [2, 3], [4, 5]
        ]  # fmt: skip
        read_epoch(cluster, source, 0, 2)
        assert sum(cluster.fetched("pfs")) == FILES
        assert sum(cluster.fetched("peer")) > 0
        for epoch in (1, 2):
            read_epoch(cluster, source, epoch, 2)
        assert sum(cluster.fetched("pfs")) == FILES
        for node, mount in enumerate(cluster.mounts):
            status = mount.status()
            assert status["jobs"][0]["agreement"] == 1.0, node
            assert status["peers"]["lost"] == []
            # Two thirds of a node's samples come from the others, on whose rate the simulator's figures rest.
            assert status["rates"]["peers"]["measured"], node
            simulated = like(status)
            assert simulated.scenario.cluster.nodes == 3
            assert simulated.peers_bytes_per_s == max(rate for _, rate in status["rates"]["peers"]["refined"])
        assert cluster.leave() == 0
        wait_until(lambda: cluster.peers(0) is None, 10)


def test_without_any_job_it_is_still_one_cache(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=20.0) as cluster:
        for node in (0, 1, 0):
            for path in sorted(source.rglob("*.jpg")):
                inside = cluster.mounts[node].path / path.relative_to(source)
                assert inside.read_bytes() == path.read_bytes()
        assert sum(cluster.fetched("pfs")) == FILES
        assert all(count > FILES / 4 for count in cluster.fetched("peer"))
