"""An order that mlfs serves on several nodes: the same on all, mostly read where it is kept, not ended by a loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.trees import make_tree

from mlfs.orders.permutation import randperm

FILES, NODES, BATCH, EPOCHS = 240, 3, 8, 4
READER = """
import pathlib, sys, time
mount, source, order, marks = map(pathlib.Path, sys.argv[1:])
for number, line in enumerate(order.read_text().split()):
    if number == 40:
        (marks / str(order.name)).touch()
        while not (marks / "go").exists():
            time.sleep(0.01)
    assert (mount / line).read_bytes() == (source / line).read_bytes(), line
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(11)
    files = {f"c{number % 5}/f{number:03}.jpg": draw.bytes(int(draw.integers(1, 40_000))) for number in range(FILES)}
    return make_tree(tmp_path / "source", files)


def indices(cluster: MountedCluster, node: int, epoch: int) -> list[list[int]]:
    """By rank, the dataset indices of an epoch as a node serves them."""
    order = cluster.mounts[node].path / ".mlfs" / "order" / "train" / str(epoch)
    return [[int(line) for line in (order / f"{rank}.indices").read_text().split()] for rank in range(NODES)]


def begin(cluster: MountedCluster, source: Path, epoch: int, marks: Path) -> list[subprocess.Popen[bytes]]:
    """A process on each node that reads its rank's order, and waits in its middle until there is the mark "go"."""
    marks.mkdir()
    return [
        subprocess.Popen(
            [
                sys.executable, "-c", READER, str(mount.path), str(source),
                str(mount.path / ".mlfs" / "order" / "train" / str(epoch) / str(rank)), str(marks),
            ]
        )
        for rank, mount in enumerate(cluster.mounts)
    ]  # fmt: skip


def read(cluster: MountedCluster, source: Path, epoch: int, marks: Path) -> None:
    """All ranks at once read an epoch; every byte is compared."""
    readers = begin(cluster, source, epoch, marks)
    (marks / "go").touch()
    assert [reader.wait(120) for reader in readers] == [0] * NODES


def test_a_served_order_is_the_same_on_all_nodes_reads_the_source_once_and_goes_on_when_a_node_dies(
    source: Path, tmp_path: Path
) -> None:
    with MountedCluster(source, NODES, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=2.0) as cluster:
        fields = {"sampler": "torch-distributed", "seed": 3, "epochs": EPOCHS, "batch_size": BATCH, "world_size": NODES}
        cluster.register(1, **fields, serve="locality")
        specs = [json.loads((mount.path / ".mlfs/jobs/train.json").read_bytes()) for mount in cluster.mounts]
        assert [spec["ranks"] for spec in specs] == [[0], [1], [2]]
        assert [node["ranks"] for node in specs[0]["nodes"]] == ["0", "1", "2"]
        before = [indices(cluster, 0, epoch) for epoch in range(EPOCHS)]
        for epoch, ranks in enumerate(before):
            assert indices(cluster, 1, epoch) == indices(cluster, 2, epoch) == ranks
            true = randperm(FILES, 3 + epoch).reshape(
                -1, NODES
            )  # DistributedSampler's, a row for each place of a batch
            for step in range(0, FILES // NODES, BATCH):
                read_there = Counter(index for rank in ranks for index in rank[step : step + BATCH])
                assert read_there == Counter(true[step : step + BATCH].ravel().tolist())
        read(cluster, source, 0, tmp_path / "first")
        read(cluster, source, 1, tmp_path / "second")
        assert sum(cluster.fetched("pfs")) == FILES
        # The plain order would have two thirds of two epochs' reads from peers.
        assert sum(cluster.fetched("peer")) < FILES / 2
        assert [mount.status()["jobs"][0]["agreement"] for mount in cluster.mounts] == [1.0] * NODES

        readers = begin(cluster, source, 2, tmp_path / "third")
        wait_until(lambda: len(list((tmp_path / "third").iterdir())) == NODES, 60)
        os.kill(cluster.agents()[2], signal.SIGKILL)
        (tmp_path / "third" / "go").touch()
        assert [reader.wait(120) for reader in readers] == [0] * NODES
        assert indices(cluster, 0, 3) == before[3]
        read(cluster, source, 3, tmp_path / "fourth")
        for mount in cluster.mounts:
            mount.settle()
            assert mount.status()["jobs"][0]["agreement"] == 1.0
            assert not mount.status()["jobs"][0]["found_out"]
