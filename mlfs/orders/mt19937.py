"""The stream of 32-bit words of torch's CPU generator, from numpy's MT19937, and torch.randperm, bit for bit.

In: a seed as given to `torch.Generator.manual_seed`. Out: the words that the generator would hand out, in order; a
permutation. Called by the samplers and by what looks for seeds. Sources: ATen/core/MT19937RNGEngine.h,
ATen/CPUGeneratorImpl.cpp; randperm_cpu in ATen/native/TensorFactories.cpp (torch 2.13).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from mlfs.orders.shuffle import Permutation, shuffle_from_targets
from mlfs.orders.stopping import stop_if_asked

# A computation that nobody waits for ends between two portions, and so does one at Ctrl-C: each takes less than a
# millisecond.
AT_ONCE = 1 << 17
_WORD = 1 << 32


class _NoSeed(ISeedSequence):
    """The seed of a generator that is given its state at once: to draw one and to mix it takes ten times as long."""

    _WORDS = np.ones(624, dtype=np.uint32)

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint32]:
        return self._WORDS[:n_words]


_no_seed: Any = _NoSeed()  # numpy documents it, and its types forget it


class TorchWords:
    """The words of one seeded generator.

    torch keeps the low 32 bits of a seed (negative and 64-bit seeds are masked in two's complement) and runs
    init_genrand on them, which is numpy's legacy seeding with one 32-bit integer. So any Python integer will do.

    Attributes:
        rng: numpy's generator. RandomState is frozen (NEP 19): what it draws cannot change under us, unlike private
            names of MT19937.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(np.random.MT19937(_no_seed))
        self.rng.seed(seed % _WORD)

    def take(self, count: int) -> npt.NDArray[np.uint32]:
        """Return the next `count` words, shape (count,)."""
        words = np.empty(count, dtype=np.uint32)
        for start in range(0, count, AT_ONCE):
            stop_if_asked()
            part = words[start : start + AT_ONCE]
            part[:] = self.rng.randint(0, _WORD, len(part), dtype=np.uint32)
        return words

    def skip(self, count: int) -> None:
        """Skip the next `count` words: a double takes two."""
        doubles, odd = divmod(count, 2)
        for start in range(0, doubles, AT_ONCE):
            stop_if_asked()
            self.rng.random_sample(min(AT_ONCE, doubles - start))
        self.take(odd)

    def random_int64_seed(self) -> int:
        """The part of `torch.empty((), dtype=torch.int64).random_()` that counts as a seed: the second of its 2
        words."""
        return int(self.take(2)[1])

    @property
    def state(self) -> tuple[Any, ...]:
        """The state of the generator: 624 words, and which comes next."""
        known: Any = self.rng.get_state()
        return known[1], known[2]

    def go_on_from(self, key: npt.NDArray[np.uint32], place: int) -> None:
        """Have the state that another generator was in."""
        self.rng.set_state(("MT19937", key, place, 0, 0.0))

    def __deepcopy__(self, memo: object) -> TorchWords:
        """Another generator that goes on from the same state."""
        other = TorchWords(0)
        other.go_on_from(*self.state)
        return other


# -- torch.randperm
#
# torch shuffles forward: for i in 0 .. n-2, swap r[i] with r[j_i], where j_i = i + word % (n - i).


# From here on torch shuffles inside out with 64-bit words. No one has that many files in one directory tree, so the
# other rule is not written: an untested order would be worse than a clear error.
TORCH_32BIT_LIMIT = (1 << 32) // 20
MOST_OF_TORCH = TORCH_32BIT_LIMIT - 1


def randperm(n: int, seed: int) -> Permutation:
    """Return `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`. Raises as `words_of_randperm` does.

    int32 holds every value and halves what a cached epoch costs (torch answers int64).
    """
    return next_randperm(n, TorchWords(seed))


def next_randperm(n: int, words: TorchWords) -> Permutation:
    """Return `torch.randperm(n, generator=g)` for the generator that hands out `words`; it takes `words_of_randperm(n)`
    of them."""
    drawn = words.take(words_of_randperm(n))
    targets = np.zeros(n, dtype=np.uint32)  # the last element counts as swapped with itself
    np.remainder(drawn, np.arange(n, n - len(drawn), -1, dtype=np.uint32), out=targets[: len(drawn)])
    targets += np.arange(n, dtype=np.uint32)
    return shuffle_from_targets(targets)


def words_of_randperm(n: int) -> int:
    """How many words of its generator torch.randperm(n) takes.

    Raises:
        ValueError: n is negative or not below the limit.
    """
    if not 0 <= n < TORCH_32BIT_LIMIT:
        raise ValueError(f"cannot permute {n} samples: 0 to {TORCH_32BIT_LIMIT - 1} are supported")
    return max(n - 1, 0)
