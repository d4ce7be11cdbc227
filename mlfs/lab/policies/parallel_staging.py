"""Parallel staging (data sharding): each node copies a shard to its own storage before it starts, and reads only that.

Pure. In: a view. Out: local reads of the node's own shard, shuffled anew each epoch. Source: NoPFS, Sections 2.1 and 6.
A data set that fits in one node is staged whole, read once and broadcast; else each node takes what it has room for.
"""

from __future__ import annotations

import numpy as np

from mlfs.lab.policies.policy import EpochReads, Overlap, Policy, Preload, Traits, View, capacities
from mlfs.plan.node_reads import PFS, Ids
from mlfs.plan.placement import in_classes


class ParallelStaging:
    """Shards: ids and their class, one pair for each node."""

    def __init__(self, view: View) -> None:
        self.view = view
        sizes, room = view.sizes_bytes, capacities(view)
        self.whole = float(sizes.sum()) <= float(room.sum())
        order = view.generator.permutation(len(sizes)).astype(np.int32)
        filled = np.cumsum(np.tile(sizes[order], 2))
        twice = np.concatenate([order, order])
        self.shards = []
        for index in range(1 if self.whole else view.model.nodes):
            start = index * len(sizes) // view.model.nodes
            reach = (filled[start - 1] if start else 0.0) + float(room.sum())
            shard = twice[start : int(np.searchsorted(filled, reach, side="right"))]
            shard = shard[: len(sizes)]
            storage = in_classes(sizes[shard], room)
            self.shards.append((shard[storage != PFS], storage[storage != PFS]))
        ids, storage = self.shards[0]
        staged = np.bincount(storage, sizes[ids], minlength=len(room)).astype(np.float64)
        self.preload = Preload(staged, 1 if self.whole else view.model.nodes)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """Each node's own shard in a new order, as often as the epoch is long."""
        mine, storage = ids.copy(), np.full(ids.shape, PFS, dtype=np.int8)
        node = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int16)[None, :, None], ids.shape)
        for index in range(ids.shape[1]):
            shard, classes = self.shards[0 if self.whole else index]
            if not len(shard):
                continue
            wanted = ids[:, index, :] >= 0
            order = np.resize(self.view.generator.permutation(len(shard)), int(wanted.sum()))
            mine[:, index, :][wanted] = shard[order]
            storage[:, index, :][wanted] = classes[order]
        return EpochReads(mine, np.where(storage == PFS, np.int16(PFS), node), storage, np.zeros(ids.shape[1]))


POLICY = Policy(
    "parallel_staging",
    "data sharding: each node stages and reads its own shard (NoPFS, Sec. 2.1)",
    Traits(Overlap.BATCH, true_order=False),
    ParallelStaging,
)
