"""Nodes that stay lost, come back, join anew or come alone: owners are planned anew, and nothing is read twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import kill, wait_until
from support.mounts import MlfsMount
from support.trees import make_tree

from mountd.runtime import start_ticks

FILES = 120


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(13)
    files = {f"c{number % 3}/f{number:03}.jpg": draw.bytes(int(draw.integers(1, 20_000))) for number in range(FILES)}
    return make_tree(tmp_path / "source", files)


def read_all(mounts: Iterable[MlfsMount], source: Path) -> None:
    for mount in mounts:
        for path in sorted(source.rglob("*.jpg")):
            assert (mount.path / path.relative_to(source)).read_bytes() == path.read_bytes(), path


def drop_pages(mounts: Iterable[MlfsMount]) -> None:
    """As the kernel does when memory is short: what is read next is not in the page cache."""
    for mount in mounts:
        for path in mount.path.rglob("*.jpg"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def asked_in_vain(mounts: Iterable[MlfsMount]) -> int:
    """Samples that peers did not give, or not in time: on a busy machine also those of a peer that has them."""
    return sum(mount.status()["peers"]["missed"] for mount in mounts)


def plan_of(cluster: MountedCluster, node: int) -> str:
    """The plan by which a node shares samples with the others."""
    peers = cluster.peers(node)
    return peers["members"][node]["plan"] if peers is not None else ""


def agent_of(cluster: MountedCluster, node: int) -> int:
    peers = cluster.peers(node)
    return peers["agent"] if peers is not None else 0


@pytest.mark.parametrize("lost", [0, 2], ids=["who plans for all", "another one"])
def test_a_node_that_stays_lost_owns_nothing_and_comes_back_with_what_it_holds(
    source: Path, tmp_path: Path, lost: int
) -> None:
    with MountedCluster(source, 3, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=0.8) as cluster:
        read_all(cluster.mounts, source)

        def holds(node: int) -> int:
            count: int = cluster.mounts[node].status()["peers"]["members"][node]["held"]
            return count

        wait_until(lambda: sum(map(holds, range(3))) >= FILES, 20)  # what was read last is kept a moment later
        assert (held := holds(lost)) > FILES / 6
        before = sum(cluster.fetched("pfs"))
        stopped = cluster.agents()[lost]
        os.kill(stopped, signal.SIGSTOP)
        there = [
            mount for node, mount in enumerate(cluster.mounts) if node != lost
        ]  # nobody asks anything of it, and still it is missed
        wait_until(lambda: all((mount.status()["peers"] or {}).get("away") == [lost] for mount in there), 60)
        member = there[0].status()["peers"]["members"][lost]
        assert member["state"] == "lost"
        assert member["lost_s"] > 1
        before -= asked_in_vain(there)
        drop_pages(there)
        read_all(there, source)
        once = sum(cluster.fetched("pfs")) - asked_in_vain(there)
        assert before + held / 2 < once <= before + held  # what the lost node held, and nothing else, is read once more
        drop_pages(there)
        read_all(there, source)
        assert sum(cluster.fetched("pfs")) - asked_in_vain(there) <= once
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: all((cluster.peers(node) or {}).get("away") == [] for node in range(3)), 60)
        wait_until(lambda: all((cluster.peers(node) or {}).get("view") for node in range(3)), 60)
        read_all(cluster.mounts, source)
        # Nothing is read again, but for what was asked while views differed.
        assert sum(cluster.fetched("pfs")) - asked_in_vain(cluster.mounts) <= once + 10


def test_mounts_join_anew_in_another_mpi_job_and_nothing_is_read_again(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=5.0) as cluster:
        read_all(cluster.mounts, source)
        assert sum(cluster.fetched("pfs")) == FILES
        assert cluster.leave() == 0
        wait_until(lambda: cluster.peers(0) is None and cluster.peers(1) is None, 10)
        third = tmp_path / "nodes" / "third"
        third.mkdir()
        with MlfsMount(source, "--ram", "64M", mountpoint=third) as other:
            cluster.mounts.insert(0, other)  # all have other numbers now
            cluster.join()
            read_all(cluster.mounts, source)
            assert sum(cluster.fetched("pfs")) == FILES
            members = other.status()["peers"]["members"]
            assert [member["state"] for member in members] == ["alive"] * 3
            wait_until(lambda: sum(m["held"] for m in other.status()["peers"]["members"]) >= FILES, 20)
            wait_until(lambda: sum(m["given"] for m in other.status()["peers"]["members"]) >= FILES, 20)
            shown = other.run("status", str(other.path)).stdout
            assert "nodes of the cluster: 3" in shown
            again = json.loads(other.run("status", str(other.path), "--json").stdout)
            assert len(again["peers"]["members"]) == 3
            cluster.leave()
            cluster.mounts.remove(other)


def test_a_job_comes_back_on_three_nodes_and_then_on_six_whose_shares_become_even(source: Path, tmp_path: Path) -> None:
    four = MountedCluster(source, 4, tmp_path / "nodes", "--ram", "64M", peer_timeout_s=5.0)
    with four as cluster, ExitStack() as more:

        def held(what: str = "held") -> list[int]:
            members = cluster.mounts[0].status()["peers"]["members"]
            return [member[what] for member in members]

        read_all(cluster.mounts, source)
        assert sum(cluster.fetched("pfs")) == FILES
        wait_until(lambda: sum(held()) >= FILES, 20)
        gone = held()[3]
        assert cluster.leave() == 0
        fourth = cluster.mounts.pop()
        before = sum(cluster.fetched("pfs"))
        cluster.join()
        drop_pages(cluster.mounts)
        read_all(cluster.mounts, source)
        again = sum(cluster.fetched("pfs")) - before - asked_in_vain(cluster.mounts)
        assert gone / 2 < again <= gone  # the copies of the node that is gone come from the source once
        wait_until(lambda: sum(held()) >= FILES, 20)
        lies = held("held_bytes")
        assert cluster.leave() == 0
        before = sum(cluster.fetched("pfs"))
        for node in (4, 5, 6):
            (place := tmp_path / "nodes" / f"node{node}").mkdir()
            cluster.mounts.append(more.enter_context(MlfsMount(source, "--ram", "64M", mountpoint=place)))
        cluster.join()
        drop_pages(cluster.mounts)
        read_all(cluster.mounts, source)
        assert sum(cluster.fetched("pfs")) - asked_in_vain(cluster.mounts) <= before
        # What lies beyond a sixth on a node is the least that moves to the three that have come.
        least = sum(size - sum(lies) / 6 for size in lies)
        wait_until(lambda: 0.9 * least <= sum(held("held_bytes")[3:]), 20)
        assert held("held_bytes")[:3] == lies
        assert sum(held("held_bytes")[3:]) <= 1.1 * least
        cluster.leave()
        del cluster.mounts[3:]
        cluster.mounts.append(fourth)


def test_an_agent_takes_the_place_of_one_that_is_still_there(source: Path, tmp_path: Path) -> None:
    """A second MPI job joins the mounts while an agent of the first hangs."""
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M") as cluster:
        read_all(cluster.mounts[:1], source)
        stopped = cluster.agents()[1]
        first = cluster.launcher
        assert first is not None
        os.kill(stopped, signal.SIGSTOP)
        try:
            before = [peers["agent"] for peers in map(cluster.peers, (0, 1)) if peers is not None]
            cluster.start()
            wait_until(lambda: cluster.joined() and all(agent_of(cluster, node) not in before for node in (0, 1)), 60)
            wait_until(lambda: all(plan_of(cluster, node) == "by hash" for node in (0, 1)), 60)
            read_all(cluster.mounts, source)
            assert sum(cluster.fetched("pfs")) == FILES
        finally:
            kill(stopped)
            first.kill()
            first.wait()


def test_who_comes_alone_says_so_in_one_line_and_serves(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    with MlfsMount(source, mountpoint=tmp_path / "mount") as mount:
        command = [sys.executable, "-m", "mlfs.cli.main", "peers", str(mount.path), "--", "true"]
        done = subprocess.run(command, env=mount.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0
        assert done.stderr == "mlfs: there are no other nodes in this MPI job: this one serves alone\n"
        read_all([mount], source)


def test_unmount_all_ends_mounts_and_agents_also_those_that_hang(source: Path, tmp_path: Path) -> None:
    with MountedCluster(source, 2, tmp_path / "nodes", "--ram", "64M", command=["sleep", "1000"]) as cluster:
        first, second = cluster.mounts
        agents = cluster.agents()
        os.kill(agents[0], signal.SIGSTOP)
        for path in sorted(source.rglob("*.jpg"))[:20]:
            assert (second.path / path.relative_to(source)).read_bytes() == path.read_bytes()
        for mount, agent in zip((first, second), agents, strict=True):
            began_s = time.monotonic()
            done = mount.run("unmount", "--all", "--yes")
            assert done.stdout == f"unmounted {mount.path}\n"
            assert time.monotonic() - began_s < 25
            assert not mount.is_mounted
            assert start_ticks(agent) is None
        assert first.run("unmount", "--all", "--yes").stdout == "there are no mounts of yours on this machine\n"
