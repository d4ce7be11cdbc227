"""A link that is cut while nodes read over it: both sides go on with the source, and find each other again.

The agents are real MPI ranks that speak TCP, each in a network namespace of its own (scripts/cluster_net.py).
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from support.cluster import MountedCluster
from support.fuse import wait_until
from support.trees import make_tree

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
cluster_net = importlib.import_module("cluster_net")

FILES, NODES = 240, 3
READER = """
import pathlib, random, sys, time
mount, source, seed, end = sys.argv[1:]
mount, source, draw = pathlib.Path(mount), pathlib.Path(source), random.Random(int(seed))
paths = sorted(path.relative_to(source) for path in source.rglob("*.jpg"))
longest_s = 0
while not pathlib.Path(end).exists():
    for path in draw.sample(paths, 60):
        began_s = time.monotonic()
        assert (mount / path).read_bytes() == (source / path).read_bytes(), path
        longest_s = max(longest_s, time.monotonic() - began_s)
print(longest_s)
"""


def test_a_cut_link_costs_readers_time_and_heals(tmp_path: Path) -> None:
    draw = np.random.default_rng(17)
    files = {f"c{number % 5}/f{number:03}.jpg": draw.bytes(int(draw.integers(1, 60_000))) for number in range(FILES)}
    source, cut = make_tree(tmp_path / "source", files), int(draw.integers(NODES))
    with (
        cluster_net.Network(NODES, "", tmp_path) as network,
        MountedCluster(source, NODES, tmp_path / "nodes", "--ram", "64M", network=network) as cluster,
    ):
        end = tmp_path / "end"
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(mount.path), str(source), str(node), str(end)],
                stdout=subprocess.PIPE, text=True,
            )
            for node, mount in enumerate(cluster.mounts)
        ]  # fmt: skip
        time.sleep(float(draw.uniform(0.5, 1.5)))
        network.cut(cut, True)
        others = {*range(NODES)} - {cut}
        wait_until(lambda: set((cluster.peers(cut) or {}).get("lost", ())) == others, 20)
        wait_until(lambda: all((cluster.peers(node) or {}).get("lost") == [cut] for node in others), 20)
        network.cut(cut, False)
        wait_until(lambda: all((cluster.peers(node) or {"lost": [-1]})["lost"] == [] for node in range(NODES)), 60)
        end.touch()
        for reader in readers:
            longest_s = float(reader.communicate(timeout=120)[0])
            assert reader.returncode == 0
            assert longest_s < 10  # --peer-timeout is 1 s: whoever waited for the link went to the source
        got = [cluster.mounts[node].status()["peers"]["members"][node]["got"] for node in range(NODES)]
        for node, mount in enumerate(cluster.mounts):
            for path in sorted(source.rglob("*.jpg")):
                assert (mount.path / path.relative_to(source)).read_bytes() == path.read_bytes(), (node, path)
        assert min(got) > 0
