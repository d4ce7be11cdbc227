"""Locality-aware loading: each batch is dealt anew, so that samples are read where they lie (Yang and Cong 2019, V).

Pure. In: a view. Out: the sampler's global batches, each sample at the node that keeps it, as far as the local batches
stay equal (`mlfs.served.locality`, which the served orders of registered jobs use too). The order of a rank is not the
sampler's.
"""

from __future__ import annotations

from mlfs.lab.policies.policy import (
    EpochReads,
    Overlap,
    Policy,
    Preload,
    Traits,
    View,
    capacities,
    partition,
    preload_of,
)
from mlfs.plan.node_reads import Ids
from mlfs.served.locality import deal_by_location


class LocalityAware:
    """An even partition over all classes, loaded before the first step."""

    def __init__(self, view: View) -> None:
        self.kept = partition(view, capacities(view))
        self.preload: Preload | None = preload_of(view, self.kept)

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """The same batches, dealt by location."""
        return self.kept.reads(deal_by_location(ids, self.kept.node))


POLICY = Policy(
    "locality_aware",
    "batches dealt by where samples lie, evened out by Algorithm 1 (Yang and Cong, Sec. V)",
    Traits(Overlap.BATCH, true_order=False),
    LocalityAware,
)
