"""The sampler "torch-distributed": torch.utils.data.DistributedSampler, bit for bit.

In: a job's seed, shuffle, drop_last, set_epoch and world_size. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`. Source: torch/utils/data/distributed.py (torch 2.13). The script is taken to call
set_epoch(epoch), counting from 0; with "set_epoch": false every epoch has the order of the first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlfs.orders.deal import rank_length, rank_positions
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.permutation import randperm
from mlfs.orders.torch_generator import check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class DistributedOrder:
    """randperm(n) seeded with seed + epoch (or 0 .. n-1 without shuffle), padded or cut, dealt round-robin.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles (214,748,363).
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle:
            check_length(n_samples, "shuffle")
        self._spec = spec
        self._n_samples = n_samples
        self._permutation = lru_cache(maxsize=EPOCHS_KEPT)(self._permute)

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        return rank_length(self._n_samples, self._spec.world_size, self._spec.drop_last)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (stream_length(epoch),)."""
        positions = rank_positions(self._n_samples, rank, self._spec.world_size, self._spec.drop_last)
        if not self._spec.shuffle:
            return positions
        return self._permutation(epoch if self._spec.set_epoch else 0)[positions].astype(np.int64)

    def _permute(self, epoch: int) -> npt.NDArray[np.int32]:
        return randperm(self._n_samples, self._spec.seed + epoch)
