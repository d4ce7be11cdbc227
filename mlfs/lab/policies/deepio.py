"""DeepIO: the data set partitioned over the nodes' memory, shuffled in place by a shared seed.

Pure. In: a view. Out: reads from the partitions. Source: Zhu et al. (2018), Section III; only RAM (class 0 of the kept
classes) is used.

- ordered: reads come in the sampler's order; what is not in memory is read from the PFS on demand (III-C: "a massive
  number of small random reads").
- opportunistic: batches are drawn from what is in memory, and the rest is never read (as in NoPFS's simulator).
- hybrid: the backend-memory pipeline with two buffers (III-B): while one half of the memory is shuffled and read, the
  other takes the next round of files, so that every sample is read once an epoch, in an order of rounds. The rounds are
  drawn by the function by which mounts draw those of their opportunistic orders (`mlfs.served.rounds`).
"""

from __future__ import annotations

import numpy as np

from mlfs.lab.policies.policy import (
    EpochReads,
    Overlap,
    Policy,
    Preload,
    Traits,
    Unfit,
    View,
    capacities,
    partition,
    preload_of,
)
from mlfs.plan.model import Floats
from mlfs.plan.node_reads import PFS, Ids
from mlfs.served.rounds import in_rounds, rounds_for


class Ordered:
    """Memory partitions, the sampler's order."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.kept = partition(view, capacities(view, 1))
        self.resident = np.flatnonzero(self.kept.node[:-1] != PFS).astype(np.int32)
        self.preload: Preload | None = preload_of(view, self.kept)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """From the partitions, else from the PFS."""
        return self.kept.reads(ids)


class Opportunistic(Ordered):
    """Memory partitions; what is not in memory is replaced by what is."""

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """The sampler's ids where they are in memory, others drawn from memory in their place."""
        away = (self.kept.node[ids] == PFS) & (ids >= 0)
        if len(self.resident) and away.any():
            ids = ids.copy()
            shuffled = self.view.generator.permutation(self.resident)
            ids[away] = np.resize(shuffled, int(away.sum()))
        return self.kept.reads(ids)


class Hybrid(Ordered):
    """Two buffers: what is not in memory comes in rounds, in the background; reads see memory only."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        if not len(self.resident):
            raise Unfit("there is no memory to shuffle in")

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """All from memory; the nodes draw the other samples from the PFS meanwhile, in equal parts."""
        reads = self.kept.reads(self._in_rounds(ids))
        ids = reads.ids
        away = (reads.node == PFS) & (ids >= 0)
        fetched = float(self.view.sizes_bytes[ids[away]].sum())
        nodes = self.view.model.nodes
        dealt = (np.arange(int(away.sum())) % nodes).astype(np.int16)
        reads.node[away] = dealt
        reads.storage[away] = 0
        background: Floats = np.full(nodes, fetched / nodes)
        return reads._replace(background_bytes=background)

    def _in_rounds(self, ids: Ids) -> Ids:
        """The epoch's samples in an order of rounds, a round as large as half of all memory holds."""
        real = ids >= 0
        elements = np.sort(ids[real])
        away = np.flatnonzero(self.kept.node[elements] == PFS)
        view, nodes = self.view, self.view.model.nodes
        buffer_bytes = int(capacities(view, 1).sum()) * nodes // 2
        away_bytes = int(view.sizes_bytes[elements[away]].sum())
        cut = rounds_for(len(elements) - len(away), len(away), away_bytes, buffer_bytes, nodes, 0.0)
        sequence, _ = in_rounds(away, cut, nodes, lambda n, _: view.generator.permutation(n))
        dealt = ids.copy()
        dealt[real] = elements[sequence]
        return dealt


ORDERED = Policy(
    "deepio_ordered",
    "memory partitions in the sampler's order, the rest from the PFS on demand (DeepIO, Sec. III-C)",
    Traits(Overlap.NONE, one_thread=True),
    Ordered,
)
OPPORTUNISTIC = Policy(
    "deepio_opportunistic",
    "memory partitions, batches from what is in memory only (DeepIO, Sec. III-C)",
    Traits(Overlap.BATCH, true_order=False),
    Opportunistic,
)
HYBRID = Policy(
    "deepio_hybrid",
    "memory partitions and two buffers: the rest is uploaded in rounds (DeepIO, Sec. III-B)",
    Traits(Overlap.WINDOW, true_order=False),
    Hybrid,
)
