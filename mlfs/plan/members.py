"""The nodes of a running cluster, and what each of them keeps: the same on every node, since all compute it from the
same.

Pure. In: the members as their agents exchanged them, who reads what in which epoch. Out: the plan of one node, from
`mlfs.plan.owners`. Called by mlfs.engine.planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.plan.owners import node_plan, place, shared_by_hash
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.states import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Members:
    """The nodes that have joined.

    Attributes:
        nodes: their numbers, ascending. own: this one's. capacities_bytes: by node, of memory, disks, slower disks
            (`Keeping.capacities_bytes`), shape (N, J).
    """

    nodes: tuple[int, ...]
    own: int
    capacities_bytes: tuple[tuple[int, ...], ...]

    def ranks(self, world_size: int, node: int) -> tuple[int, ...]:
        """The ranks of a job that run on a node: launchers give each node as many, one after the other.

        Where the ranks cannot be divided evenly, any may run anywhere.
        """
        if world_size % len(self.nodes):
            return tuple(range(world_size))
        each = world_size // len(self.nodes)
        first = self.nodes.index(node) * each
        return tuple(range(first, first + each))

    def divides(self, world_size: int) -> bool:
        """Whether it is known on which node each rank runs."""
        return world_size % len(self.nodes) == 0

    def plan(self, sizes_bytes: npt.NDArray[Any], readers: Sequence[npt.NDArray[np.unsignedinteger[Any]]]) -> Plan:
        """What this node keeps, and who owns the rest.

        Args:
            sizes_bytes: shape (F,).
            readers: for each job (E, F): which of `nodes` (by its place in them) reads the sample in that epoch; the
                dtype's largest value stands for nobody. Without any job samples are shared by hash.
        """
        if not readers:
            return shared_by_hash(sizes_bytes, self.nodes, self.capacities_bytes, self.own)
        footprints = sizes_bytes.astype(np.int64)
        footprints += -footprints % PAGE_BYTES
        capacities = np.array(self.capacities_bytes, dtype=np.float64)
        own = self.nodes.index(self.own)
        rows = readers[0] if len(readers) == 1 else np.concatenate(readers)
        placement = place(footprints.astype(np.float64), rows, len(self.nodes), capacities, copies_of=own)
        plan = node_plan(placement, own, range(capacities.shape[1]))
        assert plan.owner is not None
        numbers = np.array([*self.nodes, -1], dtype=np.int16)
        owned = plan.owner == own
        about = {"nodes": len(self.nodes), "samples": int(owned.sum()), "bytes": int(footprints[owned].sum())}
        return Plan(plan.classes, numbers[plan.owner], about)
