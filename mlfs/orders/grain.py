"""The sampler "grain": Grain's IndexSampler under a grain.python.DataLoader.

In: a job's seed, shuffle, drop_last (drop_remainder), epochs (num_epochs); world_size is shard_count, a rank its
shard_index. Out: each rank's dataset indices. Made by `mlfs.orders.registry`. Source: grain/_src/python/samplers.py
(IndexSampler), core/sharding.py (even_split), python/dataset/transformations/shuffle.py (Grain 0.2.18).

A shard is a contiguous range, shuffled in itself by seed + epoch (modulo 2^32); without drop_remainder the first shards
are one longer than the others. The sampler ends after num_epochs * num_records records of the whole world, dealt to the
shards in turn: a longer shard then misses the end of its last epoch, and a shorter one begins an epoch more. Such a
beginning counts as the end of the last epoch here.

The worker processes of a DataLoader take single samples in turn, not batches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
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


# -- Grain's index_shuffle: a permutation that gives any single element at once, here all of them together
#
# In: a length and a seed of 32 bits. Out: the permutation. Source:
# grain/_src/python/experimental/index_shuffle/index_shuffle.cc (Grain 0.2.18): four rounds of the Simon cipher over the
# smallest even number of bits (at least 16) that holds the last index; what comes out too large is encrypted again
# ("cycle walking"). The round keys are std::seed_seq's ([rand.util.seedseq] in the C++ standard).
#
# The number of bits is ceil(log2(last index)), which is one short where the last index is a power of two: then that
# index is encrypted like index 0, and the order has a sample twice and another not at all. We do the same.

Words = npt.NDArray[np.uint64]

ROUNDS = 4
_FEWEST_BITS = 16
_MOST_BITS = 64
_MASK_32 = 0xFFFFFFFF

# Elements made at once, so that they stay in a core's cache.
_AT_ONCE = 1 << 14


def index_shuffle(n: int, seed: int) -> Indices:
    """Return [index_shuffle(i, max_index=n - 1, seed=seed, rounds=4) for i in range(n)], shape (n,), int64.

    Args:
        n: how many elements, 0 or more.
        seed: 0 <= seed < 2^32.
    """
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    last = n - 1
    bits = math.ceil(math.log2(last)) if last > 1 else 0
    bits = min(max(bits + bits % 2, _FEWEST_BITS), _MOST_BITS)
    keys = seed_sequence(seed, ROUNDS)
    if n <= 1 << _FEWEST_BITS:
        return _short(n, keys)
    shuffled = np.empty(n, dtype=np.int64)
    for start in range(0, n, _AT_ONCE):
        stop = min(start + _AT_ONCE, n)
        values = _encrypt(np.arange(start, stop, dtype=np.uint64), keys, bits // 2)
        walking = np.flatnonzero(values > last)
        while len(walking):
            values[walking] = _encrypt(values[walking], keys, bits // 2)
            walking = walking[values[walking] > last]
        shuffled[start:stop] = values
    return shuffled


def _short(n: int, keys: list[int]) -> Indices:
    """The permutation of few elements, whose walks are long: a table of all 16-bit values is encrypted once."""
    table = _encrypt(np.arange(1 << _FEWEST_BITS, dtype=np.uint64), keys, _FEWEST_BITS // 2).tolist()
    shuffled = table[:n]
    for at in range(n):
        while shuffled[at] >= n:
            shuffled[at] = table[shuffled[at]]
    return np.array(shuffled, dtype=np.int64)


def _encrypt(values: Words, keys: list[int], width: int) -> Words:
    """Encrypt blocks of two words of `width` bits."""
    mask = np.uint64((1 << width) - 1)
    left = (values >> np.uint64(width)) & mask
    right = values & mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left ^= _mix(right, width, mask) ^ (np.uint64(first) & mask)
        right ^= _mix(left, width, mask) ^ (np.uint64(second) & mask)
    return (left << np.uint64(width)) | right


def _mix(words: Words, width: int, mask: np.uint64) -> Words:
    by_1, by_8, by_2 = (_rotated(words, by, width, mask) for by in (1, 8, 2))
    result: Words = (by_1 & by_8) ^ by_2
    return result


def _rotated(words: Words, by: int, width: int, mask: np.uint64) -> Words:
    result: Words = ((words << np.uint64(by)) & mask) | (words >> np.uint64(width - by))
    return result


def seed_sequence(seed: int, count: int) -> list[int]:
    """The words that std::seed_seq{seed}.generate() fills `count` 32-bit places with, count below 7."""
    words = [0x8B8B8B8B] * count
    p, q = _offsets(count)
    rounds = max(2, count)
    for k in range(rounds):
        mixed = _scramble(words[k % count] ^ words[(k + p) % count] ^ words[(k - 1) % count])
        r1 = 1664525 * mixed & _MASK_32
        r2 = r1 + (1 if k == 0 else k % count + (seed if k == 1 else 0)) & _MASK_32
        words[(k + p) % count] = (words[(k + p) % count] + r1) & _MASK_32
        words[(k + q) % count] = (words[(k + q) % count] + r2) & _MASK_32
        words[k % count] = r2
    for k in range(rounds, rounds + count):
        r3 = 1566083941 * _scramble(words[k % count] + words[(k + p) % count] + words[(k - 1) % count]) & _MASK_32
        r4 = (r3 - k % count) & _MASK_32
        words[(k + p) % count] ^= r3
        words[(k + q) % count] ^= r4
        words[k % count] = r4
    return words


def _scramble(word: int) -> int:
    word &= _MASK_32
    return word ^ (word >> 27)


def _offsets(count: int) -> tuple[int, int]:
    """p and q of the standard, for few words: t = (count - 1) / 2."""
    t = (count - 1) // 2
    p = (count - t) // 2
    return p, p + t
