"""Policies that keep nothing (NoPFS, Section 6): every read comes from the PFS.

Pure. In: a view. Out: every read from the PFS. The naive one reads a batch, computes it, and reads the next. One thread
reads; preprocessing is spread over the staging threads, which puts it between the two write models (read = fetch, and
read = fetch + write). The staging pool loads the next batch while this one is computed, as the loaders of PyTorch and
TensorFlow do. For the lower bound ("Perfect") no read costs anything: the simulator counts its compute time only.
"""

from __future__ import annotations

from mlfs.lab.policies.policy import EpochReads, Overlap, Policy, SingleCopies, Traits, View, Writing
from mlfs.plan.node_reads import Ids


class Naive:
    """Nothing is kept, nothing is read ahead."""

    preload = None

    def __init__(self, view: View) -> None:
        self.kept = SingleCopies.none(len(view.sizes_bytes))

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """All from the PFS."""
        return self.kept.reads(ids)


TRAITS = Traits(Overlap.NONE, Writing.POOL, one_thread=True)
POLICY = Policy("naive", "reads from the PFS, no prefetching, no cache (NoPFS, Sec. 6)", TRAITS, Naive)
ABOUT_POOL = "double buffering from the PFS, no cache (NoPFS, Sec. 6)"
STAGING_POOL = Policy("staging_pool", ABOUT_POOL, Traits(Overlap.BATCH), Naive)
ABOUT_PERFECT = "lower bound: no stalls, compute only (NoPFS, Sec. 6)"
PERFECT = Policy("perfect", ABOUT_PERFECT, Traits(Overlap.WINDOW, free=True), Naive)
