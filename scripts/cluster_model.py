"""What the simulator says of a cluster that a script makes on this machine: `mlfs simulate` of the same cluster.

In: the cluster's figures. Out: each epoch by the policy mlfs, by the cost model or by the daemon's own scheduler under
simulated time. Called by scripts/demo_cluster.py and scripts/benchmark/served.py.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_nodes import COMMAND_TIMEOUT_S
from demo import BIN


@dataclass(frozen=True)
class Modelled:
    """A cluster and its job.

    Attributes:
        source: the directory of samples. link_MBps: of each node's link, and of the source for all of them.
        compute_MBps: what a node's training takes in. ram, staging: sizes, as `mlfs mount` takes them.
        loader_MBps: what a node's loader works through, whatever it reads from.
        batch: samples that a node reads in a step. serve: as `mlfs register --serve`; empty: the true order.
    """

    source: Path
    nodes: int
    link_MBps: float
    compute_MBps: float
    ram: str
    staging: str
    epochs: int
    batch: int
    seed: int
    serve: str = ""
    loader_MBps: float = 1_000_000.0

    def epochs_of_model(self, work: Path) -> list[dict[str, float]]:
        """Each epoch: "seconds", "pfs_bytes" and more. Args: work: a directory for the scenario."""
        epochs: list[dict[str, float]] = self._simulated(work)["policies"]["mlfs"]["epochs"]
        return epochs

    def scheduled_s(self, work: Path) -> list[float]:
        """The seconds of each epoch as the daemon's scheduler makes them, which stages across the ends of epochs."""
        seconds: list[float] = self._simulated(work, "--detailed")["detailed"]["epochs_s"]
        return seconds

    def _simulated(self, work: Path, *flags: str) -> dict[str, Any]:
        scenario = work / "scenario.toml"
        scenario.write_text(self._scenario())
        words = [BIN / "mlfs", "simulate", scenario, "--policy", "mlfs", "--json", *flags]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _scenario(self) -> str:
        serve = f'serve = "{self.serve}"' if self.serve else ""
        return f"""\
title = "a cluster on one machine"
seed = {self.seed}
[cluster]
nodes = {self.nodes}
compute_MBps = {self.compute_MBps:.1f}
preprocess_MBps = {self.loader_MBps:.1f}
network_MBps = {self.link_MBps:.1f}
pfs_MBps = {{ 1 = {self.link_MBps:.1f}, {self.nodes} = {self.link_MBps:.1f} }}
[cluster.staging]
name = "staging"
capacity = "{self.staging}"
read_MBps = 100000
threads = 16
[[cluster.classes]]
name = "ram"
capacity = "{self.ram}"
read_MBps = 3000
threads = 4
[data]
source = "{self.source}"
[job]
epochs = {self.epochs}
batch = {self.batch}
[job.order]
sampler = "torch-distributed"
seed = {self.seed}
{serve}
"""
