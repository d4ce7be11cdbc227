"""Lobster: nodes keep what they read, and evict by reuse count and reuse distance, but never a last copy for them.

Pure. In: a view. Out: reads from the own copies, a peer's, or the PFS. Source: Liu et al. (2022), Sections 4.2 and 4.4.
`mlfs.lab.sim.gpu_queues` says how many threads serve each GPU's queue, by the trait `Queues.ASSIGNED`.

Evictions are decided once an epoch. A node's candidates are its copies and what it read. The reuse count policy drops
what the node will not read again, the reuse distance policy what it does not read in the next epoch, unless no other
node has a copy. If more is left than fits, samples with the largest reuse distance go first: last copies, which the
node does not read in the next epoch, before the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.lab.policies.policy import EpochReads, Finder, Overlap, Policy, Queues, Traits, View, first_of_each
from mlfs.plan.node_reads import PFS, Ids, Storages, by_node
from mlfs.plan.placement import in_classes

NEXT, LAST_COPY, DROPPED = 0, 1, 2


class Lobster:
    """Copies by node, evicted epoch by epoch."""

    preload = None

    def __init__(self, view: View) -> None:
        self.view = view
        self.rooms = view.model.node_capacities_bytes()
        n = len(view.sizes_bytes)
        self.future = by_node(view.readers, view.model.nodes)
        self.held: list[Ids] = [np.empty(0, dtype=np.int32)] * view.model.nodes
        self.storage: list[Storages] = [np.empty(0, dtype=np.int8)] * view.model.nodes
        self.copies = np.zeros(n, dtype=np.int16)
        self.peer = np.full(n + 1, PFS, dtype=np.int16)
        self.peer_storage = np.full(n + 1, PFS, dtype=np.int8)
        self.finder = Finder(n)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """From the node's own copies, else a peer's, else the PFS; then evict."""
        node, storage = self.peer[ids], self.peer_storage[ids]
        for index, held in enumerate(self.held):
            slots = self.finder.slots(held, ids[:, index, :])
            local = slots >= 0
            node[:, index, :][local] = index
            storage[:, index, :][local] = self.storage[index][slots[local]]
        for index in range(len(self.held)):
            self._evict(index, epoch, ids[:, index, :])
        self._publish()
        return EpochReads(ids, node, storage, np.zeros(ids.shape[1]))

    def _evict(self, index: int, epoch: int, mine: Ids) -> None:
        held, mine = self.held[index], mine[mine >= 0]
        new = mine[self.finder.slots(held, mine) < 0]
        candidates = np.concatenate([held, new[first_of_each(new)]])
        self.copies[held] -= 1
        rank = np.full(len(candidates), DROPPED, dtype=np.int8)
        if epoch + 1 < len(self.future):
            rank[self.copies[candidates] == 0] = LAST_COPY
            rank[self.finder.slots(self.future[epoch + 1][index], candidates) >= 0] = NEXT
        kept = candidates[np.argsort(rank, kind="stable")][: int((rank < DROPPED).sum())]
        storage = in_classes(self.view.sizes_bytes[kept], self.rooms[index])
        kept, storage = kept[storage != PFS], storage[storage != PFS]
        self.held[index], self.storage[index] = kept, storage
        self.copies[kept] += 1

    def _publish(self) -> None:
        """Notes for each sample the copy that peers find: in the fastest class, then on the lowest node."""
        self.peer[:], self.peer_storage[:] = PFS, PFS
        order: list[tuple[int, int]] = [
            (j, node) for j in reversed(range(len(self.view.model.classes))) for node in reversed(range(len(self.held)))
        ]
        for j, node in order:
            which: npt.NDArray[np.int32] = self.held[node][self.storage[node] == j]
            self.peer[which], self.peer_storage[which] = node, j


POLICY = Policy(
    "lobster",
    "copies evicted by reuse count and distance, never the last; threads by Algorithm 1 (Lobster, Sec. 4)",
    Traits(Overlap.WINDOW, queues=Queues.ASSIGNED),
    Lobster,
)
