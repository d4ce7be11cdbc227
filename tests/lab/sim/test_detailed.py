"""The detailed simulator beside the fast estimate: PFS bytes to the byte, times within a few percent, on all kinds of
clusters; and the command that shows both."""

from __future__ import annotations

import json

import pytest

from mlfs.cli.main import main
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.detailed.run import Detailed, DetailedResult
from mlfs.lab.sim.run import PolicyResult, Simulation
from mlfs.lab.sim.scenario import Scenario, load, parse, shipped_names

# The shipped scenarios at small scale: times fewer samples, epochs. Where the staging window would hold a whole epoch
# of so few samples it is made smaller in proportion too (docs/simulator.md says what a window that large changes).
SMALL = {
    "environment-grid": (120, 4),
    "lobster-node": (256, 2),
    "nopfs-cosmoflow": (128, 2),
    "nopfs-cosmoflow512": (10, 2),
    "nopfs-imagenet1k": (256, 2),
    "nopfs-imagenet22k": (4096, 2),
    "nopfs-mnist": (40, 2),
    "nopfs-openimages": (512, 2),
    "small-cluster": (56, 2),
    "thesis-s1": (4, 5),
    "thesis-s2": (80, 4),
    "thesis-s3": (120, 2),
    "thesis-s4": (240, 2),
    "thousand-nodes": (256, 2),
}
WINDOW_TOO = {"small-cluster"}
FEWER_NODES = {"thousand-nodes": 16}  # each of a thousand holds a record of every sample: too much for one process


def both(scenario: Scenario) -> tuple[PolicyResult, DetailedResult]:
    """The fast estimate and the schedulers' own run."""
    simulation = Simulation(scenario)
    return simulation.run(POLICIES["mlfs"], Sharing.CONSERVING), Detailed(simulation).run()


def small(name: str) -> Scenario:
    """A shipped scenario, fit for a test."""
    factor, epochs = SMALL[name]
    scenario = load(name).shrunk(factor)
    cluster = scenario.cluster
    if name in FEWER_NODES:
        cluster = cluster.model_copy(update={"nodes": FEWER_NODES[name]})
    if name in WINDOW_TOO:
        staging = cluster.staging.model_copy(update={"capacity": cluster.staging.capacity / factor})
        cluster = cluster.model_copy(update={"staging": staging})
    return scenario.model_copy(update={"cluster": cluster, "job": scenario.job.model_copy(update={"epochs": epochs})})


def test_every_shipped_scenario_is_here() -> None:
    assert sorted(SMALL) == shipped_names()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_estimate_and_the_schedulers_agree_on_shipped_scenarios(name: str) -> None:
    estimate, detailed = both(small(name))
    assert estimate.pfs_bytes == detailed.pfs_bytes + detailed.carried_bytes
    assert detailed.seconds == pytest.approx(estimate.seconds, rel=0.03)
    # Which of the nodes has a sample may differ, not how much the nodes together answer.
    assert detailed.local + detailed.peer == pytest.approx(estimate.local + estimate.peer, abs=0.005)


CLUSTER = """
title = "drawn by hand"
seed = {seed}
[cluster]
nodes = {nodes}
gpus = {gpus}
compute_MBps = {compute}
preprocess_MBps = {preprocess}
network_MBps = {network}
pfs_MBps = {pfs}
[cluster.staging]
name = "staging"
capacity = "{window}"
read_MBps = 50000
threads = 8
{classes}
[data]
samples = {samples}
mean = "{mean}"
deviation = "{deviation}"
[job]
epochs = {epochs}
batch = {batch}
drop_last = {drop_last}
{order}
"""

CLASS = """
[[cluster.classes]]
name = "{name}"
capacity = {capacity}
read_MBps = {read}
threads = 4
"""

TWICE = 1000
FINE = {"samples": 750, "mean": "800kB", "deviation": "240kB"}  # where the ends of epochs of fewer samples tell
USUAL = {
    "seed": 1, "nodes": 3, "gpus": 1, "compute": 400, "preprocess": 4000, "network": 5000,
    "pfs": "{ 1 = 300, 2 = 500, 4 = 800, 8 = 1200 }", "window": "48MB", "samples": 500, "mean": "1200kB",
    "deviation": "360kB", "epochs": 3, "batch": 16, "drop_last": "false", "order": "", "ram": 0, "disk": 0,
    "disk_read": 2000, "slow_disk": 0, "ram_read": 20000,
}  # fmt: skip

