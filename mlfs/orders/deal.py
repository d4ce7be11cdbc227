"""Deals one epoch's order to the ranks, and a rank's part of it to the workers of its loader.

In: sizes and a rank. Out: the positions of the epoch's order that the rank takes. Called by `mlfs.orders.composed`.
Sources: torch/utils/data/distributed.py (torch 2.13); accelerate/data_loader.py, BatchSamplerShard (accelerate 1.15);
fastai/distributed.py, DistributedDL; paddle/io/dataloader/batch_sampler.py (paddlepaddle 3.3);
dali/operators/reader/loader/loader.h (DALI 2.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import Indices

Pattern = Literal["every-nth", "piece", "even-piece", "shard", "batch", "batch-and-piece", "first", "all"]
"""By it a rank takes every world_size-th position, a piece of one length of which the last ranks have what is left, one
of np.array_split's pieces (the first ones longer by one), a piece between rounded borders, whole batches as cards are
dealt, the same with equal pieces of the rest, all as rank 0 (which sends it on), or all."""


def in_turn(parts: Sequence[npt.NDArray[Any]], batch_size: int) -> npt.NDArray[Any]:
    """The parts of a loader's workers in the order in which it reads them: a batch of each worker in turn."""
    number = np.concatenate([np.arange(len(part)) // batch_size for part in parts])
    return np.concatenate(parts)[np.argsort(number, kind="stable")]


class Dealing(NamedTuple):
    """A way in which n positions are dealt to ranks.

    With drop_last all ranks have equally many positions, or whole batches.

    Attributes:
        is_padded: whether the order goes on from its own start, as often as needed, until all ranks have equally many
            positions, or whole batches where there are several ranks.
    """

    pattern: Pattern
    is_padded: bool = False

    def length(self, n: int, world_size: int, drop_last: bool, batch_size: int) -> int:
        """How many positions the rank with most gets, without a list of them: n may be billions."""
        total = self._total(n, world_size, drop_last, batch_size)
        if self.pattern == "batch":
            rounds, rest = divmod(total, world_size * batch_size)
            return rounds * batch_size + min(rest, batch_size)
        if self.pattern == "batch-and-piece":
            return total // world_size - total // world_size % batch_size * drop_last
        if self.pattern == "first":
            return n - n % batch_size * drop_last
        return n if self.pattern == "all" else -(-total // world_size)

    def positions(self, n: int, rank: int, world_size: int, drop_last: bool, batch_size: int) -> Indices:
        """The positions that a rank gets, in order."""
        total = self._total(n, world_size, drop_last, batch_size)
        begin, end, step = 0, total, 1
        if self.pattern == "every-nth":
            begin, step = rank, world_size
        elif self.pattern == "piece":
            length = -(-total // world_size)
            begin, end = min(rank * length, total), min((rank + 1) * length, total)
        elif self.pattern == "even-piece":
            each, longer = divmod(total, world_size)
            begin = rank * each + min(rank, longer)
            end = begin + each + (rank < longer)
        elif self.pattern == "shard":
            begin, end = total * rank // world_size, total * (rank + 1) // world_size
        elif self.pattern in ("batch", "batch-and-piece"):
            rest = 0 if self.pattern == "batch" else total // world_size % batch_size
            whole = total - rest * world_size
            begin = whole + rank * rest
            piece = np.arange(begin, begin + (0 if drop_last else rest), dtype=np.int64)
            mine = np.append(_batches(whole, rank, world_size, batch_size), piece)
            return mine % n if total > n else mine
        elif self.pattern == "first":
            end = 0 if rank else n - n % batch_size * drop_last
        positions = np.arange(begin, end, step, dtype=np.int64)
        return positions % n if total > n else positions

    def _total(self, n: int, world_size: int, drop_last: bool, batch_size: int) -> int:
        """Positions that all ranks have together."""
        if self.pattern == "batch-and-piece":
            return -(-n // world_size) * world_size
        if self.pattern not in ("every-nth", "piece", "even-piece", "batch"):
            return n
        unit = world_size * (batch_size if self.pattern == "batch" else 1)
        if drop_last:
            return n // unit * unit
        return -(-n // unit) * unit if self.is_padded and world_size > 1 else n


def _batches(total: int, rank: int, world_size: int, batch_size: int) -> Indices:
    """Batches rank, rank + world_size, ... of total positions.

    Which loader's batch is cut in pieces for the ranks (accelerate's split_batches) makes no difference, as batch_size
    is a rank's.
    """
    starts = np.arange(rank * batch_size, total, world_size * batch_size, dtype=np.int64)
    # A batch may be said to be far larger than all that there is.
    positions = (starts[:, np.newaxis] + np.arange(min(batch_size, total), dtype=np.int64)).reshape(-1)
    return positions[positions < total] if total % batch_size else positions


DEALINGS: Final[Mapping[str, Dealing]] = {
    "strided": Dealing("every-nth"),
    "padded": Dealing("every-nth", is_padded=True),
    "contiguous": Dealing("even-piece"),
    "shards": Dealing("shard"),
    "pieces": Dealing("piece"),
    "padded-pieces": Dealing("piece", is_padded=True),
    "batches": Dealing("batch"),
    "even-batches": Dealing("batch", is_padded=True),
    "batches-and-pieces": Dealing("batch-and-piece"),
    "first": Dealing("first"),
    "alike": Dealing("all"),
}
"""Each by the name that a job gives it."""
