"""How torch and accelerate deal one epoch's order to the ranks.

In: sizes and a rank. Out: the positions of the epoch's order that the rank takes. Called by the torch samplers here.
Source: torch/utils/data/distributed.py (torch 2.13); accelerate/data_loader.py, BatchSamplerShard (accelerate 1.15).
"""

from __future__ import annotations

import numpy as np

from mlfs.orders.order import Indices


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


def batch_total(n: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> int:
    """Samples that all ranks read together when whole batches are dealt out: see `batch_positions`."""
    all_ranks = world_size * batch_size
    if drop_last:
        return n // all_ranks * all_ranks
    return -(-n // all_ranks) * all_ranks if even else n


def batch_positions(n: int, rank: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> Indices:
    """The positions 0 .. n-1 that a rank takes, in order, when batches are dealt out as cards are.

    Rank r takes batches r, r + world_size, ... of batch_size. The last round is left out with `drop_last`, filled up
    from the order's start with `even`, and dealt as far as it goes otherwise. Which loader's batch is cut in pieces
    for the ranks (accelerate's split_batches) makes no difference, as batch_size is a rank's.
    """
    total = batch_total(n, world_size, batch_size, even, drop_last)
    starts = np.arange(rank * batch_size, total, world_size * batch_size, dtype=np.int64)
    # A batch may be said to be far larger than all that there is.
    positions = (starts[:, np.newaxis] + np.arange(min(batch_size, total), dtype=np.int64)).reshape(-1)
    return positions[positions < total] % max(n, 1)
