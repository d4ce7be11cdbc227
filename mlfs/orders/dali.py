"""The sampler "dali": DALI's readers.file (and what shares its loader), on any device.

In: a job's shuffle (random_shuffle, off by default), shuffle_after_epoch, stick_to_shard, dali_version; world_size is
num_shards, a rank its shard_id. Out: each rank's dataset indices. Made by `mlfs.orders.registry`.
Source: dali/operators/reader/loader/file_label_loader.h and loader.h (DALI 2.4).

The reader opens files in the order of its list; what it hands out is drawn from a buffer behind that (initial_fill,
seed), which the file system never sees. So the user's seed changes nothing, nor does pad_last_batch, which repeats
samples in memory.

- random_shuffle: one shuffle of the list, by a seed that is built in, at the start.
- shuffle_after_epoch: the list is shuffled before each epoch, the first one too, on top of the shuffles before. DALI up
  to 2.1 seeds with a constant plus the epoch, later ones with the epoch above the constant. (A pipeline built with
  enable_checkpointing begins each epoch anew from the unshuffled list: not predicted.)
- Shards are contiguous. A reader goes on to the next shard after each epoch, unless stick_to_shard or
  shuffle_after_epoch is set.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.checkpoints import Checkpoints
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.shuffle import Permutation
from mlfs.orders.std_shuffle import shuffle_mt19937, shuffle_mt19937_64

if TYPE_CHECKING:
    from mlfs.job import JobSpec

SEED = 524287  # kDaliDataloaderSeed
_WIDE_SEED_SINCE = (2, 2)


class DaliOrder:
    """The reader's list, epoch by epoch, and the shard of it that a rank reads."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle and spec.shuffle_after_epoch:
            hint = '"shuffle" is random_shuffle; DALI takes one of the two'
            raise JobError("shuffle and shuffle_after_epoch cannot both be true", hint, "shuffle_after_epoch")
        if spec.stick_to_shard and spec.shuffle_after_epoch:
            hint = "DALI takes one of the two; shuffle_after_epoch sticks to the shard by itself"
            raise JobError("stick_to_shard and shuffle_after_epoch cannot both be true", hint, "stick_to_shard")
        if spec.world_size > n_samples:
            hint = "DALI refuses to read more shards than there are samples"
            raise JobError(f"{n_samples} samples cannot be {spec.world_size} shards", hint, "world_size")
        self._spec = spec
        self._n_samples = n_samples
        self._sticks = bool(spec.stick_to_shard or spec.shuffle_after_epoch)
        version = tuple(int(part) for part in re.findall(r"\d+", spec.dali_version or "")[:2])
        self._wide_seed = not version or version >= _WIDE_SEED_SINCE
        first = np.arange(n_samples, dtype=np.int32)
        self._shuffled_once = lru_cache(maxsize=1)(self._shuffle_once)
        self._shuffled = Checkpoints(first, self._shuffle_again, most=0)

    def stream_length(self, epoch: int) -> int:
        """Samples of the largest shard."""
        return -(-self._n_samples // self._spec.world_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (<= stream_length(epoch),)."""
        world_size = self._spec.world_size
        shard = rank if self._sticks else (rank + epoch) % world_size
        start = self._n_samples * shard // world_size
        stop = self._n_samples * (shard + 1) // world_size
        if self._spec.shuffle_after_epoch:
            return self._shuffled.after(epoch)[start:stop].astype(np.int64)
        if self._spec.shuffle:
            return self._shuffled_once()[start:stop].astype(np.int64)
        return np.arange(start, stop, dtype=np.int64)

    def _shuffle_once(self) -> Permutation:
        return shuffle_mt19937(self._n_samples, SEED)

    def _shuffle_again(self, before: Permutation, epoch: int) -> Permutation:
        count = epoch + 1  # the reader counts epochs from 1
        if self._wide_seed:
            return before[shuffle_mt19937_64(self._n_samples, count << 32 | SEED)]
        return before[shuffle_mt19937(self._n_samples, SEED + count)]
