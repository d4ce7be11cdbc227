"""torch.randperm on the CPU, bit for bit, without torch and without a loop over the elements.

In: how many elements, and a seed. Out: the permutation. Called by the samplers of `mlfs.orders`.
Source: randperm_cpu in ATen/native/TensorFactories.cpp (torch 2.13).

torch shuffles forward: for i in 0 .. n-2, swap r[i] with r[j_i], where j_i = i + word % (n - i). Swaps depend on each
other, so they are not followed one by one; the result is read off the list of all j_i:

- Position x >= i is touched before step i only as the target j_k = x of earlier steps k. What step k leaves there
  is what stood at position k before step k. Call that value V(k).
- So V(k) = V(m) for the last m < k with j_m = k, and V(k) = k if there is none: V is the root of a chain of parents.
- Step i takes to r[i] what stood at j_i: V(k) of the last k < i with j_k = j_i, and j_i itself if there is none.

Sorting the pairs (j_i, i) puts "the last k before i with the same target" next to i; pointer doubling finds all roots,
in about log2(log n) + 3 rounds as the chains are O(log n) long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.orders.mt19937 import TorchWords

# From here on torch shuffles inside out with 64-bit words. No one has that many files in one directory tree, so the
# other rule is not written: an untested order would be worse than a clear error.
TORCH_32BIT_LIMIT = (1 << 32) // 20


def randperm(n: int, seed: int) -> npt.NDArray[np.int32]:
    """Return `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.

    Args:
        n: number of elements, 0 <= n < `TORCH_32BIT_LIMIT` (214,748,364).
        seed: any integer; torch uses its low 32 bits.

    Returns:
        Shape (n,); int32 holds every value and halves what a cached epoch costs (torch answers int64).

    Raises:
        ValueError: n is negative or not below the limit.
    """
    if not 0 <= n < TORCH_32BIT_LIMIT:
        raise ValueError(f"cannot permute {n} samples: 0 to {TORCH_32BIT_LIMIT - 1} are supported")
    if n < 2:
        return np.arange(n, dtype=np.int32)
    pairs = _sorted_swaps(n, seed)
    steps = pairs.astype(np.uint32).view(np.int32)  # the low word
    pairs >>= np.uint64(32)
    targets = pairs.astype(np.uint32).view(np.int32)
    del pairs
    return _follow(steps, targets)


def _sorted_swaps(n: int, seed: int) -> npt.NDArray[np.uint64]:
    """Return j_i << 32 | i for i in 0 .. n-1, sorted; the last element counts as swapped with itself."""
    targets = np.zeros(n, dtype=np.uint32)
    np.remainder(TorchWords(seed).take(n - 1), np.arange(n, 1, -1, dtype=np.uint32), out=targets[:-1])
    steps = np.arange(n, dtype=np.uint32)
    targets += steps
    pairs = targets.astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= steps
    pairs.sort()
    return pairs


def _follow(steps: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the permutation from the steps and their targets, both sorted by (target, step), shape (n,)."""
    same = targets[1:] == targets[:-1]
    roots = _roots(steps, targets, same)
    repeated = np.flatnonzero(same)
    values = targets.copy()
    values[repeated + 1] = roots[steps[repeated]]
    result = np.empty_like(values)
    result[steps] = values
    return result


def _roots(
    steps: npt.NDArray[np.int32], targets: npt.NDArray[np.int32], same: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """Return V(k) for every position k: the root of its chain of parents, shape (n,).

    `same[t]` says that the pairs t and t+1 have one target. A step that swaps a position with itself becomes its own
    parent here, which is not its V; nobody asks for that one, as no later step has the same target.
    """
    # Only the last step to a target is assigned: numpy promises no order for an assignment with repeated indices.
    last = np.append(~same, True)
    climbing = targets[last]
    parents = np.arange(len(steps), dtype=np.int32)
    parents[climbing] = steps[last]
    heights = parents[climbing]
    while len(climbing):
        above = parents[heights]
        higher = np.flatnonzero(above != heights)
        climbing, heights = climbing[higher], above[higher]
        parents[climbing] = heights
    return parents
