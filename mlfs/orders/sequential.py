"""The sampler "sequential": the data set in index order, every epoch.

In: a job's world_size, drop_last and contiguous. Out: each rank's dataset indices. Made by `mlfs.orders.registry`.
Source: torch/utils/data/sampler.py, SequentialSampler, for one rank; with several, torch/utils/data/distributed.py,
DistributedSampler(shuffle=False): dealt round-robin, padded or cut to equal lengths. `seed` and `shuffle` are not used.

contiguous: rank r reads the r-th piece of n / world_size samples, rounded up; the last one has what is left (or, with
drop_last, each has n / world_size rounded down). So does DLIO with PyTorch's loader (data_loader/torch_data_loader.py,
dlio_sampler; argonne-lcf/dlio_benchmark 2025), whatever its file_shuffle and sample_shuffle say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlfs.orders.deal import rank_length, rank_positions
from mlfs.orders.order import Indices, Resolve

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class SequentialOrder:
    """0 .. n-1 for one rank; every world_size-th index, or a piece of them, for each of several."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        self._spec = spec
        self._n_samples = n_samples

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        return rank_length(self._n_samples, self._spec.world_size, self._spec.drop_last)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (stream_length(epoch),)."""
        if self._spec.contiguous:
            length = self.stream_length(0)
            return np.arange(min(rank * length, self._n_samples), min((rank + 1) * length, self._n_samples))
        return rank_positions(self._n_samples, rank, self._spec.world_size, self._spec.drop_last)
