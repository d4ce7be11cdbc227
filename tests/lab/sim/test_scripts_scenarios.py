"""The scenario that scripts/demo-cluster is compared with: what it predicts, and that the schedulers do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.detailed.run import Detailed
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import load

SCENARIOS = Path(__file__).parents[3] / "scripts" / "scenarios"


def test_four_nodes_read_a_slow_source_once_and_are_three_times_as_fast_afterwards() -> None:
    simulation = Simulation(load(str(SCENARIOS / "four-nodes-1gbit.toml")))
    model, total = simulation.model, float(simulation.sizes.sum())
    assert model.node_capacity_bytes < total < model.capacity_bytes
    estimate = simulation.run(POLICIES["mlfs"], Sharing.CONSERVING)
    direct_s = total / float(model.pfs.at(model.nodes))
    first, *later = estimate.epochs
    assert first.pfs_bytes == total
    assert first.seconds <= 1.02 * direct_s
    assert all(epoch.pfs_bytes == 0 and 3 * epoch.seconds <= direct_s for epoch in later)
    detailed = Detailed(simulation).run()
    assert detailed.pfs_bytes == total
    assert detailed.seconds == pytest.approx(estimate.seconds, rel=0.03)
