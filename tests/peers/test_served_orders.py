"""An order that mlfs serves on several nodes: the same on all, mostly read where it is kept, not ended by a loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.trees import make_tree

from mlfs.job import only_fields, parse_job
from mlfs.orders.mt19937 import randperm
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import build_streams
from mlfs.served.locality import imbalance
from mlfs.torch import ServedSampler
from mlfs.tree.scan import scan

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


def dealt_away(source: Path, spec: dict[str, Any], ranks: list[list[int]]) -> list[bool]:
    """Of each read, whether another node than the reader's is to keep the sample."""
    fd = os.open(source, os.O_RDONLY)
    try:
        order = build_streams(parse_job(only_fields(spec)), scan(fd)).order
    finally:
        os.close(fd)
    assert isinstance(order, ServedOrder)
    return [bool(order.kept.node[index] != node) for node, indices in enumerate(ranks) for index in indices]


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


@pytest.mark.promise("served-same", "served-batches")
def test_a_served_order_is_the_same_on_all_nodes_reads_the_source_once_and_goes_on_when_a_node_dies(
    source: Path, tmp_path: Path
) -> None:
    with MountedCluster(source, NODES, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=2.0) as cluster:
        fields = {"sampler": "torch-distributed", "seed": 3, "epochs": EPOCHS, "batch_size": BATCH, "world_size": NODES}
        with ThreadPoolExecutor() as script:  # which is quicker on a node than the registration on another one
            sampler = script.submit(ServedSampler, cluster.mounts[2].path, rank=2, num_replicas=NODES)
            wait_until(sampler.running)
            cluster.register(1, **fields, serve="locality")
            assert sampler.result().job is not None
        specs = [json.loads((mount.path / ".mlfs/jobs/train.json").read_bytes()) for mount in cluster.mounts]
        assert [spec["ranks"] for spec in specs] == [[0], [1], [2]]
        assert [node["ranks"] for node in specs[0]["nodes"]] == ["0", "1", "2"]
        # Who registers it on each node, with the ranks of that node, gets the same order.
        assert cluster.mounts[2].register(**fields, ranks=[2], serve="locality")["job"]["nodes"] == specs[0]["nodes"]
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
        # Over the network comes what the order deals to others than those who keep it, and nothing else, but for pages
        # that the machine took back. The third epoch is being fetched by now.
        away = sum(sum(dealt_away(source, specs[0], before[epoch])) for epoch in (0, 1, 2))
        assert away < 0.25 * 3 * FILES  # of the true order two thirds
        assert 0 < sum(cluster.fetched("peer")) <= away + sum(mount.taken_back() for mount in cluster.mounts)
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
        # A run that is resumed goes on in the order that it has begun, though this node is alone by now.
        resumed = cluster.mounts[2].register(**fields, ranks=[2], serve="locality", start_epoch=2)
        assert resumed["job"]["nodes"] == specs[0]["nodes"]
        assert indices(cluster, 2, 2) == before[2]


def test_far_less_crosses_the_network_than_in_the_true_order_as_the_models_say(source: Path, tmp_path: Path) -> None:
    """Yang and Cong, eq. 7: in the true order (p - 1) / p of what is read lies elsewhere. Eq. 8: in a locality order
    only what evens out the batches. The nodes keep everything, and their staging windows hold little more."""
    with MountedCluster(
        source, NODES, tmp_path / "nodes", "--ram", "64M", "--staging", "1M", peer_timeout_s=20.0
    ) as cluster:
        given = {}
        for serve in ("locality", None):
            before = sum(cluster.fetched("peer"))
            fields = {"seed": 3, "epochs": EPOCHS, "batch_size": BATCH, "world_size": NODES, "serve": serve}
            cluster.register(0, **fields)
            for epoch in range(EPOCHS):
                read(cluster, source, epoch, tmp_path / f"{serve}{epoch}")
            given[serve] = (sum(cluster.fetched("peer")) - before) / (EPOCHS * FILES)
        drawn = np.random.default_rng(0).multinomial(NODES * BATCH, [1 / NODES] * NODES, 10_000)
        assert given[None] == pytest.approx((NODES - 1) / NODES, rel=0.1)
        assert given["locality"] == pytest.approx(float(imbalance(drawn).mean()), rel=0.25)


