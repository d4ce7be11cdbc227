"""`mlfs`: our own policy, the daemon's default: each sample has one owner, chosen for good, and what is kept stays
kept.

Pure. In: a view. Out: the placement (`mlfs.plan.owners`) at work. Every node computes the same placement.

- Once: a sample is fetched from the PFS when it is first read, by its owner, who keeps it and hands it on. After
  epoch 0 only what has no owner comes from the PFS: S less what all nodes can keep, S - N * D bytes where each has
  room for D: the bound (docs/model.md, "The bound").
- Local: the owner is who reads the sample most after epoch 0; room beyond is filled with copies of what a node reads
  most, as far as a class that is slower than the network can serve them while the node computes.
- Even: no node owns more than its part; a node of twice the capacities has twice the part.
- Fast: a node's fastest class holds what it reads most.
- Side by side: PFS, peers and each class have their own threads, so that none waits behind another.
- Pooled: they serve all GPUs of the node, the nearest need first (`mlfs.plan.scheduler.look_ahead`), so that none has
  too few.
"""

from __future__ import annotations

import numpy as np

from mlfs.lab.policies.policy import (
    EpochReads,
    Finder,
    Overlap,
    Policy,
    Queues,
    SingleCopies,
    Traits,
    View,
    first_of_each,
)
from mlfs.plan.node_reads import PFS, Ids
from mlfs.plan.owners import Copies, Placement, place
from mlfs.served.partition import NOBODY, Partition


class Clairvoyant:
    """The placement, and which samples have been read so far."""

    preload = None

    def __init__(self, view: View) -> None:
        self.placement = placement(view)
        n = len(view.sizes_bytes)
        owner, storage = self.placement.owner, self.placement.storage
        self.kept = SingleCopies(np.append(owner, np.int16(PFS)), np.append(storage, np.int8(PFS)))
        self.first_read = np.ones(n + 1, dtype=bool)
        self.copied = [np.zeros(len(copies.ids), dtype=bool) for copies in self.placement.copies]
        self.finder = Finder(n)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """From the own copy, the owner, or the PFS; what is new its owner keeps, and its reader may copy."""
        reads = self.kept.reads(ids)
        new = self.first_read[ids]
        new[new] = first_of_each(ids[new])
        reads.storage[new] = PFS
        for index, copies in enumerate(self.placement.copies):
            if not len(copies.ids):
                continue
            slots = self.finder.slots(copies.ids, ids[:, index, :])
            local = slots >= 0
            local[local] = self.copied[index][slots[local]]
            reads.node[:, index, :][local] = index
            reads.storage[:, index, :][local] = copies.storage[slots[local]]
            self.copied[index][slots[slots >= 0]] = True
        self.first_read[ids[ids >= 0]] = False
        return reads


def placement(view: View) -> Placement:
    """The owner and the copies of each sample: the same on every node, for the fast estimate and for each node's
    scheduler."""
    if view.kept is not None:
        placed = _around(view, view.kept)
    else:
        placed = place(view.sizes_bytes, view.readers, view.model.nodes, view.model.node_capacities_bytes())
    return placed._replace(copies=_in_time(view, placed))


def _around(view: View, kept: Partition) -> Placement:
    """A served order names samples that nodes keep: they are kept there, as in a running cluster (`mlfs.plan.members`);
    the rest is placed in the room that is left."""
    owner, storage = kept.node.copy(), kept.level.copy()
    left = view.model.node_capacities_bytes()
    is_kept = owner != NOBODY
    np.subtract.at(left, (owner[is_kept], storage[is_kept]), view.sizes_bytes[is_kept])
    rest = np.flatnonzero(~is_kept)
    placed = place(view.sizes_bytes[rest], view.readers[:, rest], view.model.nodes, np.maximum(left, 0.0))
    owner[rest], storage[rest] = placed.owner, placed.storage
    copies = [Copies(rest[copies.ids].astype(np.int32), copies.storage) for copies in placed.copies]
    return Placement(owner, storage, copies)


def _in_time(view: View, placed: Placement) -> list[Copies]:
    """The copies without those that would make a slow class the limit where a peer's faster one is not.

    A peer may hold the copies in a faster class, behind a faster network. Then a class serves the most read ones that
    it can read in half the time that an epoch is computed, beside what else it has to serve: not all steps ask for the
    same.
    """
    model, sizes = view.model, view.sizes_bytes
    time_s = float(sizes.sum()) / model.nodes / model.compute_bytes_per_s / 2
    rates = np.array([float(storage.read.at(storage.threads)) for storage in model.classes])
    result = []
    for node, copies in enumerate(placed.copies):
        reads = (view.readers[:, copies.ids] == node).mean(axis=0)
        keep = np.ones(len(copies.ids), dtype=bool)
        for j, rate in enumerate(rates):
            here = copies.storage == j
            slower = here & (rate < np.minimum(model.network_bytes_per_s, rates[placed.storage[copies.ids]]))
            if slower.any():
                owned = (placed.owner == node) & (placed.storage == j)
                others = float(sizes[owned].sum() + (sizes[copies.ids] * reads)[here & ~slower].sum())
                order = np.flatnonzero(slower)
                order = order[np.argsort(-reads[order], kind="stable")]
                served = others + np.cumsum(sizes[copies.ids[order]] * reads[order])
                keep[order[served > rate * time_s]] = False
        result.append(Copies(copies.ids[keep], copies.storage[keep]))
    return result


POLICY = Policy(
    "mlfs",
    "one owner for each sample, chosen for good: PFS bytes at the bound, reads local, owners even",
    Traits(Overlap.WINDOW, own_lanes=True, queues=Queues.POOLED),
    Clairvoyant,
)
