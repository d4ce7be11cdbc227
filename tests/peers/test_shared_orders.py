"""An order that one node finds out from its reads is told to all: they follow it before their own first read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.trees import make_tree

from mlfs.orders.mt19937 import randperm

FILES = 400
SEED = 3
READER = """
import pathlib, sys
mount, *names = sys.argv[1:]
for name in names:
    assert (pathlib.Path(mount) / "c" / name).read_bytes() == name.encode() * 100
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "source", {f"c/f{number:03}": b"f%03d" % number * 100 for number in range(FILES)})


def read(cluster: MountedCluster, node: int, ids: list[int]) -> None:
    """A process that reads these on a node."""
    names = [f"f{number:03}" for number in ids]
    subprocess.run([sys.executable, "-c", READER, str(cluster.mounts[node].path), *names], check=True, timeout=60)


def of_rank(rank: int, epoch: int) -> list[int]:
    """What a rank of two reads, in the order of torch's DistributedSampler."""
    ids: list[int] = randperm(FILES, SEED + epoch)[rank::2].tolist()
    return ids


def plans(cluster: MountedCluster) -> list[str]:
    return [member["plan"] for node in (0, 1) for member in [cluster.mounts[node].status()["peers"]["members"][node]]]


def seeds(cluster: MountedCluster, node: int) -> list[int]:
    return [job["spec"]["seed"] for job in cluster.mounts[node].status()["jobs"] if job["inferred"]]


def test_an_order_found_on_one_node_is_told_to_all_and_followed_from_the_first_read_on_or_taken_back(
    source: Path, tmp_path: Path
) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=20.0, infer=True) as cluster:
        assert plans(cluster) == ["by hash"] * 2
        first = of_rank(0, 0)
        read(cluster, 0, first[:100])
        wait_until(lambda: bool(seeds(cluster, 0)), 90)
        read(cluster, 0, first[100:180])
        wait_until(lambda: plans(cluster) == ["by who reads"] * 2, 60)
        assert seeds(cluster, 0) == seeds(cluster, 1) == [SEED]
        assert cluster.mounts[1].status()["opens"] == 0
        # Another order on node 0: what it has told is taken back. Node 1, which has read nothing, follows it no more.
        read(cluster, 0, list(reversed(range(FILES))))
        wait_until(lambda: plans(cluster) == ["by hash"] * 2, 60)
        assert not seeds(cluster, 1)
        # What is read at the moment when a plan begins may be read by two nodes (docs/peers.md).
        assert FILES <= sum(cluster.fetched("pfs")) <= FILES + 4


def test_a_node_that_was_told_an_order_learns_its_ranks_from_its_reads(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=20.0, infer=True) as cluster:
        first = of_rank(0, 0)
        read(cluster, 1, first[:100])  # rank 0 runs on node 1
        wait_until(lambda: bool(seeds(cluster, 1)), 90)
        read(cluster, 1, first[100:])
        wait_until(lambda: bool(seeds(cluster, 0)), 60)
        read(cluster, 0, of_rank(1, 0) + of_rank(1, 1))
        cluster.mounts[0].settle()
        status = cluster.mounts[0].status()
        [job] = status["jobs"]
        assert job["agreement"] == 1.0
        theirs, ours = ((rank["epoch"], rank["position"]) for rank in job["ranks"])
        assert theirs == (0, 0)
        assert ours >= (1, FILES // 2)
        assert status["inference"]["searches"] == 0
        # What is being read while owners change may be read by two nodes (docs/peers.md).
        assert FILES <= sum(cluster.fetched("pfs")) <= FILES + 4
