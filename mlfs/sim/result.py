"""What a simulation says about one policy.

In: sums that `mlfs.sim.run` collects. Out: frozen records, and plain values for JSON. Called by the command and the
plots.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One epoch: its end less its start, what compute alone takes, and PFS bytes beside the least possible."""

    seconds: float
    compute_s: float
    pfs_bytes: float
    bound_bytes: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy.

    Attributes:
        seconds: simulated run time. preload_s: of it before the first step. compute_s: what no stalls would take.
        stall_s: seconds - compute_s. bytes_share, seconds_share: by route, of all loaded bytes, of all loading time.
        hit_ratio: reads by route over all reads: local:CLASS and peer:CLASS; pfs is the rest.
        imbalance: mean over steps of (slowest - fastest) / slowest loading time, over all GPUs of all nodes.
        imbalanced_steps: share of steps in which some GPU's loading takes longer than its compute, and some GPU's
        does not (Lobster, Section 5.3).
        pfs_bytes, bound_bytes: all epochs; the bound is S in epoch 0, and later S less what all nodes
        can keep, or 0 (docs/model.md).
    """

    policy: str
    seconds: float
    preload_s: float
    compute_s: float
    stall_s: float
    bytes_share: dict[str, float]
    seconds_share: dict[str, float]
    hit_ratio: dict[str, float]
    imbalance: float
    imbalanced_steps: float
    pfs_bytes: float
    bound_bytes: float
    epochs: tuple[EpochResult, ...]

    @property
    def local(self) -> float:
        """Share of reads from the node's own classes."""
        return sum(share for route, share in self.hit_ratio.items() if route.startswith("local"))

    @property
    def peer(self) -> float:
        """Share of reads from other nodes' classes."""
        return sum(share for route, share in self.hit_ratio.items() if route.startswith("peer"))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        values = asdict(self)
        values.pop("policy")
        return values
