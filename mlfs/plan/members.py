"""The nodes of a running cluster, and what each of them keeps: the same on every node, since all compute it from the
same.

Pure. In: the members as their agents exchanged them, who holds what already, who reads what in which epoch. Out: the
plan of one node, from `mlfs.plan.owners`. Called by mlfs.engine.planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.plan.owners import node_plan, place, shared_by_hash
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler.keeping import Plan
from mlfs.served.partition import NOBODY, fill, footprints


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The nodes that have joined.

    Attributes:
        nodes: their numbers, ascending. own: this one's. capacities_bytes: by node, of memory, disks, slower disks
            (`Keeping.capacities_bytes`), shape (N, J).
        away: nodes that are lost for good: they own nothing. Ranks are dealt as if they were there.
        holder: by sample, a node that holds it already, -1 for none; None where nobody holds anything.
        buffers_bytes: by node, half of its staging window; empty where nobody has said it.
    """

    nodes: tuple[int, ...]
    own: int
    capacities_bytes: tuple[tuple[int, ...], ...]
    away: tuple[int, ...] = ()
    holder: npt.NDArray[np.int16] | None = None
    buffers_bytes: tuple[int, ...] = ()

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

    def plan(
        self,
        sizes_bytes: npt.NDArray[Any],
        readers: Sequence[npt.NDArray[np.unsignedinteger[Any]]],
        kept_at: npt.NDArray[np.int16] | None = None,
    ) -> Plan:
        """What this node keeps, and who owns the rest.

        Args:
            sizes_bytes: shape (F,).
            readers: for each job (E, F): which of `nodes` (by its place in them) reads the sample in that epoch; the
                dtype's largest value stands for nobody. Without any job samples are shared by hash.
            kept_at: by sample, the node by which the orders that mlfs serves take it to be kept, -1 for none. It is,
                unless another one holds it already: then reading it there costs less than fetching it again.
        """
        room_taken = footprints(sizes_bytes)
        room = np.array(self.capacities_bytes, dtype=np.int64)
        room[[self.nodes.index(node) for node in self.away]] = 0
        owner, classes = self._of_holders(room_taken, room, kept_at)
        rest = np.flatnonzero(owner < 0)
        if not readers:
            sizes = np.where(owner < 0, sizes_bytes, 0)
            plan = shared_by_hash(sizes, self.nodes, [row.tolist() for row in room], self.own)
            plan = Plan(plan.classes[rest], None if plan.owner is None else plan.owner[rest])
        else:
            rows = readers[0] if len(readers) == 1 else np.concatenate(readers)
            plan = self._of_readers(room_taken[rest], rows[:, rest] if len(rest) < len(owner) else rows, room)
        assert plan.owner is not None
        owner[rest], classes[rest] = plan.owner, plan.classes
        owned = owner == self.own
        about = {"nodes": len(self.nodes) - len(self.away), "samples": int(owned.sum())}
        shared = "by who reads" if readers else "by hash"
        # What it owns itself is nobody's to ask: also not of a node that had this number in another job.
        return Plan(
            classes,
            np.where(owned, np.int16(-1), owner),
            about | {"bytes": int(room_taken[owned].sum()), "shared": shared},
        )

    def _of_holders(
        self, footprints: npt.NDArray[np.int64], room: npt.NDArray[np.int64], kept_at: npt.NDArray[np.int16] | None
    ) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int8]]:
        """Owner and class here of what somebody holds already or shall, -1 for the rest; what they take is taken off
        `room`. What a node holds comes before what it shall: it lies there, and takes its room."""
        owner = np.full(len(footprints), -1, dtype=np.int16)
        classes = np.full(len(footprints), NOWHERE, dtype=np.int8)
        if kept_at is not None and self.holder is not None:
            kept_at = np.where(self.holder < 0, kept_at, -1)
        keepers = [keeper for keeper in (self.holder, kept_at) if keeper is not None]
        for at, node in enumerate(self.nodes if keepers else ()):
            held = np.concatenate([np.flatnonzero((keeper == node) & (footprints > 0)) for keeper in keepers])
            level = fill(footprints[held], room[at].tolist())
            kept = level != NOBODY
            owner[held[kept]] = node
            if node == self.own:
                classes[held[kept]] = level[kept]
            room[at] -= np.bincount(level[kept], footprints[held[kept]], room.shape[1]).astype(np.int64)
        return owner, classes

    def _of_readers(
        self, footprints: npt.NDArray[np.int64], rows: npt.NDArray[np.unsignedinteger[Any]], room: npt.NDArray[np.int64]
    ) -> Plan:
        """Owners by who reads, as far as there is room."""
        own = self.nodes.index(self.own)
        capacities = room.astype(np.float64)
        placement = place(footprints.astype(np.float64), rows, len(self.nodes), capacities, copies_of=own)
        plan = node_plan(placement, own, range(capacities.shape[1]))
        assert plan.owner is not None
        return Plan(plan.classes, np.array([*self.nodes, -1], dtype=np.int16)[plan.owner])


def members_of(own: int, about: Mapping[int, Mapping[str, Any]]) -> Members:
    """The nodes that join, by what each has said of itself. Where one has fewer classes, the rest are empty."""
    nodes = tuple(sorted(about))
    capacities = [about[node]["capacities_bytes"] for node in nodes]
    classes = max(map(len, capacities))
    rows = tuple(tuple(row) + (0,) * (classes - len(row)) for row in capacities)
    return Members(nodes, own, rows, buffers_bytes=tuple(int(about[node].get("buffer_bytes", 0)) for node in nodes))
