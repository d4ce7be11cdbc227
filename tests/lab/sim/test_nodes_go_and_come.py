"""A job that comes back on three of its four nodes and then on six: what lies where, what moves, what the PFS gives."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.lab.sim.detailed.run import Detailed, DetailedResult
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import parse

SAMPLES, SAMPLE_BYTES, EPOCHS = 600, 1_003_520, 3  # of whole pages
CLUSTER = """
seed = {nodes}
[cluster]
nodes = {nodes}
compute_MBps = 100
preprocess_MBps = 2000
network_MBps = 1200
pfs_MBps = {{ 1 = 300, 8 = 800 }}
[cluster.staging]
name = "staging"
capacity = "16MB"
read_MBps = 40000
threads = 4
[[cluster.classes]]
name = "ram"
capacity = {capacity}
read_MBps = 40000
threads = 4
[data]
samples = {samples}
mean = "{size}B"
deviation = "0B"
[job]
epochs = {epochs}
batch = 10
"""


def run(nodes: int, room: int, holder: np.ndarray) -> tuple[Detailed, DetailedResult, np.ndarray]:
    """A run that begins with these copies. Returns also who holds which copy behind it, shape (N, F)."""
    text = CLUSTER.format(nodes=nodes, capacity=room * SAMPLE_BYTES, samples=SAMPLES, size=SAMPLE_BYTES, epochs=EPOCHS)
    detailed = Detailed(Simulation(parse(text, "nodes")), holder=holder.astype(np.int16))
    result = detailed.run()
    held = np.array([np.frombuffer(node.scheduler.table.held_by, np.uint8) > 0 for node in detailed.cluster.nodes])
    return detailed, result, held[:, :SAMPLES]


@pytest.mark.parametrize("room", [SAMPLES, SAMPLES // 5], ids=["all fits", "a fifth fits each"])
def test_what_lies_on_a_node_stays_and_shares_become_even_with_the_least_that_can_move(room: int) -> None:
    _, result, held = run(4, room, np.full(SAMPLES, -1))
    whole = SAMPLES * SAMPLE_BYTES
    assert result.pfs_epochs_bytes[0] == whole
    for nodes, come_back in ((3, [0, 1, 2]), (6, [0, 1, 2, -1, -1, -1])):
        before = np.array([held[node] if node >= 0 else np.zeros(SAMPLES, bool) for node in come_back])
        holder = np.where(before.any(axis=0), before.argmax(axis=0), -1)
        detailed, result, held = run(nodes, room, holder)
        assert (held >= before).all()  # each copy stays where it is
        lost = int((holder < 0).sum()) * SAMPLE_BYTES
        bound = max(0, whole - nodes * room * SAMPLE_BYTES)
        assert result.pfs_epochs_bytes[0] <= max(lost, bound)
        assert all(pfs <= bound for pfs in result.pfs_epochs_bytes[1:])
        # Even shares: each node has its part of all that has room. The least that moves is what lies beyond that.
        part = min(SAMPLES // nodes, room)
        least = int(np.maximum(before.sum(axis=1) - part, 0).sum()) * SAMPLE_BYTES
        assert 0.9 * least <= detailed.taken_bytes <= 1.1 * least
        assert (held.sum(axis=1) >= 0.95 * part).all()
        assert result.load[-1] <= 1.2
