"""The result of a simulation for one policy.

In: sums that `mlfs.lab.sim.run` collects. Out: frozen records, and plain values for JSON. Called by the command and the
plots.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One epoch: how long it takes, how long computing alone takes, its PFS bytes, and the least possible."""

    seconds: float
    compute_s: float
    pfs_bytes: float
    bound_bytes: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy.

    Attributes:
        seconds: the simulated run time.
        preload_s: the part of it before the first step.
        compute_s: the run time without stalls.
        stall_s: seconds - compute_s.
        bytes_share, seconds_share: by route, the share of all loaded bytes and of all loading time.
        hit_ratio: by route, local:CLASS or peer:CLASS, the share of all reads; the rest comes from the PFS.
        imbalance: the mean over steps of (slowest - fastest) / slowest loading time, over all GPUs of all nodes.
        imbalanced_steps: the share of steps in which loading takes longer than computing on some GPUs and not on
            others (Lobster, Section 5.3).
        pfs_bytes, bound_bytes: for all epochs; the bound is S in epoch 0, and later S less what all
            nodes together can keep, or 0 (docs/model.md).
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
        """The values for JSON, without the policy's name."""
        values = asdict(self)
        values.pop("policy")
        return values
