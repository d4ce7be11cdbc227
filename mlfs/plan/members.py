"""The nodes of a running cluster, which of them owns each sample, and what one of them keeps by that.

Pure. In: the members as their agents exchanged them, who holds what already, who reads what in which epoch. Out: the
`Shares` of all nodes, which the node that plans for the cluster makes and sends to the others (`mlfs.plan.owners` has
the rules); and what a node keeps by them. Called by `mlfs.plan.cluster_plan` and `mlfs.engine.shared_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.owners import parts_bytes, place
from mlfs.plan.placement import NOWHERE, keep_most_read
from mlfs.plan.scheduler.keeping import Plan
from mlfs.served.partition import NOBODY, fill, footprints, partition_by_hash

# Where samples lie with those who happened to read them, a part of n samples lacks some 1 / sqrt(n) by chance. A node
# takes over from others where it lacks more than so many times that; one that has just come lacks all.
BY_CHANCE = 1.5

Sizes = npt.NDArray[Any]
Holders = npt.NDArray[np.int16]


class Shares(NamedTuple):
    """The owner of each sample, and the class in which it keeps it: -1 for what nobody owns, shape (F,).

    Attributes:
        settled: the samples that somebody held already, or on whose keeping an order rests. They are not copied: where
            they lie was there before the plan, and served orders deal reads to where samples lie.
    """

    owner: npt.NDArray[np.int16]
    level: npt.NDArray[np.int8]
    settled: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class OwnShare:
    """One node's part of the shares.

    Attributes:
        plan: it keeps what it owns. left_bytes: the room that leaves, by class; nothing unless all samples have owners.
        settled: see Shares.
    """

    plan: Plan
    left_bytes: tuple[int, ...]
    settled: npt.NDArray[np.bool_]

    @property
    def spare(self) -> bool:
        """Whether there is room for copies of what others own."""
        return any(self.left_bytes)

    def with_copies(self, sizes_bytes: Sizes, reads: npt.NDArray[np.integer[Any]]) -> Plan:
        """The plan, and copies of what the node reads most of the others' samples.

        Args:
            reads: how often it reads each sample, shape (F,).
        """
        others = np.flatnonzero((self.plan.classes == NOWHERE) & (reads > 1) & ~self.settled)
        classes = self.plan.classes.copy()
        classes[others] = keep_most_read(footprints(sizes_bytes[others]), reads[others], self.left_bytes)
        return replace(self.plan, classes=classes)


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The nodes that have joined.

    Attributes:
        nodes: their numbers, ascending. own: this one's. capacities_bytes: by node, of memory, disks, slower disks
            (`Keeping.capacities_bytes`), shape (N, J).
        away: nodes that are lost for good: they own nothing. Ranks are dealt as if they were there.
        buffers_bytes: by node, half of its staging window; empty where nobody has said it.
    """

    nodes: tuple[int, ...]
    own: int
    capacities_bytes: tuple[tuple[int, ...], ...]
    away: tuple[int, ...] = ()
    buffers_bytes: tuple[int, ...] = ()

    def ranks(self, world_size: int, node: int) -> tuple[int, ...]:
        """The ranks of a job that run on a node: launchers give each node as many, one after the other.

        Any rank may run anywhere where they cannot be divided evenly.
        """
        if world_size % len(self.nodes):
            return tuple(range(world_size))
        each = world_size // len(self.nodes)
        first = self.nodes.index(node) * each
        return tuple(range(first, first + each))

    def divides(self, world_size: int) -> bool:
        """Whether ranks divide evenly among nodes, so that it is known where each runs."""
        return world_size % len(self.nodes) == 0

    def share(
        self,
        sizes_bytes: Sizes,
        readers: Sequence[npt.NDArray[np.unsignedinteger[Any]]],
        kept_at: Holders | None = None,
        holder: Holders | None = None,
    ) -> Shares:
        """The owner and the class of each sample.

        Args:
            sizes_bytes: shape (F,).
            readers: for each job (E, F): which of `nodes` (by its place in them) reads the sample in that epoch; the
                dtype's largest value stands for nobody. Without any job samples are shared by hash.
            kept_at: by sample, the node by which the orders that mlfs serves take it to be kept, -1 for none. It is,
                unless another one holds it already: then reading it there costs less than fetching it again.
            holder: by sample, a node that holds it already, -1 for none; None where nobody holds anything.
        """
        room_taken = footprints(sizes_bytes)
        room = np.array(self.capacities_bytes, dtype=np.int64)
        room[[self.nodes.index(node) for node in self.away]] = 0
        owner, level, settled = self._of_holders(room_taken, room, kept_at, holder)
        rest = np.flatnonzero(~settled)
        if not readers:
            by_hash = partition_by_hash(np.where(owner < 0, sizes_bytes, 0), self.nodes, [row.tolist() for row in room])
            level[rest] = by_hash.level[rest]
            owner[rest] = np.where(level[rest] < 0, NOBODY, by_hash.node[rest])  # the empty ones are nobody's
            return Shares(owner, level, settled)
        rows = readers[0] if len(readers) == 1 else np.concatenate(readers)
        rows = rows[:, rest] if len(rest) < len(owner) else rows
        taken, rooms = room_taken[rest].astype(np.float64), room.astype(np.float64)
        placement = place(taken, rows, len(self.nodes), rooms, copies=False)
        owner[rest] = np.array([*self.nodes, NOBODY], dtype=np.int16)[placement.owner]
        level[rest] = placement.storage
        return Shares(owner, level, settled)

    def _of_holders(
        self, footprints: npt.NDArray[np.int64], room: npt.NDArray[np.int64], kept_at: Holders | None,
        holder: Holders | None,
    ) -> Shares:  # fmt: skip
        """Owner and class of what somebody holds already or shall, -1 for the rest; what they take is taken off `room`.
        Samples that a node holds come before those that it shall hold: they lie there, and take its room."""
        owner = np.full(len(footprints), NOBODY, dtype=np.int16)
        level = np.full(len(footprints), NOBODY, dtype=np.int8)
        if kept_at is not None and holder is not None:
            kept_at = np.where(holder < 0, kept_at, -1)
        keepers = [keeper for keeper in (holder, kept_at) if keeper is not None]
        for at, node in enumerate(self.nodes if keepers else ()):
            held = np.concatenate([np.flatnonzero((keeper == node) & (footprints > 0)) for keeper in keepers])
            levels = fill(footprints[held], room[at].tolist())
            kept = levels != NOBODY
            owner[held[kept]], level[held[kept]] = node, levels[kept]
            room[at] -= np.bincount(levels[kept], footprints[held[kept]], room.shape[1]).astype(np.int64)
        return Shares(owner, level, owner >= 0)

    def own_share(self, shares: Shares, sizes_bytes: Sizes, shared: str) -> OwnShare:
        """This node's part of the shares. Args: shared: by what they were made, for `status`."""
        room_taken, owned = footprints(sizes_bytes), shares.owner == self.own
        about = {
            "nodes": len(self.nodes) - len(self.away), "samples": int(owned.sum()),
            "bytes": int(room_taken[owned].sum()), "shared": shared,
        }  # fmt: skip
        # Its own samples are nobody's to ask: also not of a node that had this number in another job.
        owner = np.where(owned, np.int16(NOBODY), shares.owner)
        classes = np.where(owned, shares.level, np.int8(NOWHERE))
        plan = Plan(classes, owner, about, takes_over=self._takes_over(shares, room_taken))
        room = self.capacities_bytes[self.nodes.index(self.own)]
        left = np.array(room) - np.bincount(shares.level[owned], room_taken[owned], len(room)).astype(np.int64)
        all_owned = self.own not in self.away and bool((shares.owner[room_taken > 0] >= 0).all())
        return OwnShare(plan, tuple(left.tolist()) if all_owned else (), shares.settled)

    def _takes_over(self, shares: Shares, room_taken: npt.NDArray[np.int64]) -> Mapping[int, int]:
        """By node, the bytes that this one takes over from it: what lies there beyond the node's part of all bytes,
        where this one has clearly less than its own. Those are the least that can move."""
        by_node = np.array(self._numbers()[0][shares.owner], dtype=np.int64)  # the last number is nobody's
        owned = np.bincount(by_node, room_taken, len(self.nodes) + 1)[:-1]
        lies = np.bincount(by_node[shares.settled], room_taken[shares.settled], len(self.nodes) + 1)[:-1]
        room = np.array(self.capacities_bytes, dtype=np.float64)
        room[[self.nodes.index(node) for node in self.away]] = 0
        parts = parts_bytes(float(owned.sum()), room)
        beyond, lacking = np.maximum(lies - parts, 0.0), np.maximum(parts - owned, 0.0)
        own, part = lacking[self.nodes.index(self.own)], parts[self.nodes.index(self.own)]
        samples_a_part = int((room_taken[by_node < len(self.nodes)] > 0).sum()) / max(1, int((parts > 0).sum()))
        if own * samples_a_part**0.5 <= BY_CHANCE * part:
            return {}
        of_each = (beyond * min(1.0, own / lacking.sum())).astype(np.int64).tolist()
        return {node: size for node, size in zip(self.nodes, of_each, strict=True) if size}

    # -- how shares are sent

    def pack(self, shares: Shares) -> bytes:
        """The shares as one number a sample, of as few bytes as will do."""
        number, levels = self._numbers()
        code = (number[shares.owner] * levels + np.maximum(shares.level, 0)) * 2 + shares.settled
        return code.astype(self._code).tobytes()

    def packed_bytes(self, samples: int) -> int:
        """The bytes that the shares of so many samples take."""
        return samples * self._code.itemsize

    def unpack(self, data: bytes, samples: int) -> Shares:
        """The shares of a number of samples. Raises ValueError for what no node of this cluster can have sent."""
        if len(data) != self.packed_bytes(samples):
            raise ValueError(f"{len(data)} bytes do not tell who owns {samples} samples")
        code = np.frombuffer(data, dtype=self._code)
        at, level = np.divmod(code >> 1, self._code.type(len(self.capacities_bytes[0])))
        if at.max(initial=0) > len(self.nodes):
            raise ValueError("samples are owned by nodes that there are not")
        owner = np.array([*self.nodes, NOBODY], dtype=np.int16)[at]
        return Shares(owner, np.where(owner < 0, np.int8(NOBODY), level.astype(np.int8)), code & 1 == 1)

    @property
    def _code(self) -> np.dtype[Any]:
        return np.min_scalar_type(2 * (len(self.nodes) + 1) * len(self.capacities_bytes[0]))

    def _numbers(self) -> tuple[npt.NDArray[np.int64], int]:
        """By a node's number, its place among the nodes; at -1, the last, the place of nobody. And how many classes."""
        number = np.full(max(self.nodes) + 2, len(self.nodes), dtype=np.int64)
        number[list(self.nodes)] = range(len(self.nodes))
        return number, len(self.capacities_bytes[0])