# 0.6 GB of data, or twice as much where the ends of so short an epoch would be most of it; capacities in MB of each
# node, or by node.
CLUSTERS = {
    "fits in one node's memory": {"ram": 800},
    "fits in one node, memory and disk": {"ram": 200, "disk": 800},
    "fits in all nodes together": {"ram": 120, "disk": 120},
    "fits in all nodes' memory": {"ram": 220},
    "fits in none": {"ram": 40, "disk": 60},
    "nothing is kept": {},
    "one node alone, fits": {"nodes": 1, "ram": 800},
    "one node alone, half of it": {"nodes": 1, "ram": 100, "disk": 200},
    "one node alone, nothing kept": {"nodes": 1},
    "slow network": {"ram": 220, "network": 150},
    "very slow network": {"ram": 220, "network": 60},
    "slow disk": {"ram": 60, "disk": 400, "disk_read": 120} | FINE,
    "very slow disk": {"ram": 20, "disk": 600, "disk_read": 60},
    "a fast and a slow disk": {"ram": 40, "disk": 100, "slow_disk": 120},
    "computing is the limit": {"ram": 120, "disk": 120, "compute": 60},
    "the PFS is the limit": {"ram": 40, "pfs": "{ 1 = 60, 4 = 100 }"},
    "the PFS gives no more to many": {"nodes": 8, "ram": 40, "pfs": "{ 1 = 400, 2 = 410 }"},
    "preprocessing is the limit": {"samples": TWICE, "ram": 440, "preprocess": 250},
    "eight nodes": {"nodes": 8, "ram": 40, "disk": 60, "batch": 8} | FINE,
    "eight nodes, fits in none": {"nodes": 8, "ram": 20},
    "several GPUs": {"gpus": 4, "ram": 120, "disk": 120},
    "all samples alike": {"ram": 120, "disk": 120, "deviation": "0kB"},
    "sizes from nothing to large": {"ram": 120, "disk": 120, "deviation": "1440kB"},
    "few large samples": {"ram": 120, "disk": 120, "samples": 150, "mean": "4MB", "batch": 4},
    "the last batch is dropped": {"ram": 120, "disk": 60, "drop_last": "true", "samples": 517},
    "a small window": {"ram": 120, "disk": 120, "window": "24MB"},
    "a window larger than the data": {"samples": TWICE, "ram": 240, "disk": 80, "window": "4GB"},
    "samples drawn with replacement": {
        "nodes": 2, "ram": 200, "order": '[job.order]\nsampler = "torch-random"\nreplacement = true\nseed = 3',
    },
    "torch's own order": {"ram": 120, "order": '[job.order]\nsampler = "torch-distributed"\nseed = 3'},
    "a node without a disk, fits in all": {"ram": 120, "disk": [200, 0, 200]},
    "a node without a disk, fits in none": {"ram": 40, "disk": [100, 0, 100]},
    "half the memory, fits in all": {"ram": [260, 130, 260]},
    "half the memory, fits in none": {"ram": [120, 60, 120]},
    "one big node and small ones, fits in all": {"nodes": 4, "ram": [450, 80, 80, 80], "batch": 12},
    "one big node and small ones, fits in none": {"nodes": 4, "ram": [200, 30, 30, 30], "batch": 12},
    "fits in the big node alone": {
        "ram": [1600, 80, 80], "samples": 2000, "mean": "600kB", "deviation": "180kB", "batch": 32,
    },
    "two nodes keep nothing": {"ram": [0, 0, 800]},
    "one has memory, another a disk": {"samples": TWICE, "ram": [600, 0, 0], "disk": [0, 400, 0]},
    "uneven and slow disks": {"ram": [60, 30, 60], "disk": [400, 200, 0], "disk_read": 120},
    "eight nodes, no two of them equal": {
        "samples": TWICE, "nodes": 8, "ram": [20, 40, 60, 80, 100, 120, 140, 160],
        "disk": [160, 0, 120, 0, 80, 0, 40, 0], "batch": 8,
    },
}  # fmt: skip


def cluster(**differs: object) -> Scenario:
    """A small cluster."""
    fields: dict[str, object] = USUAL | differs
    classes = ""
    for name, capacity, read in (
        ("ram", fields["ram"], fields["ram_read"]),
        ("disk", fields["disk"], fields["disk_read"]),
        ("slow", fields["slow_disk"], 150),
    ):
        if capacity:
            sizes = [f'"{size}MB"' for size in (capacity if isinstance(capacity, list) else [capacity])]
            written = f"[{', '.join(sizes)}]" if isinstance(capacity, list) else sizes[0]
            classes += CLASS.format(name=name, capacity=written, read=read)
    return parse(CLUSTER.format(classes=classes, **fields), "drawn by hand")


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_estimate_and_the_schedulers_agree_on_small_clusters(name: str) -> None:
    estimate, detailed = both(cluster(**CLUSTERS[name]))
    assert estimate.pfs_bytes == detailed.pfs_bytes + detailed.carried_bytes
    assert detailed.seconds == pytest.approx(estimate.seconds, rel=0.05)


def test_the_same_seed_gives_the_same_figures() -> None:
    (_, one), (_, same), (_, other) = (both(cluster(ram=240, samples=600, seed=seed)) for seed in (1, 1, 2))
    assert one.plain() == same.plain()
    assert one.plain() != other.plain()


def test_what_is_still_staged_is_carried_over_the_epochs_border() -> None:
    """A window that holds a part of the data, nothing kept: what an epoch ends with, the next may begin with."""
    estimate, detailed = both(cluster(window="400MB", nodes=1))
    assert detailed.carried_bytes > 0
    assert detailed.pfs_bytes < estimate.pfs_bytes == detailed.pfs_bytes + detailed.carried_bytes


def test_the_command_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "thesis-s4", "--shrink", "2000", "--detailed"]) == 0
    shown = capsys.readouterr().out
    assert "estimate" in shown
    assert "in detail" in shown
    assert "+0 bytes" in shown
    assert "on average" in " ".join(shown.split())
    assert main(["simulate", "thesis-s4", "--shrink", "2000", "--detailed", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["estimate"]["pfs_bytes"] == told["detailed"]["pfs_bytes"] + told["detailed"]["carried_bytes"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policy", "nopfs"], "policy mlfs only"),
        (["--sharing", "paper"], "conserving only"),
        (["--plot", "x.png"], "no picture"),
    ],
)
def test_what_is_not_modelled_is_refused(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "thesis-s4", "--shrink", "2000", "--detailed", *flags]) == 2
    assert says in capsys.readouterr().err


def test_what_is_too_large_for_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "thousand-nodes", "--detailed"]) == 2
    assert "--shrink" in capsys.readouterr().err
