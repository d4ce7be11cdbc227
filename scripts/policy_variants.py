"""Compares variants of the policy `mlfs` in the simulator: the table of docs/decisions/default-policy.md.

In: nothing, or names of scenarios. Out: a table in Markdown on stdout. Run by hand: scripts/policy_variants.py
[SCENARIO ...] Each variant changes one thing of the policy and leaves the rest.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from mlfs.lab.policies import clairvoyant
from mlfs.lab.policies.clairvoyant import Clairvoyant
from mlfs.lab.policies.policy import Policy, Queues, Unfit, View, capacities
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import Scenario, load
from mlfs.plan.node_reads import PFS
from mlfs.plan.owners import Copies, Placement
from mlfs.plan.placement import in_classes

SHRINK = {"thesis-s2": 4, "thesis-s3": 8, "thesis-s4": 8, "small-cluster": 16, "lobster-node": 16}
NO_COPIES = Copies(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8))


class Packed(Clairvoyant):
    """Owners as a variant says, packed into classes in order of id, no copies."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        owner = self.owners(view)
        storage = np.full(len(owner), PFS, dtype=np.int8)
        for node in range(view.model.nodes):
            mine = np.flatnonzero(owner == node)
            storage[mine] = in_classes(view.sizes_bytes[mine], capacities(view))
        owner[storage == PFS] = PFS
        self.placement = Placement(owner, storage, [NO_COPIES] * view.model.nodes)
        self.kept.node[:-1], self.kept.storage[:-1] = owner, storage

    def owners(self, view: View) -> np.ndarray:
        """The owner of each sample, whether it fits there or not."""
        raise NotImplementedError


class FirstReader(Packed):
    """Whoever reads a sample first keeps it, while there is room."""

    def owners(self, view: View) -> np.ndarray:
        """The reader in epoch 0."""
        first = view.readers[0].astype(np.int16)
        return np.where(first < view.model.nodes, first, 0).astype(np.int16)


class Dealt(Packed):
    """Owners are dealt round-robin and do not depend on who reads what."""

    def owners(self, view: View) -> np.ndarray:
        """Nodes 0, 1, 2, ... in turn."""
        return (np.arange(len(view.sizes_bytes)) % view.model.nodes).astype(np.int16)


class MostReads(Packed):
    """Whoever reads a sample most keeps it, while there is room. The owners' loads are not evened out."""

    def owners(self, view: View) -> np.ndarray:
        """The most frequent reader after epoch 0; ties go to the lowest node."""
        counts = np.stack([(view.readers[1:] == node).sum(axis=0) for node in range(view.model.nodes)])
        return counts.argmax(axis=0).astype(np.int16)


class NoCopies(Clairvoyant):
    """The default placement, owners only."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.placement = self.placement._replace(copies=[NO_COPIES] * view.model.nodes)


def variants() -> list[Policy]:
    """The default policy, and the variants that it is compared with."""
    default = clairvoyant.POLICY
    shared = replace(default.traits, own_lanes=False)
    nopfs = POLICIES["nopfs"]
    return [
        default,
        replace(default, name="no copies", begin=NoCopies),
        replace(default, name="owner reads most, not evened out", begin=MostReads),
        replace(default, name="owner is the first reader", begin=FirstReader),
        replace(default, name="owners dealt", begin=Dealt),
        replace(default, name="one lane for all routes", traits=shared),
        replace(default, name="one lane, as many threads for each GPU", traits=replace(shared, queues=Queues.EVEN)),
        replace(default, name="one lane, threads by Algorithm 1", traits=replace(shared, queues=Queues.ASSIGNED)),
        replace(nopfs, name="nopfs with lanes of its own", traits=replace(nopfs.traits, own_lanes=True)),
        nopfs,
        POLICIES["lobster"],
    ]


def slow_network(scenario: Scenario) -> Scenario:
    """The same scenario with a network that is little faster than what a node computes."""
    cluster = scenario.cluster
    slower = cluster.model_copy(update={"network_MBps": 0.6 * cluster.compute_MBps})
    return scenario.model_copy(update={"cluster": slower})


def rows(name: str) -> None:
    """Print a scenario's rows: as it is, and with a slow network."""
    scenario = load(name).shrunk(SHRINK.get(name, 1))
    simulation, slowed = Simulation(scenario), Simulation(slow_network(scenario))
    for policy in variants():
        try:
            result = simulation.run(policy, Sharing.CONSERVING)
            slow = slowed.run(policy, Sharing.CONSERVING)
        except Unfit:
            continue
        local = sum(share for route, share in result.hit_ratio.items() if route.startswith("local"))
        over = result.pfs_bytes / result.bound_bytes - 1
        over_compute = [one.seconds / one.compute_s for one in (result, slow)]
        figures = f"{over_compute[0]:.3f} | {over_compute[1]:.3f} | {local:.1%} | {over:+.1%} | {result.imbalance:.2f}"
        print(f"| {name} | {policy.name} | {figures} |")


def main() -> None:
    """Print the table."""
    print("| scenario | variant | time / compute | the same, slow network | local | PFS over bound | imbalance |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in sys.argv[1:] or SHRINK:
        rows(name)


if __name__ == "__main__":
    main()
