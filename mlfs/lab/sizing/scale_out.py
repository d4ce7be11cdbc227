"""Computes when more nodes stop helping: time of an epoch by number of nodes, for three ways to load.

Pure. In: rates, in units of data a second (bytes, or samples), and shares. Out: seconds. Called by `mlfs plan`, by
scripts/benchmark/served.py and by the tests.

Source: Yang and Cong, Accelerating Data Loading in Deep Neural Network Training (2019), equations 1 to 8. V and U are
rates of one node; R, R_c and R_b are those of all nodes together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """The paper's Section III-A notation.

    Attributes:
        data: D, the data of an epoch.
        train_rate: V, how fast one node trains.
        storage_rate: R, what the storage system gives to all nodes together.
        preprocess_rate: U, how fast one node preprocesses.
        remote_rate: R_c, what all nodes together get from remote caches.
        balance_rate: R_b, the rate at which batches are balanced, of all nodes together.

    Raises:
        ValueError: a value is not above 0.
    """

    data: float
    train_rate: float
    storage_rate: float
    preprocess_rate: float = math.inf
    remote_rate: float = math.inf
    balance_rate: float = math.inf

    def __post_init__(self) -> None:
        for name in ("data", "train_rate", "storage_rate", "preprocess_rate", "remote_rate", "balance_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")

    def training_s(self, nodes: int) -> float:
        """D / (p V) (eq. 1)."""
        return self.data / (nodes * self.train_rate)

    def io_s(self) -> float:
        """D / R, whatever the number of nodes (eq. 2)."""
        return self.data / self.storage_rate

    def preprocessing_s(self, nodes: int) -> float:
        """D / (p U) (eq. 3)."""
        return self.data / (nodes * self.preprocess_rate)

    def loading_s(self, nodes: int, io_s: float | None = None) -> float:
        """I/O and preprocessing, one after the other (eq. 4); `io_s` of eq. 7 or 8 in place of eq. 2's."""
        return (self.io_s() if io_s is None else io_s) + self.preprocessing_s(nodes)

    def crossover_nodes(self) -> float:
        """Training takes longer than I/O while p <= R / V (eq. 5)."""
        return self.storage_rate / self.train_rate

    def epoch_s(self, nodes: int) -> float:
        """The true cost: D / (p V) for p <= R / V, else D / R (eq. 6)."""
        return max(self.training_s(nodes), self.io_s())

    def cached_io_s(self, nodes: int, cached_share: float) -> float:
        """Distributed caching: (1-a) D/R + a D/R_c (p-1)/p (eq. 7).

        Args:
            cached_share: a (alpha), how much of the data the caches of all nodes hold together, 0 to 1.
        """
        _check_share(cached_share)
        remote_s = cached_share * self.data / self.remote_rate * (nodes - 1) / nodes
        return (1 - cached_share) * self.data / self.storage_rate + remote_s

    def local_io_s(self, cached_share: float, moved_share: float) -> float:
        """Locality-aware loading: (1-a) D/R + (a D / R_b) b (eq. 8).

        Args:
            moved_share: b (beta), how much of what is cached moves to balance the batches, 0 to 1.
        """
        _check_share(cached_share)
        _check_share(moved_share)
        balance_s = cached_share * self.data / self.balance_rate * moved_share
        return (1 - cached_share) * self.data / self.storage_rate + balance_s


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share}, must be 0 to 1")
