"""The schedulers of 256 nodes, each deciding for itself: what comes from the PFS, and who gives how much to others.

A run of many samples a node by hand, with its figures: docs/simulator.md, "A thousand nodes".
"""

from __future__ import annotations

import pytest

from mlfs.lab.sim.detailed.run import Detailed
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import parse
from mlfs.plan.placement import pfs_bound_bytes

SAMPLE_BYTES = 1_000_000
EPOCHS = 12  # that the nodes plan for; two of them are run

CLUSTER = """
[cluster]
nodes = {nodes}
compute_MBps = 800
preprocess_MBps = 2000
network_MBps = 1200
pfs_MBps = {{ 1 = 1500, 16 = 20000, 128 = 120000, 1024 = 250000 }}
[cluster.staging]
name = "staging"
capacity = "4MB"
read_MBps = 40000
threads = 4
[[cluster.classes]]
name = "ram"
capacity = "{capacity}MB"
read_MBps = 40000
threads = 4
[data]
samples = {samples}
mean = "1MB"
[job]
epochs = {epochs}
batch = 4
"""


@pytest.mark.parametrize(("nodes", "a_node", "capacity"), [(256, 4, 3), (64, 24, 30)])
def test_the_pfs_gives_what_the_bound_says_and_no_owner_gives_much_more_than_the_others(
    nodes: int, a_node: int, capacity: int
) -> None:
    text = CLUSTER.format(nodes=nodes, capacity=capacity, samples=a_node * nodes, epochs=EPOCHS)
    detailed = Detailed(Simulation(parse(text, "a thousand nodes")), epochs=2).run()
    total = a_node * nodes * SAMPLE_BYTES
    assert detailed.reads == 2 * a_node * nodes
    first, second = detailed.pfs_epochs_bytes[:2]
    assert first == total  # no sample is read by two nodes
    assert second == pfs_bound_bytes(total, capacity * SAMPLE_BYTES, nodes)
    assert all(1 <= load <= 1.2 for load in detailed.load)
