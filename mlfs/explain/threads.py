"""Reads of threads that share one process: what they tell of an order, though they come in nearly that order only.

Pure. In: where a process' first reads stand in an order. Out: bits of evidence. Called by `mlfs.explain.recipes` and
`mlfs.explain.choice`, for readers such as tf.data's parallel map.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

# How far behind the oldest sample that is still being read a thread may be: two for each of sixteen cores.
REACH = 32
# One read in eight may be of something else, such as a look at a file before training.
_LEAST_SHARE = 0.875


def bits_near_the_start(places: Sequence[int], n: int) -> float:
    """How much evidence it is that so many of a process' first reads stand at the start of an order of n samples.

    Args:
        places: of the reads, in the order of time; -1 for those that are not in the order.
    """
    near = [at for at, place in enumerate(places) if 0 <= place <= at + REACH]
    if len(near) < _LEAST_SHARE * len(places):
        return 0.0
    return sum(log2(max(1.0, n / (at + REACH + 1))) for at in near)
