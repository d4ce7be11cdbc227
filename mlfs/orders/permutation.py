"""torch.randperm on the CPU, bit for bit, without torch.

In: how many elements, and a seed or a generator's words. Out: the permutation, or its beginning. Called by the samplers
of `mlfs.orders` and by what looks for seeds. Source: randperm_cpu in ATen/native/TensorFactories.cpp (torch 2.13).

torch shuffles forward: for i in 0 .. n-2, swap r[i] with r[j_i], where j_i = i + word % (n - i).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.shuffle import Permutation, shuffle_from_targets

# From here on torch shuffles inside out with 64-bit words. No one has that many files in one directory tree, so the
# other rule is not written: an untested order would be worse than a clear error.
TORCH_32BIT_LIMIT = (1 << 32) // 20
MOST_OF_TORCH = TORCH_32BIT_LIMIT - 1


def randperm(n: int, seed: int) -> Permutation:
    """Return `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.

    Args:
        n: number of elements, 0 <= n < `TORCH_32BIT_LIMIT` (214,748,364).
        seed: any integer; torch uses its low 32 bits.

    Returns:
        Shape (n,); int32 holds every value and halves what a cached epoch costs (torch answers int64).

    Raises:
        ValueError: n is negative or not below the limit.
    """
    return next_randperm(n, TorchWords(seed))


def next_randperm(n: int, words: TorchWords) -> Permutation:
    """Return `torch.randperm(n, generator=g)` for the generator that hands out `words`; takes `words_of_randperm(n)`.

    Raises:
        ValueError: as `randperm` does.
    """
    return shuffle_from_targets(_targets(n, words.take(words_of_randperm(n))))


def words_of_randperm(n: int) -> int:
    """How many words of its generator torch.randperm(n) takes.

    Raises:
        ValueError: as `randperm` does.
    """
    if not 0 <= n < TORCH_32BIT_LIMIT:
        raise ValueError(f"cannot permute {n} samples: 0 to {TORCH_32BIT_LIMIT - 1} are supported")
    return max(n - 1, 0)


def _targets(n: int, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return j_i for i in 0 .. n-1 as uint32; the last element counts as swapped with itself."""
    targets = np.zeros(n, dtype=np.uint32)
    np.remainder(words, np.arange(n, n - len(words), -1, dtype=np.uint32), out=targets[: len(words)])
    targets += np.arange(n, dtype=np.uint32)
    return targets
