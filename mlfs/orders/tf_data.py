"""The sampler "tf-data": a tf.data pipeline that lists, shards and shuffles file names before it reads files.

In: a job's list_seed, shuffle, buffer_size, seed (or op_seed), global_seed, reshuffle_each_iteration, passes_before,
passes_between; world_size and rank are shard()'s. Out: each rank's dataset indices. Made by `mlfs.orders.registry`.
Source: tensorflow/core/kernels/data/shuffle_dataset_op.cc, seed_generator..., python/data/ops/dataset_ops.py
(list_files, shard), python/framework/random_seed.py (TensorFlow 2.21). The pipeline is

    list_files(pattern, seed=list_seed)     or any list of names, when list_seed is left out: as the layout has them
    .shard(world_size, rank)                or after the shuffle, with shard_first false
    .shuffle(buffer_size, seed, reshuffle_each_iteration)

and what follows (map, interleave, batch, prefetch) leaves the order alone. An epoch is one pass over it, and
passes_before and passes_between say which (`mlfs.orders.passes`): repeat() after the shuffle makes epochs like these;
before the shuffle it mixes them, which is not predicted.

- shuffle(seed=s) takes the seeds (tf.random.set_seed's, or 87654321 when that was not called; s).
- With reshuffle_each_iteration, which is the default, each pass draws two new seeds from a generator of its own.
- The buffer is filled, then each element is drawn from what is left in it: step i hands out one of the elements
  i .. i + buffer_size - 1 that are left, which is a Fisher-Yates shuffle with partners that are not far.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.passes import pass_number
from mlfs.orders.shuffle import Permutation, shuffle_from_targets

if TYPE_CHECKING:
    from mlfs.job import JobSpec

DEFAULT_GLOBAL_SEED = 87654321
_MAX_INT32 = 2**31 - 1

Seeds = tuple[int, int]


def op_seeds(op_seed: int | None, global_seed: int | None) -> Seeds:
    """The two seeds that an operation gets, as random_seed.get_seed makes them.

    Args:
        op_seed: the operation's own; None for that of the first random operation after tf.random.set_seed.
        global_seed: tf.random.set_seed's; None when it was not called.
    """
    if op_seed is None:
        op_seed = random.Random(global_seed).randint(0, _MAX_INT32)
    first = DEFAULT_GLOBAL_SEED if global_seed is None else global_seed % _MAX_INT32
    second = op_seed % _MAX_INT32
    return (0, _MAX_INT32) if (first, second) == (0, 0) else (first, second)


def pass_seeds(seeds: Seeds, number: int, reshuffle: bool) -> Seeds:
    """The seeds of one pass (they count from 0) over a shuffle with the operation's seeds."""
    if not reshuffle:
        return seeds
    first, second = philox_words(*seeds, start=2 * number, count=2).tolist()
    return first, second


def shuffle_pass(n: int, buffer_size: int, seeds: Seeds) -> Permutation:
    """The source of each element in one pass over shuffle(buffer_size), shape (n,)."""
    left = np.arange(n, 0, -1, dtype=np.uint32)
    np.minimum(left, np.uint32(min(buffer_size, n)), out=left)
    targets = philox_words(*seeds, start=0, count=n) % left if n else left
    return shuffle_from_targets(targets + np.arange(n, dtype=np.uint32))


class TfDataOrder:
    """The names as they come out of the last shuffle or shard."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        self._spec = spec
        self._n_samples = n_samples
        is_given = spec.global_seed is None or "seed" in spec.model_fields_set
        own = spec.op_seed if spec.op_seed is not None else spec.seed if is_given else None
        self._seeds = op_seeds(own, spec.global_seed)
        self._reshuffles = spec.reshuffle_each_iteration is not False
        self._listed = lru_cache(maxsize=EPOCHS_KEPT)(self._list)
        self._shuffled = lru_cache(maxsize=EPOCHS_KEPT)(self._shuffle)

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most."""
        return -(-self._n_samples // self._spec.world_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (<= stream_length(epoch),)."""
        world_size = self._spec.world_size
        listed = self._listed(epoch)
        if self._spec.shard_first is False:
            return listed[self._shuffled(epoch, len(listed))][rank::world_size].astype(np.int64)
        shard = listed[rank::world_size]
        return shard[self._shuffled(epoch, len(shard))].astype(np.int64)

    def _list(self, epoch: int) -> Permutation:
        """The names as they are listed; list_files shuffles with a buffer for all, anew in each pass."""
        if self._spec.list_seed is None:
            return np.arange(self._n_samples, dtype=np.int32)
        # A shuffle asks for names with the first that it hands out: a pass that is begun and not read lists nothing.
        begun = (self._spec.passes_before or 0) + epoch if self._spec.shuffle else pass_number(self._spec, epoch)
        seeds = pass_seeds(op_seeds(self._spec.list_seed, self._spec.global_seed), begun, True)
        return shuffle_pass(self._n_samples, self._n_samples, seeds)

    def _shuffle(self, epoch: int, n: int) -> Permutation:
        if not self._spec.shuffle:
            return np.arange(n, dtype=np.int32)
        buffer_size = self._spec.buffer_size or max(1, self._n_samples)
        number = pass_number(self._spec, epoch)
        return shuffle_pass(n, buffer_size, pass_seeds(self._seeds, number, self._reshuffles))


# -- TensorFlow's random words: Philox 4x32 with ten rounds, many blocks at once
#
# In: the two seeds of an operation. Out: 32-bit words. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1,
# 2, 3" (2011); tensorflow/core/lib/random/philox_random.h, random_distributions.h (SingleSampleAdapter), as tf.data
# takes them: the words of a block one after another, block after block.

_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_32 = np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_BLOCK_WORDS = 4

# Blocks made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 12

Words = npt.NDArray[np.uint64]


def philox_words(seed: int, seed2: int, start: int, count: int) -> npt.NDArray[np.uint32]:
    """Return words start .. start + count - 1 of PhiloxRandom(seed, seed2), shape (count,).

    Args:
        seed, seed2: any integers; their low 64 bits count.
        start: 0 or more.
    """
    first, last = start // _BLOCK_WORDS, -(-(start + count) // _BLOCK_WORDS)
    words = np.empty((last - first, _BLOCK_WORDS), dtype=np.uint32)
    for at in range(first, last, _AT_ONCE):
        stop = min(at + _AT_ONCE, last)
        for column, part in enumerate(_blocks(seed, seed2, at, stop)):
            words[at - first : stop - first, column] = part
    skipped = start - first * _BLOCK_WORDS
    return words.reshape(-1)[skipped : skipped + count]


def _blocks(seed: int, seed2: int, start: int, stop: int) -> tuple[Words, Words, Words, Words]:
    """The four words of blocks start .. stop - 1 (below 2^64)."""
    counters = np.arange(start, stop, dtype=np.uint64)
    a, b = counters & _LOW, counters >> _32
    c = np.full_like(counters, seed2 & _MASK)
    d = np.full_like(counters, (seed2 >> 32) & _MASK)
    key = [seed & _MASK, (seed >> 32) & _MASK]
    for _ in range(_ROUNDS):
        product, other = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (other >> _32) ^ b ^ np.uint64(key[0]), (product >> _32) ^ d ^ np.uint64(key[1])
        b, d = other & _LOW, product & _LOW
        key = [(k + weyl) & _MASK for k, weyl in zip(key, _WEYL, strict=True)]
    return a, b, c, d
