"""Deals one epoch's order to the ranks.

In: sizes and a rank. Out: the positions of the epoch's order that the rank takes. Called by the samplers.
Source: torch/utils/data/distributed.py (torch 2.13); accelerate/data_loader.py, BatchSamplerShard (accelerate 1.15).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

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


def batch_length(n: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> int:
    """The number of positions that rank 0 takes of `batch_positions`, without a list of them: n may be billions."""
    rounds, rest = divmod(batch_total(n, world_size, batch_size, even, drop_last), world_size * batch_size)
    return rounds * batch_size + min(rest, batch_size)


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


def by_samples_to_workers(n: int, batch_size: int, workers: int) -> Indices:
    """The positions 0 .. n-1 in the order in which worker processes read them that take each so many-th sample.

    Worker w of W takes samples w, w + W, ... and makes batches of them; the loader takes one of each worker in turn.
    """
    positions = np.arange(n, dtype=np.int64)
    worker, own = positions % workers, positions // workers
    batch = own // batch_size
    return positions[np.lexsort((own, worker, batch))]


class Dealing(NamedTuple):
    """A way in which n positions are dealt to ranks.

    Attributes:
        length: of the rank that gets most, by (n, world_size, drop_last, batch_size).
        positions: those of a rank in order, by (n, rank, world_size, drop_last, batch_size).
    """

    length: Callable[[int, int, bool, int], int]
    positions: Callable[[int, int, int, bool, int], Indices]


def _every_nth(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """indices[rank::world_size]; with drop_last equally many for all ranks."""
    positions = np.arange(rank, n, world_size, dtype=np.int64)
    return positions[: n // world_size] if drop_last else positions


def _contiguous(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """np.array_split's pieces, the first ones longer by one; with drop_last all are equally long."""
    each, longer = divmod(n, world_size)
    if drop_last:
        return np.arange(rank * each, (rank + 1) * each, dtype=np.int64)
    start = rank * each + min(rank, longer)
    return np.arange(start, start + each + (rank < longer), dtype=np.int64)


def _pieces(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Pieces of equal length, rounded up, of which the last ranks have what is left; with drop_last rounded down."""
    length = rank_length(n, world_size, drop_last)
    return np.arange(min(rank * length, n), min((rank + 1) * length, n), dtype=np.int64)


def _padded_pieces(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """The same, filled up from the start, as fastai's DistributedDL does."""
    length = rank_length(n, world_size, drop_last)
    return np.arange(rank * length, (rank + 1) * length, dtype=np.int64) % max(n, 1)


def _batches(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Whole batches as cards are dealt; with drop_last without the last round, if it is not full."""
    return batch_positions(n, rank, world_size, batch_size, even=False, drop_last=drop_last)


def _even_batches(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """The same, with the last round of several ranks filled up from the start."""
    return batch_positions(n, rank, world_size, batch_size, even=world_size > 1, drop_last=drop_last)


def _first(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Rank 0 reads all, and sends it to the others; with drop_last whole batches."""
    return np.arange(0 if rank else n - n % batch_size if drop_last else n, dtype=np.int64)


DEALINGS: Final[Mapping[str, Dealing]] = {
    "strided": Dealing(lambda n, world, drop, batch: rank_length(n, world, drop), _every_nth),
    "padded": Dealing(
        lambda n, world, drop, batch: rank_length(n, world, drop),
        lambda n, rank, world, drop, batch: rank_positions(n, rank, world, drop),
    ),
    "contiguous": Dealing(lambda n, world, drop, batch: rank_length(n, world, drop), _contiguous),
    "pieces": Dealing(lambda n, world, drop, batch: rank_length(n, world, drop), _pieces),
    "padded-pieces": Dealing(lambda n, world, drop, batch: rank_length(n, world, drop), _padded_pieces),
    "batches": Dealing(
        lambda n, world, drop, batch: batch_length(n, world, batch, even=False, drop_last=drop), _batches
    ),
    "even-batches": Dealing(
        lambda n, world, drop, batch: batch_length(n, world, batch, even=world > 1, drop_last=drop), _even_batches
    ),
    "first": Dealing(lambda n, world, drop, batch: n, _first),
    "alike": Dealing(lambda n, world, drop, batch: n, lambda n, rank, world, drop, batch: np.arange(n, dtype=np.int64)),
}
"""Each by the name that a job gives it: every world_size-th sample, the same with padding, pieces whose lengths
differ by one, pieces of one length, the same with padding, whole batches, the
same filled up from the start, all samples to rank 0, all samples to each rank."""
