"""Nodes that die, stop and come back under load: whoever reads sees nothing of it but time, and every byte is right."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import kill, wait_until
from support.mounts import MlfsMount
from support.trees import make_tree

from mlfs.peers import link
from mlfs.peers.process import connect

FILES = 300
NODES = 3
READER = """
import pathlib, random, sys
mount, source, seed = sys.argv[1:]
mount, source, draw = pathlib.Path(mount), pathlib.Path(source), random.Random(int(seed))
paths = sorted(path.relative_to(source) for path in source.rglob("*.jpg"))
for _ in range(2):
    draw.shuffle(paths)
    for path in paths:
        assert (mount / path).read_bytes() == (source / path).read_bytes(), path
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(12)
    files = {f"c{number % 5}/f{number:03}.jpg": draw.bytes(int(draw.integers(1, 60_000))) for number in range(FILES)}
    return make_tree(tmp_path / "source", files)


def agent_dies(cluster: MountedCluster, node: int) -> set[int]:
    kill(cluster.agents()[node])
    return set()


def all_other_agents_die(cluster: MountedCluster, node: int) -> set[int]:
    agents = cluster.agents()
    for other in range(NODES):
        if other != node:
            kill(agents[other])
    return set()


def launcher_dies(cluster: MountedCluster, node: int) -> set[int]:
    assert cluster.launcher is not None
    cluster.launcher.kill()
    return set()


def an_agent_and_another_nodes_server_stop_and_go_on(cluster: MountedCluster, node: int) -> set[int]:
    stopped = cluster.agents()[node], cluster.mounts[(node + 1) % NODES].pid
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.6)  # longer than --peer-timeout
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    return set()


def all_other_nodes_die(cluster: MountedCluster, node: int) -> set[int]:
    """Of one the server alone: its agent has to see that for itself."""
    one, other = (node + 1) % NODES, (node + 2) % NODES
    agent, servers = cluster.agents()[other], [cluster.mounts[dead].pid for dead in (one, other)]
    for pid in (*servers, agent):
        kill(pid)
    return {one, other}


@pytest.mark.parametrize(
    "happens",
    [agent_dies, all_other_agents_die, launcher_dies, an_agent_and_another_nodes_server_stop_and_go_on,
     all_other_nodes_die],
)  # fmt: skip
def test_readers_notice_nothing_but_time(
    source: Path, tmp_path: Path, happens: Callable[[MountedCluster, int], set[int]]
) -> None:
    draw = np.random.default_rng(sum(map(ord, happens.__name__)))
    with MountedCluster(source, NODES, tmp_path / "nodes", "--ram", "64M") as cluster:
        readers = begin_to_read(cluster, source)
        time.sleep(float(draw.uniform(0.2, 0.8)))
        dead = happens(cluster, int(draw.integers(NODES)))
        ended = [reader.wait(120) for reader in readers]
        assert [code for node, code in enumerate(ended) if node not in dead] == [0] * (NODES - len(dead))
        for node, mount in enumerate(cluster.mounts):
            if node not in dead:
                mount.settle()


