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
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.checkpoints import Checkpoints
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.shuffle import Permutation, shuffle_from_targets

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


# -- std::shuffle of GNU's C++ library, without a loop over the elements
#
# In: how many elements, a generator. Out: the permutation. Source: libstdc++ of GCC 11 and later: bits/stl_algo.h
# (shuffle, __gen_two_uniform_ints), bits/uniform_int_dist.h (operator(), _S_nd: Lemire, "Fast Random Integer Generation
# in an Interval", 2019).
#
# The shuffle grows: for i in 1 .. n-1, swap r[i] with r[j], 0 <= j <= i. While n^2 fits the generator's range, one
# drawn number below (i+1)(i+2) gives two partners. A number below b comes from a word w of B bits as w*b >> B, and w is
# drawn again if the low bits of w*b are below 2^B mod b: seldom enough that words are taken for all first, and what
# follows a word that was drawn again is done once more.

Numbers = npt.NDArray[np.uint64]
Bits = Literal[32, 64]

# How many draws are made at once: about as many as there are before the next word that has to be drawn again, because
# the draws behind that one are lost.
_MOST_AT_ONCE = 1 << 14
_FEWEST_AT_ONCE = 1 << 8
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


class Words(Protocol):
    """A generator."""

    def take(self, count: int) -> npt.NDArray[np.unsignedinteger]:
        """The next words, shape (count,)."""


def shuffle_mt19937(n: int, seed: int) -> Permutation:
    """The source of each element after std::shuffle(..., std::mt19937(seed)), shape (n,), 0 <= n < 2^31."""
    return _shuffle(n, TorchWords(seed), 32)


def shuffle_mt19937_64(n: int, seed: int) -> Permutation:
    """The source of each element after std::shuffle(..., std::mt19937_64(seed)), shape (n,), 0 <= n < 2^31."""
    return _shuffle(n, Mt64Words(seed), 64)


def _shuffle(n: int, words: Words, bits: Bits) -> Permutation:
    targets = np.zeros(n, dtype=np.int64)
    if n < 2:
        return shuffle_from_targets(targets, "growing")
    if ((1 << bits) - 1) // n < n:
        targets[1:] = below(np.arange(2, n + 1, dtype=np.uint64), words, bits)
        return shuffle_from_targets(targets, "growing")
    first = 1 + (n % 2 == 0)  # pairs of what is left, after one element alone if need be
    sizes = np.arange(first + 1, n + 1, 2, dtype=np.uint64)
    above = sizes + np.uint64(1)
    alone = np.array([2] * (first - 1), dtype=np.uint64)
    drawn = below(np.append(alone, sizes * above), words, bits)
    targets[1:first] = drawn[: first - 1]
    targets[first::2], targets[first + 1 :: 2] = np.divmod(drawn[first - 1 :], above)
    return shuffle_from_targets(targets, "growing")


def below(bounds: Numbers, words: Words, bits: Bits) -> Numbers:
    """Return a number below each bound, as std::uniform_int_distribution draws them one after another.

    Args:
        bounds: at least 1, and at most as many bits as a word, shape (n,).
        words: the generator; more may be taken from it than is used.
        bits: how many bits a word has.
    """
    drawn = np.empty(len(bounds), dtype=np.uint64)
    left = np.empty(0, dtype=np.uint64)
    start = 0
    while start < len(bounds):
        at_once = min(max((1 << bits) // int(bounds[start]), _FEWEST_AT_ONCE), _MOST_AT_ONCE)
        some = bounds[start : start + at_once]
        if len(left) < len(some):
            left = np.append(left, words.take(_MOST_AT_ONCE).astype(np.uint64))
        numbers, again = _scaled(left[: len(some)], some, bits)
        good = len(some) if not again.any() else int(again.argmax())
        drawn[start : start + good] = numbers[:good]
        start += good
        left = left[good + (good < len(some)) :]  # without the word that is drawn again
    return drawn


def _scaled(words: Numbers, bounds: Numbers, bits: Bits) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The numbers that words give, and which of the words have to be drawn again."""
    low_product = words * bounds  # modulo 2^64
    if bits == 32:
        low = low_product & _LOW
        return low_product >> _32, low < (np.uint64(1 << 32) - bounds) % bounds
    return _high(words, bounds), low_product < (np.uint64(0) - bounds) % bounds


def _high(a: Numbers, b: Numbers) -> Numbers:
    """The high 64 bits of the products of 128 bits."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a_high * b_low + (a_low * b_low >> _32)
    other = a_low * b_high + (middle & _LOW)
    result: Numbers = a_high * b_high + (middle >> _32) + (other >> _32)
    return result


# -- the words of C++'s std::mt19937_64, which numpy does not have
#
# In: a seed of 64 bits. Out: the words, in order. Source: Nishimura, "Tables of 64-bit Mersenne Twisters" (2000); the
# C++ standard, [rand.eng.mers].
#
# 312 words are a state. The next state's word k follows from words k, k+1 and k+156 (of the next state where there is
# one already), so half a state can be made at once.

_SIZE = 312
_HALF = 156
_MASK = (1 << 64) - 1
_MATRIX = np.uint64(0xB5026F5AA96619E9)
_UPPER = np.uint64(0xFFFFFFFF80000000)
_LOWER = np.uint64(0x7FFFFFFF)
_ONE = np.uint64(1)


class Mt64Words:
    """The words of one seeded generator."""

    def __init__(self, seed: int) -> None:
        values = [seed & _MASK]
        for index in range(1, _SIZE):
            values.append((6364136223846793005 * (values[-1] ^ (values[-1] >> 62)) + index) & _MASK)
        self._state = np.array(values, dtype=np.uint64)
        self._left = np.empty(0, dtype=np.uint64)

    def take(self, count: int) -> Numbers:
        """Return the next `count` words, shape (count,)."""
        missing = count - len(self._left)
        parts = [self._left]
        for _ in range(-(-missing // _SIZE)):
            self._twist()
            parts.append(_tempered(self._state))
        words = np.concatenate(parts)
        self._left = words[count:]
        return words[:count]

    def _twist(self) -> None:
        state = self._state
        following = np.append(state[1:], state[:1])
        # The last word is followed by the first of the new state: made before it is needed.
        new = np.empty_like(state)
        new[:_HALF] = _next(state[:_HALF], following[:_HALF], state[_HALF:])
        following[-1] = new[0]
        new[_HALF:] = _next(state[_HALF:], following[_HALF:], new[:_HALF])
        self._state = new


def _next(words: Numbers, following: Numbers, far: Numbers) -> Numbers:
    mixed = (words & _UPPER) | (following & _LOWER)
    result: Numbers = far ^ (mixed >> _ONE) ^ ((mixed & _ONE) * _MATRIX)
    return result


def _tempered(words: Numbers) -> Numbers:
    words = words ^ ((words >> np.uint64(29)) & np.uint64(0x5555555555555555))
    words ^= (words << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
    words ^= (words << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
    words ^= words >> np.uint64(43)
    return words