@pytest.mark.promise("served-once")
def test_what_memories_do_not_hold_is_read_once_an_epoch_and_the_rest_never_again(source: Path, tmp_path: Path) -> None:
    """Three nodes with 1 MiB each, for 4.8 MB."""
    flags = ["--ram", "1M", "--staging", "1M"]
    with MountedCluster(source, NODES, tmp_path / "nodes", *flags, peer_timeout_s=20.0) as cluster:
        fields = {"seed": 3, "epochs": EPOCHS, "batch_size": BATCH, "world_size": NODES}
        cluster.register(0, **fields, serve="opportunistic", level=0.6)
        spec = cluster.mounts[1].status()["jobs"][0]["spec"]
        assert spec["level_reached"] >= 0.6
        away = round((1 - spec["kept"]) * FILES)
        assert 0.2 * FILES < away < 0.6 * FILES
        for epoch in range(EPOCHS):
            ranks = indices(cluster, epoch % NODES, epoch)
            assert sorted(index for rank in ranks for index in rank) == list(range(FILES))
            read(cluster, source, epoch, tmp_path / f"epoch{epoch}")
        # Of what no node keeps some is still in a staging window when an epoch begins that reads it early.
        assert sum(cluster.fetched("pfs")) <= FILES + (EPOCHS - 1) * (away + 0.05 * FILES)
        assert [mount.status()["jobs"][0]["agreement"] for mount in cluster.mounts] == [1.0] * NODES
        # Who registers the description that another node has shown, with that one's ranks in it, gets its own.
        shown = json.loads((cluster.mounts[0].path / ".mlfs/jobs/train.json").read_bytes())
        before = indices(cluster, 0, 1)
        assert cluster.mounts[1].register(**only_fields(shown))["job"]["ranks"] == [1]
        specs = [json.loads((mount.path / ".mlfs/jobs/train.json").read_bytes()) for mount in cluster.mounts]
        assert [spec["ranks"] for spec in specs] == [[0], [1], [2]]
        assert indices(cluster, 2, 1) == before


@pytest.mark.promise("served-same")
def test_an_opportunistic_order_goes_on_when_a_whole_node_dies_in_the_middle_of_an_epoch(
    source: Path, tmp_path: Path
) -> None:
    """The mount and the agent of a node are killed. What it kept, and what its rank reads, comes from elsewhere."""
    flags = ["--ram", "1M", "--staging", "1M"]
    with MountedCluster(source, NODES, tmp_path / "nodes", *flags, peer_timeout_s=2.0) as cluster:
        fields = {"seed": 3, "epochs": EPOCHS, "batch_size": BATCH, "world_size": NODES}
        cluster.register(0, **fields, serve="opportunistic", level=0.6)
        before = [indices(cluster, 0, epoch) for epoch in range(EPOCHS)]
        read(cluster, source, 0, tmp_path / "whole")
        readers = begin(cluster, source, 1, tmp_path / "marks")
        wait_until(lambda: len(list((tmp_path / "marks").iterdir())) == NODES, 60)
        dead = cluster.mounts[2]
        readers[2].kill()
        os.kill(cluster.agents()[2], signal.SIGKILL)
        os.kill(dead.pid, signal.SIGKILL)
        (tmp_path / "marks" / "go").touch()
        assert [reader.wait(120) for reader in readers[:2]] == [0, 0]
        for node, epoch in ((0, 1), (1, 1), (0, 2), (1, 3)):
            assert indices(cluster, node, epoch) == before[epoch]
        # Whoever takes the dead node's rank reads the rest of its epoch in another mount.
        rest = (cluster.mounts[0].path / ".mlfs/order/train/1/2").read_text().split()[40:]
        for path in rest:
            assert (cluster.mounts[0].path / path).read_bytes() == (source / path).read_bytes()
        for mount in cluster.mounts[:2]:
            assert not mount.status()["jobs"][0]["found_out"]
        dead.unmount()
        dead.mount()