def test_bytes_that_are_spoilt_on_the_wire_reach_nobody(source: Path, tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "spoiling_agent.py"
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", agent=[str(program)]) as cluster:
        assert [reader.wait(120) for reader in begin_to_read(cluster, source)] == [0] * 2
        wait_until(lambda: sum(member["spoilt"] for member in members(cluster)) > 0, 20)
        assert sum(member["got"] for member in members(cluster)) > 0  # most came whole


def members(cluster: MountedCluster) -> list[dict[str, int]]:
    peers = cluster.peers(0)
    found: list[dict[str, int]] = peers["members"] if peers is not None else []
    return found


def begin_to_read(cluster: MountedCluster, source: Path) -> list[subprocess.Popen[bytes]]:
    """A process on each node that reads all in an order of its own, and compares every byte."""
    return [
        subprocess.Popen([sys.executable, "-c", READER, str(mount.path), str(source), str(number)])
        for number, mount in enumerate(cluster.mounts)
    ]


def test_a_node_whose_agent_died_goes_on_alone_and_says_so(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", command=["sleep", "1000"]) as cluster:
        shared = [
            line for line in Path(f"/proc/{cluster.agents()[1]}/maps").read_text().splitlines() if "/shm/" in line
        ]
        assert all(line.endswith("(deleted)") for line in shared), shared  # or it would stay for good
        kill(cluster.agents()[1])
        wait_until(lambda: cluster.peers(1) is None, 10)
        for mount in cluster.mounts:
            for other in sorted(source.rglob("*.jpg")):
                inside = mount.path / other.relative_to(source)
                assert inside.read_bytes() == other.read_bytes()
        assert (cluster.peers(0) or {})["lost"] == [1]
        log = next((cluster.mounts[1].state / "cache").glob("mlfs/log/*.log")).read_text()
        assert "goes on alone" in log
        server = cluster.mounts[1].pid
        kill(server)
        assert cluster.mounts[1].pid != server
        said = cluster.mounts[1].status()["messages"]
        assert any("is gone and this node alone" in message for message in said), said


@pytest.mark.promise("peers-refused")
def test_who_is_no_agent_costs_the_mount_nothing(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    right = {"protocol": link.PROTOCOL, "node": 1, "nodes": 3, "patience_s": 1.0, "pid": 7, "keeper": 6}
    wrong = {
        "node": [-1, 3, 1e300, 0.5, True, "1", None, [0]], "nodes": [0, -3, 1 << 40, 10**400, 2.5, True, {}],
        "patience_s": [0, -1.0, 1e300, float("nan"), float("inf"), "1", True, None], "pid": [-1, 1 << 60, "7", 0.1],
        "keeper": [-9, 1 << 60, None], "protocol": [link.PROTOCOL - 1, None],
    }  # fmt: skip
    hellos = [b"nonsense", link.pack(link.PacketKind.FREE, [(1 << 40, 5)])[0]]
    for said in ({"protocol": link.PROTOCOL}, ["x"], *(right | {name: one} for name in wrong for one in wrong[name])):
        hellos.append(link.pack_json(link.PacketKind.HELLO, said))
    with MlfsMount(source, mountpoint=tmp_path / "mount") as mount:
        (path,) = (mount.state / "run").glob("*.agent")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for hello in [*hellos, b""]:
            with connect(str(path), str(mount.path)) as connection:
                connection.send(hello)
                answer = connection.recv(1000)
                assert not hello or "refused" in link.unpack(answer).value, hello  # and it says why
                assert connection.recv(1000) == b""
        for file in sorted(source.rglob("*.jpg"))[:20]:
            assert (mount.path / file.relative_to(source)).read_bytes() == file.read_bytes()
        assert mount.status()["peers"] is None
        assert "Traceback" not in next((mount.state / "cache").glob("mlfs/log/*.log")).read_text()


def test_a_server_that_takes_over_is_of_the_cluster_again(source: Path, tmp_path: Path) -> None:
    """Each node's server is killed, that of the one which plans for all as well, while both read a job."""
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "6M") as cluster:
        fields = {"sampler": "torch-distributed", "seed": 3, "epochs": 5, "batch_size": 4, "world_size": 2}
        cluster.register(0, name="train", **fields)
        agents, before = cluster.agents(), [mount.pid for mount in cluster.mounts]

        def read(node: int, epoch: int) -> None:
            mount = cluster.mounts[node]
            order = (mount.path / f".mlfs/order/train/{epoch}/{node}").read_text().splitlines()
            for number, name in enumerate(order):
                if epoch in (2, 3) and node == epoch - 2 and number == len(order) // 2:
                    os.kill(mount.pid, signal.SIGKILL)
                assert (mount.path / name).read_bytes() == (source / name).read_bytes(), name

        sums = []
        for epoch in range(5):
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(read, (0, 1), (epoch, epoch)))
            wait_until(cluster.joined, 30)
            sums.append(sum(cluster.fetched("pfs")))
        assert [mount.pid == pid for mount, pid in zip(cluster.mounts, before, strict=True)] == [False] * 2
        assert cluster.agents() == agents
        assert sums[:2] == [FILES] * 2
        # Until a server has joined the others it serves alone: what its reader wants then comes from the source.
        assert sums[4] == sums[3] <= FILES * 3 / 2, sums
        logs = [next((mount.state / "cache").glob("mlfs/log/*.log")).read_text() for mount in cluster.mounts]
        assert not any("resumed elsewhere" in log for log in logs)  # the job went on where it was
