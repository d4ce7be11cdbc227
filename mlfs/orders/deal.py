"""How torch deals one epoch's order to the ranks.

In: sizes and a rank. Out: the positions of the epoch's order that the rank takes. Called by the torch samplers here.
Source: torch/utils/data/distributed.py (torch 2.13).
"""

from __future__ import annotations

import numpy as np

from mlfs.orders.contract import Indices


def rank_length(n: int, world_size: int, drop_last: bool) -> int:
    """Samples per rank: n / world_size rounded down with drop_last, up (by padding) without."""
    return n // world_size if drop_last else -(-n // world_size)


def rank_positions(n: int, rank: int, world_size: int, drop_last: bool) -> Indices:
    """The positions 0 .. n-1 that a rank takes, in order, shape (rank_length(n, world_size, drop_last),).

    Every world_size-th one from `rank` on. Without drop_last the order is continued from its own start, as often as
    needed, until all ranks have equally many; so with n < world_size a position can come up for several ranks.
    """
    total = rank_length(n, world_size, drop_last) * world_size
    positions = np.arange(rank, total, world_size, dtype=np.int64)
    if total > n:
        positions %= n
    return positions
