"""Nodes that share files too large for a reader to wait for, and an agent of one's own that hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from peers.test_cluster import read_epoch
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.trees import make_tree

LARGE, SMALL = 16, 40


@pytest.mark.promise("peers-silent")
def test_large_files_are_read_once_and_a_hung_agent_costs_one_wait(tmp_path: Path) -> None:
    draw = np.random.default_rng(19)
    large = {
        f"large/c{number % 2}/f{number:02}.jpg": draw.bytes(int(draw.integers(4 << 20, 6 << 20)))
        for number in range(LARGE)
    }
    small = {f"small/f{number:02}.jpg": draw.bytes(int(draw.integers(1, 20_000))) for number in range(SMALL)}
    source = make_tree(tmp_path / "source", large | small)
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "256M", peer_timeout_s=1.0) as cluster:
        stopped = cluster.agents()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            for path in sorted(small):
                assert (cluster.mounts[0].path / path).read_bytes() == small[path]
            assert time.monotonic() - began_s < SMALL / 4  # half of them are the other node's, and each would cost 2 s
            peers = cluster.peers(0)
            assert peers is not None
            assert peers["silent"]
            assert peers["lost"] == [1]
            assert [member["state"] for member in peers["members"]] == ["silent", "lost"]
            shown = cluster.mounts[0].run("status", str(cluster.mounts[0].path)).stdout
            assert f"the agent here (process {stopped}) does not answer" in " ".join(shown.split())
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: not (cluster.peers(0) or {"silent": True})["silent"], 30)
        wait_until(lambda: [member["state"] for member in (cluster.peers(0) or {})["members"]] == ["alive"] * 2, 30)
        before = sum(mount.status()["pfs"]["total_bytes"] for mount in cluster.mounts)
        cluster.register(0, sampler="torch-distributed", seed=3, epochs=2, batch_size=2, world_size=2, root="large")
        for epoch in (0, 1):
            read_epoch(cluster, source, epoch, 1)
        after = sum(mount.status()["pfs"]["total_bytes"] for mount in cluster.mounts)
        assert after - before <= 1.1 * sum(map(len, large.values()))


def test_a_file_larger_than_what_a_node_keeps_is_read_once_for_both(tmp_path: Path) -> None:
    content = np.random.default_rng(20).bytes(30 << 20)
    source = make_tree(tmp_path / "source", {"large": content})
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "20M") as cluster:
        for _ in range(2):
            for mount in cluster.mounts:
                assert (mount.path / "large").read_bytes() == content
                mount.settle()
                with open(mount.path / "large", "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        total = sum(mount.status()["pfs"]["total_bytes"] for mount in cluster.mounts)
        assert len(content) <= total <= 1.1 * len(content)
