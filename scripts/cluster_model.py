"""What the cost model says of a cluster that a script makes on this machine: `mlfs simulate` of the same cluster.

In: the cluster's figures. Out: each epoch by the policy mlfs. Called by scripts/demo_cluster.py and
scripts/bench_served.py.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster_nodes import COMMAND_TIMEOUT_S
from demo import BIN


@dataclass(frozen=True)
class Modelled:
    """A cluster and its job.

    Attributes:
        source: the directory of samples. link_MBps: of each node's link, and of the source for all of them.
        compute_MBps: what a node's training takes in. ram, staging: sizes, as `mlfs mount` takes them.
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

    def epochs_of_model(self, work: Path) -> list[dict[str, float]]:
        """Each epoch: "seconds", "pfs_bytes" and more. Args: work: a directory for the scenario."""
        scenario = work / "scenario.toml"
        scenario.write_text(self._scenario())
        words = [BIN / "mlfs", "simulate", scenario, "--policy", "mlfs", "--json"]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        epochs: list[dict[str, float]] = json.loads(done.stdout)["policies"]["mlfs"]["epochs"]
        return epochs

    def _scenario(self) -> str:
        serve = f'serve = "{self.serve}"' if self.serve else ""
        return f"""\
title = "a cluster on one machine"
seed = {self.seed}
[cluster]
nodes = {self.nodes}
compute_MBps = {self.compute_MBps:.1f}
preprocess_MBps = 1000000
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
