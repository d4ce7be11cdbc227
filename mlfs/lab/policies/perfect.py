"""The lower bound: every sample is there when it is needed (NoPFS, Section 6, "Perfect").

Pure. In: a view. Out: reads that cost nothing: the simulator counts only the compute time of this policy.
"""

from __future__ import annotations

from mlfs.lab.policies.policy import EpochReads, Overlap, Policy, SingleCopies, Traits, View
from mlfs.plan.node_reads import Ids


class Perfect:
    """No read costs anything."""

    preload = None

    def __init__(self, view: View) -> None:
        self.kept = SingleCopies.none(len(view.sizes_bytes))

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """The reads as dealt; where they come from does not matter."""
        return self.kept.reads(ids)


POLICY = Policy(
    "perfect", "lower bound: no stalls, compute only (NoPFS, Sec. 6)", Traits(Overlap.WINDOW, free=True), Perfect
)
