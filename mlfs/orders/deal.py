"""Deals one epoch's order to the ranks, and a rank's part of it to the workers of its loader.

In: sizes and a rank. Out: the positions of the epoch's order that the rank takes. Called by `mlfs.orders.composed`.
Sources: torch/utils/data/distributed.py (torch 2.13); accelerate/data_loader.py, BatchSamplerShard (accelerate 1.15);
paddle/io/dataloader/batch_sampler.py (paddlepaddle 3.3); dali/operators/reader/loader/loader.h (DALI 2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import Indices


class Dealing(NamedTuple):
    """A way in which n positions are dealt to ranks.

    Attributes:
        length: of the rank that gets most, by (n, world_size, drop_last, batch_size).
        positions: those of a rank in order, by (n, rank, world_size, drop_last, batch_size).
    """

    length: Callable[[int, int, bool, int], int]
    positions: Callable[[int, int, int, bool, int], Indices]


def in_turn(parts: Sequence[npt.NDArray[Any]], batch_size: int) -> npt.NDArray[Any]:
    """The parts of a loader's workers in the order in which it reads them: a batch of each worker in turn."""
    number = np.concatenate([np.arange(len(part)) // batch_size for part in parts])
    return np.concatenate(parts)[np.argsort(number, kind="stable")]


def _equal(n: int, world_size: int, drop_last: bool, batch_size: int = 1) -> int:
    """Samples per rank: n / world_size rounded down with drop_last, up without."""
    return n // world_size if drop_last else -(-n // world_size)


def _all(n: int, world_size: int, drop_last: bool, batch_size: int) -> int:
    return n


def _every_nth(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """indices[rank::world_size]; with drop_last equally many for all ranks."""
    positions = np.arange(rank, n, world_size, dtype=np.int64)
    return positions[: n // world_size] if drop_last else positions


def _padded(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """The same, of an order that goes on from its own start, as often as needed, until all have equally many.

    So with n < world_size a position can come up for several ranks.
    """
    total = _equal(n, world_size, drop_last) * world_size
    positions = np.arange(rank, total, world_size, dtype=np.int64)
    if total > n:
        positions %= n
    return positions


def _contiguous(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """np.array_split's pieces, the first ones longer by one; with drop_last all are equally long."""
    each, longer = divmod(n, world_size)
    if drop_last:
        return np.arange(rank * each, (rank + 1) * each, dtype=np.int64)
    start = rank * each + min(rank, longer)
    return np.arange(start, start + each + (rank < longer), dtype=np.int64)


def _shards(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Pieces between rounded borders, as DALI has them."""
    return np.arange(n * rank // world_size, n * (rank + 1) // world_size, dtype=np.int64)


def _pieces(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Pieces of equal length, rounded up, of which the last ranks have what is left; with drop_last rounded down."""
    length = _equal(n, world_size, drop_last)
    return np.arange(min(rank * length, n), min((rank + 1) * length, n), dtype=np.int64)


def _padded_pieces(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """The same, filled up from the start, as fastai's DistributedDL does."""
    length = _equal(n, world_size, drop_last)
    return np.arange(rank * length, (rank + 1) * length, dtype=np.int64) % max(n, 1)


def _batch_total(n: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> int:
    """Samples that all ranks read together when whole batches are dealt out: see `_batch_positions`."""
    all_ranks = world_size * batch_size
    if drop_last:
        return n // all_ranks * all_ranks
    return -(-n // all_ranks) * all_ranks if even else n


def _batch_length(n: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> int:
    rounds, rest = divmod(_batch_total(n, world_size, batch_size, even, drop_last), world_size * batch_size)
    return rounds * batch_size + min(rest, batch_size)


def _batch_positions(n: int, rank: int, world_size: int, batch_size: int, even: bool, drop_last: bool) -> Indices:
    """The positions 0 .. n-1 that a rank takes, in order, when batches are dealt out as cards are.

    Rank r takes batches r, r + world_size, ... of batch_size. The last round is left out with `drop_last`, filled up
    from the order's start with `even`, and dealt as far as it goes otherwise. Which loader's batch is cut in pieces
    for the ranks (accelerate's split_batches) makes no difference, as batch_size is a rank's.
    """
    total = _batch_total(n, world_size, batch_size, even, drop_last)
    starts = np.arange(rank * batch_size, total, world_size * batch_size, dtype=np.int64)
    # A batch may be said to be far larger than all that there is.
    positions = (starts[:, np.newaxis] + np.arange(min(batch_size, total), dtype=np.int64)).reshape(-1)
    return positions[positions < total] % max(n, 1)


def _batches_and_pieces(n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
    """Whole batches as cards are dealt, and equal pieces of the rest, as Paddle has them, of n = world_size * k."""
    rest = n // world_size % batch_size
    whole = n - rest * world_size
    mine = _batch_positions(whole, rank, world_size, batch_size, even=False, drop_last=True)
    start = whole + rank * rest
    return mine if drop_last else np.append(mine, np.arange(start, start + rest, dtype=np.int64))


DEALINGS: Final[Mapping[str, Dealing]] = {
    "strided": Dealing(_equal, _every_nth),
    "padded": Dealing(_equal, _padded),
    "contiguous": Dealing(_equal, _contiguous),
    "shards": Dealing(lambda n, world, drop, batch: -(-n // world), _shards),
    "pieces": Dealing(_equal, _pieces),
    "padded-pieces": Dealing(_equal, _padded_pieces),
    "batches": Dealing(
        lambda n, world, drop, batch: _batch_length(n, world, batch, False, drop),
        lambda n, rank, world, drop, batch: _batch_positions(n, rank, world, batch, False, drop),
    ),
    "even-batches": Dealing(
        lambda n, world, drop, batch: _batch_length(n, world, batch, world > 1, drop),
        lambda n, rank, world, drop, batch: _batch_positions(n, rank, world, batch, world > 1, drop),
    ),
    "batches-and-pieces": Dealing(
        lambda n, world, drop, batch: n // world - n // world % batch * drop, _batches_and_pieces
    ),
    # Rank 0 reads all, and sends it to the others; with drop_last whole batches.
    "first": Dealing(
        _all, lambda n, rank, world, drop, batch: np.arange(0 if rank else n - n % batch * drop, dtype=np.int64)
    ),
    "alike": Dealing(_all, lambda n, rank, world, drop, batch: np.arange(n, dtype=np.int64)),
}
"""Each by the name that a job gives it."""
