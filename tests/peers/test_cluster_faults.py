"""Nodes that die, stop and come back under load: whoever reads sees nothing of it but time, and every byte is right."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
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


def agent_dies(cluster: MountedCluster, node: int) -> None:
    kill(cluster.agents()[node])


def agent_stops_and_goes_on(cluster: MountedCluster, node: int) -> None:
    agent = cluster.agents()[node]
    os.kill(agent, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(agent, signal.SIGCONT)


def two_agents_die(cluster: MountedCluster, node: int) -> None:
    for other in range(NODES):
        if other != node:
            kill(cluster.agents()[other])


def launcher_dies(cluster: MountedCluster, node: int) -> None:
    assert cluster.launcher is not None
    cluster.launcher.kill()


def server_stops_and_goes_on(cluster: MountedCluster, node: int) -> None:
    server = cluster.mounts[node].pid
    os.kill(server, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(server, signal.SIGCONT)


@pytest.mark.parametrize(
    "happens", [agent_dies, agent_stops_and_goes_on, two_agents_die, launcher_dies, server_stops_and_goes_on]
)
def test_readers_notice_nothing_but_time(
    source: Path, tmp_path: Path, happens: Callable[[MountedCluster, int], None]
) -> None:
    draw = np.random.default_rng(sum(map(ord, happens.__name__)))
    with MountedCluster(source, NODES, tmp_path / "nodes", "--ram", "64M") as cluster:
        readers = [
            subprocess.Popen([sys.executable, "-c", READER, str(mount.path), str(source), str(number)])
            for number, mount in enumerate(cluster.mounts)
        ]
        time.sleep(float(draw.uniform(0.2, 0.8)))
        happens(cluster, int(draw.integers(NODES)))
        assert [reader.wait(120) for reader in readers] == [0] * NODES
        for mount in cluster.mounts:
            mount.settle()


def test_a_node_whose_agent_died_goes_on_alone_and_says_so(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M") as cluster:
        kill(cluster.agents()[1])
        wait_until(lambda: cluster.peers(1) is None, 10)
        for mount in cluster.mounts:
            for other in sorted(source.rglob("*.jpg")):
                inside = mount.path / other.relative_to(source)
                assert inside.read_bytes() == other.read_bytes()
        peers = cluster.peers(0)
        assert peers is None or peers["lost"] == [1]  # Hydra may end all agents of a machine when one of them dies
        log = next((cluster.mounts[1].state / "cache").glob("mlfs/log/*.log")).read_text()
        assert "goes on alone" in log


def test_who_is_no_agent_costs_the_mount_nothing(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    hellos = [b"nonsense", b"", link.pack_json(link.Kind.HELLO, {"protocol": link.PROTOCOL}),
              link.pack_json(link.Kind.HELLO, ["x"]), link.pack(link.Kind.FREE, [(1 << 40, 5)])[0]]  # fmt: skip
    with MlfsMount(source, mountpoint=tmp_path / "mount") as mount:
        (path,) = (mount.state / "run").glob("*.agent")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for hello in hellos:
            with connect(str(path), str(mount.path)) as connection:
                connection.send(hello)
                assert connection.recv(100) == b""  # it is refused
        for file in sorted(source.rglob("*.jpg"))[:20]:
            assert (mount.path / file.relative_to(source)).read_bytes() == file.read_bytes()
        assert mount.status()["peers"] is None