def members_of(own: int, about: Mapping[int, Mapping[str, Any]]) -> Members:
    """The nodes that join, by what each has said of itself. Classes that a node does not have are empty."""
    nodes = tuple(sorted(about))
    capacities = [about[node]["capacities_bytes"] for node in nodes]
    classes = max(map(len, capacities))
    rows = tuple(tuple(row) + (0,) * (classes - len(row)) for row in capacities)
    return Members(nodes, own, rows, buffers_bytes=tuple(int(about[node].get("buffer_bytes", 0)) for node in nodes))


# -- where several jobs have served orders: which node keeps each sample, and how many samples have no room
#
# In: for each job, which node its order expects to keep each sample (`mlfs.served.partition`); the nodes' rooms. Out:
# the same for all jobs together; how many samples have no room.
#
# Each order is made as if its job had all the room of the nodes. Orders that rest on the same nodes expect a sample on
# the same node, so several jobs go well together while there is room for all, such as a data set for validation beside
# the one for training. The orders stay as they are where there is no room for all. Samples that have no room are then
# read of the source in each epoch; a warning says so, and no job is refused.

NodeNumbers = npt.NDArray[np.int16]


def kept_by_all(kept_at: Mapping[str, NodeNumbers]) -> NodeNumbers | None:
    """By sample, the node that keeps it for all jobs, -1 for none; None without jobs.

    The job whose name comes first counts where two orders rest on different nodes: that is the same one on all nodes,
    in whatever order they heard of the jobs.
    """
    together: NodeNumbers | None = None
    for name in sorted(kept_at):
        together = kept_at[name] if together is None else np.where(together < 0, kept_at[name], together)
    return together


def without_room(kept: NodeNumbers, sizes_bytes: npt.NDArray[Any], rooms_bytes: Mapping[int, int]) -> int:
    """How many of the samples that these nodes are to keep have no room there, as nodes fill it (`Members.plan`)."""
    taken = footprints(sizes_bytes)
    missing = 0
    for node, room in rooms_bytes.items():
        missing += int((fill(taken[(kept == node) & (taken > 0)], [room]) == NOBODY).sum())
    return missing


def warning(kept_at: Mapping[str, NodeNumbers], sizes_bytes: npt.NDArray[Any], rooms_bytes: Mapping[int, int]) -> str:
    """A sentence on the jobs together that a user should know; "" for nothing."""
    kept = kept_by_all(kept_at)
    if kept is None or len(kept_at) < 2:
        return ""
    if not (missing := without_room(kept, sizes_bytes, rooms_bytes)):
        return ""
    jobs, samples = ", ".join(sorted(kept_at)), np.count_nonzero(kept >= 0)
    return (
        f"jobs {jobs}: there is no room for {missing:,} of the {samples:,} samples that their served orders take to be"
        " kept: they are read once more in each epoch; give the mounts more --ram or --ssd, or register only the larger"
        " job with --serve"
    )
