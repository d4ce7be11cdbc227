"""NoPFS: each node keeps what it reads most, fastest class first; each class is filled in order of access.

Pure. In: a view. Out: reads from the own class, a peer's, or the PFS, whichever is fastest and has the sample by then.
Source: Dryden et al. (SC'21), Section 5.1. Frequencies decide what is kept where; of equal frequencies the lower id.

Time within an epoch runs from 0 to 1. A class's threads first fetch what the node reads in this epoch, ahead of the
staging threads if they are faster, then what it reads later. A peer is asked for what it has fetched by then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.lab.policies.policy import EpochReads, Finder, Overlap, Policy, Traits, View, first_of_each
from mlfs.plan.model import Floats
from mlfs.plan.node_reads import PFS, Ids, Storages, counts_by_node
from mlfs.plan.placement import keep_most_read

NOT_YET = np.float32(np.inf)
Slots = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class NodeShare(NamedTuple):
    """A node's own choice of what to keep: ids ascending, their class, and since when it has them (in epochs)."""

    ids: Ids
    storage: Storages
    since: npt.NDArray[np.float32]


class NoPFS:
    """Frequency placement, chosen by each node for itself."""

    preload = None

    def __init__(self, view: View) -> None:
        self.view = view
        rooms = view.model.node_capacities_bytes()
        counted = counts_by_node(view.readers, view.model.nodes)
        self.shares = [self._choose(ids, counts, rooms[node]) for node, ids, counts in counted]
        n = len(view.sizes_bytes)
        self.finder = Finder(n)
        self.peer = np.full(n + 1, PFS, dtype=np.int16)
        self.peer_storage = np.full(n + 1, PFS, dtype=np.int8)
        self.peer_since = np.full(n + 1, NOT_YET, dtype=np.float32)
        self.filling = True

    def _choose(self, ids: Ids, counts: npt.NDArray[np.int64], room: Floats) -> NodeShare:
        storage = keep_most_read(self.view.sizes_bytes[ids], counts, room, at_least=1)
        kept = storage != PFS
        return NodeShare(ids[kept], storage[kept], np.full(int(kept.sum()), NOT_YET, dtype=np.float32))

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """From the own classes, a peer or the PFS, by what is there at the time of each read."""
        background = self._fill(epoch, ids) if self.filling else np.zeros(ids.shape[1])
        now = (epoch + np.arange(ids.shape[0], dtype=np.float32) / ids.shape[0])[:, None]
        node = np.full(ids.shape, PFS, dtype=np.int16)
        storage = np.full(ids.shape, PFS, dtype=np.int8)
        for index, share in enumerate(self.shares):
            mine = ids[:, index, :]
            slots = self.finder.slots(share.ids, mine)
            local = slots >= 0
            local[local] = share.since[slots[local]] <= np.broadcast_to(now, mine.shape)[local]
            remote = ~local & (self.peer_since[mine] <= now)
            node[:, index, :] = np.where(local, np.int16(index), np.where(remote, self.peer[mine], np.int16(PFS)))
            own = np.where(local, share.storage[slots] if len(share.storage) else np.int8(PFS), np.int8(PFS))
            storage[:, index, :] = np.where(remote, self.peer_storage[mine], own)
        return EpochReads(ids, node, storage, background)

    def _fill(self, epoch: int, ids: Ids) -> Floats:
        """Advance the classes' threads by one epoch. Returns the bytes that those of each node draw from the PFS.

        A class's threads have as long as the node computes, or as its staging threads need for the rest.
        """
        model, rate = self.view.model, self.view.pfs_thread_bytes_per_s
        spent = np.zeros((ids.shape[1], len(model.classes)))
        budget = np.zeros_like(spent)
        for index, share in enumerate(self.shares):
            mine = ids[:, index, :]
            slots = self.finder.slots(share.ids, mine.ravel()[first_of_each(mine.ravel())])
            coming: Slots = slots[slots >= 0]
            coming = coming[share.since[coming] == NOT_YET]
            if epoch == 0:
                coming = self._beyond_window(share, coming, mine)
            epoch_bytes = float(self.view.sizes_bytes[mine[mine >= 0]].sum())
            staged_bytes = epoch_bytes - float(self.view.sizes_bytes[share.ids[coming]].sum())
            duration_s = max(epoch_bytes / model.compute_bytes_per_s, staged_bytes / (rate * model.staging.threads))
            budget[index] = [rate * storage.threads * duration_s for storage in model.classes]
            spent[index] = self._fetch_for_this_epoch(epoch, index, coming, budget[index])
        for index in range(len(self.shares)):
            spent[index] += self._fetch_for_later_epochs(epoch, index, spent[index], budget[index])
        self.filling = any(bool((share.since == NOT_YET).any()) for share in self.shares)
        drawn: Floats = spent.sum(axis=1)
        return drawn

    def _beyond_window(self, share: NodeShare, coming: Slots, mine: Ids) -> Slots:
        """At the start no class thread is ahead of the staging threads: these fetch the first window themselves."""
        flat = mine.ravel()
        staged = np.cumsum(np.where(flat >= 0, self.view.sizes_bytes[flat], 0.0))
        first = flat[: int(np.searchsorted(staged, self.view.model.staging.capacity_bytes, side="right"))]
        near = np.isin(share.ids[coming], first)
        share.since[coming[near]] = np.float32(1)
        return coming[~near]

    def _cost(self, share: NodeShare, slots: Slots, by: float) -> Floats:
        """Bytes of each sample that the PFS has to give: nothing for what a peer has by then."""
        ids = share.ids[slots]
        return np.where(self.peer_since[ids] <= by, 0.0, self.view.sizes_bytes[ids])

    def _fetch_for_this_epoch(self, epoch: int, index: int, coming: Slots, budget: Floats) -> Floats:
        """Fetch what the node reads in this epoch, ahead of the staging threads as far as the budget reaches."""
        share, spent = self.shares[index], np.zeros(len(budget))
        for j in range(len(budget)):
            queue = coming[share.storage[coming] == j]
            cost = self._cost(share, queue, epoch)
            wanted = float(cost.sum())
            ahead = thinned(len(queue), min(1.0, budget[j] / wanted) if wanted else 1.0)
            share.since[queue] = np.float32(epoch + 1)
            share.since[queue[ahead]] = np.float32(epoch)
            spent[j] = float(cost[ahead].sum())
        self._publish(index)
        return spent

    def _fetch_for_later_epochs(self, epoch: int, index: int, spent: Floats, budget: Floats) -> Floats:
        """Fetch what the node reads in later epochs, with the rest of the budget, evenly over the rest of the time."""
        share, drawn = self.shares[index], np.zeros(len(budget))
        for j in range(len(budget)):
            queue = np.flatnonzero((share.storage == j) & (share.since == NOT_YET))
            cost = np.cumsum(self._cost(share, queue, epoch + 1))
            there = spent[j] + cost <= budget[j]
            if there.any():
                when = epoch + (spent[j] + cost[there]) / budget[j]
                at_peer = self.peer_since[share.ids[queue[there]]]
                share.since[queue[there]] = np.where(at_peer == NOT_YET, when, np.maximum(when, at_peer))
                drawn[j] = cost[there][-1]
        self._publish(index)
        return drawn

    def _publish(self, index: int) -> None:
        """Note for the peers what this node has, and since when."""
        share = self.shares[index]
        better = share.since < self.peer_since[share.ids]
        which = share.ids[better]
        self.peer[which], self.peer_storage[which] = index, share.storage[better]
        self.peer_since[which] = share.since[better]


def thinned(n: int, part: float) -> npt.NDArray[np.bool_]:
    """A mask of n with `part` of it true, evenly spread."""
    steps = np.floor(np.arange(n + 1) * part)
    return np.asarray(steps[1:] > steps[:-1])


POLICY = Policy(
    "nopfs",
    "each node keeps what it reads most, classes filled in order of access (NoPFS, Sec. 5)",
    Traits(Overlap.WINDOW),
    NoPFS,
)
