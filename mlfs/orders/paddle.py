"""The sampler "paddle": paddle.io.DistributedBatchSampler, bit for bit.

In: a job's shuffle, drop_last, batch_size, world_size. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`. Source: paddle/io/dataloader/batch_sampler.py (paddlepaddle 3.3).

0 .. n-1, padded from its own start to a multiple of world_size, shuffled with RandomState(epoch) (the epoch goes on by
itself; there is no seed), batches dealt as cards are, the rest of the last round in equal pieces. drop_last leaves that
rest out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.shuffle import MOST_ELEMENTS, Permutation

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class PaddleOrder:
    """DistributedBatchSampler(dataset, batch_size, world_size, rank, shuffle, drop_last).

    Raises:
        JobError: too many samples for 32 bits.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if n_samples > MOST_ELEMENTS - spec.world_size:
            raise JobError(f"{n_samples} samples are more than {MOST_ELEMENTS}", 'narrow "root"', "root")
        self._spec = spec
        self._n_samples = n_samples
        self._per_rank = -(-n_samples // spec.world_size)
        self._order = lru_cache(maxsize=EPOCHS_KEPT)(self._make)

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        rest = self._per_rank % self._spec.batch_size
        return self._per_rank - rest if self._spec.drop_last else self._per_rank

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (stream_length(epoch),)."""
        batch, world = self._spec.batch_size, self._spec.world_size
        order = self._order(epoch)
        rounds, rest = divmod(self._per_rank, batch)
        whole = order[: rounds * batch * world].reshape(rounds, world, batch)[:, rank].reshape(-1)
        if rest and not self._spec.drop_last:
            start = rounds * batch * world + rank * rest
            whole = np.concatenate([whole, order[start : start + rest]])
        return whole.astype(np.int64)

    def _make(self, epoch: int) -> Permutation:
        order = np.arange(self._per_rank * self._spec.world_size, dtype=np.int32)
        order %= max(self._n_samples, 1)
        if self._spec.shuffle:
            np.random.RandomState(epoch).shuffle(order)
        return order
