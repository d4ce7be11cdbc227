"""The sampler "grain": Grain's IndexSampler under a grain.python.DataLoader.

In: a job's seed, shuffle, drop_last (drop_remainder), epochs (num_epochs); world_size is shard_count, a rank its
shard_index. Out: each rank's dataset indices. Made by `mlfs.orders.registry`. Source: grain/_src/python/samplers.py
(IndexSampler), core/sharding.py (even_split), python/dataset/transformations/shuffle.py (Grain 0.2.18).

A shard is a contiguous range, shuffled in itself by seed + epoch (modulo 2^32); without drop_remainder the first shards
are one longer than the others. The sampler ends after num_epochs * num_records records of the whole world, dealt to the
shards in turn: a longer shard then misses the end of its last epoch, and a shorter one begins an epoch more. That
beginning counts as the end of the last epoch here.

The worker processes of a DataLoader take single samples in turn, not batches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.index_shuffle import index_shuffle
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_SEEDS = 1 << 32


class GrainOrder:
    """Each shard's own shuffle, epoch by epoch.

    Raises:
        JobError: a seed that Grain refuses, or shards without samples.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle and not 0 <= spec.seed < _SEEDS:
            raise JobError(f'job field "seed" is {spec.seed}, must be from 0 to {_SEEDS - 1} for Grain', "", "seed")
        if n_samples < spec.world_size:
            hint = "Grain cannot shuffle a shard without samples"
            raise JobError(f"{n_samples} samples cannot be {spec.world_size} shards", hint, "world_size")
        self._spec = spec
        self._n_samples = n_samples
        self._shuffled = lru_cache(maxsize=2 * EPOCHS_KEPT)(index_shuffle)

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most."""
        size, remainder = divmod(self._n_samples, self._spec.world_size)
        if self._spec.drop_last or not remainder:
            return size
        if epoch + 1 < self._spec.epochs:
            return size + 1
        return max(self._last_length(rank) for rank in (0, remainder))

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (<= stream_length(epoch),)."""
        if epoch + 1 < self._spec.epochs:
            return self._epoch(epoch, rank)
        length = self._last_length(rank)
        stream = self._epoch(epoch, rank)[:length]
        while len(stream) < length:
            epoch += 1
            stream = np.append(stream, self._epoch(epoch, rank)[: length - len(stream)])
        return stream

    def _epoch(self, epoch: int, rank: int) -> Indices:
        """The shard in the order in which it is read in an epoch."""
        size = self._size(rank)
        start = rank * (self._n_samples // self._spec.world_size)
        if not self._spec.drop_last:
            start += min(rank, self._n_samples % self._spec.world_size)
        if not self._spec.shuffle:
            return np.arange(start, start + size, dtype=np.int64)
        return start + self._shuffled(size, (self._spec.seed + epoch) % _SEEDS)

    def _size(self, rank: int) -> int:
        size, remainder = divmod(self._n_samples, self._spec.world_size)
        return size + (rank < remainder and not self._spec.drop_last)

    def _last_length(self, rank: int) -> int:
        """Samples that the rank reads in the last epoch, with what it reads of one more."""
        size, world_size, epochs = self._size(rank), self._spec.world_size, self._spec.epochs
        if self._spec.drop_last:
            return size
        records = epochs * self._n_samples
        return -(-(records - rank) // world_size) - (epochs - 1) * size
