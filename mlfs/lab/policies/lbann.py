"""The LBANN data store: the data set in the memory of all nodes together (Jacobs et al. 2019; NoPFS, Section 6).

Pure. In: a view. Out: reads from the memory of whoever has the sample. It refuses (`Unfit`) what the memory of all
nodes does not hold.

- dynamic: a node keeps what it reads in the first epoch.
- preload: everything is read before the first step, dealt evenly.
"""

from __future__ import annotations

import numpy as np

from mlfs.lab.policies.policy import (
    EpochReads,
    Overlap,
    Policy,
    Preload,
    SingleCopies,
    Traits,
    Unfit,
    View,
    Writing,
    capacities,
    partition,
    preload_of,
)
from mlfs.plan.node_reads import PFS, Ids


def _check(view: View) -> None:
    room = float(capacities(view, 1).sum()) * view.model.nodes
    if float(view.sizes_bytes.sum()) > room:
        raise Unfit("the data set exceeds the memory of all nodes together")


class Dynamic:
    """Each sample is kept by the node that reads it first."""

    preload = None

    def __init__(self, view: View) -> None:
        _check(view)
        self.kept = SingleCopies.none(len(view.sizes_bytes))

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """From the node that has the sample; its first reader fetches and keeps what no node has."""
        reads = self.kept.reads(ids)
        new = (reads.node == PFS) & (ids >= 0)
        if new.any():
            readers = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int16)[None, :, None], ids.shape)
            self.kept.node[ids[new]] = readers[new]
            self.kept.storage[ids[new]] = 0
        return reads


class Preloaded:
    """Everything is in memory before the first step."""

    def __init__(self, view: View) -> None:
        _check(view)
        self.kept = partition(view, capacities(view, 1))
        self.preload: Preload | None = preload_of(view, self.kept)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        return self.kept.reads(ids)


DYNAMIC = Policy(
    "lbann_dynamic",
    "all memories as one store, filled as samples are first read (NoPFS, Sec. 6)",
    Traits(Overlap.BATCH, Writing.THREAD),
    Dynamic,
)
PRELOAD = Policy(
    "lbann_preload",
    "all memories as one store, filled before the first step (NoPFS, Sec. 6)",
    Traits(Overlap.BATCH, Writing.THREAD),
    Preloaded,
)
