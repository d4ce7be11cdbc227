"""Orders that are the same for every rank: an epoch is drawn once, and kept while ranks read it.

In: how an epoch is drawn. Out: an `Order`. It is the base of torch's samplers that know no ranks; there each rank has a
generator of its own with the same seed.
"""

from __future__ import annotations

from functools import lru_cache

from mlfs.orders.order import EPOCHS_KEPT, Indices


class OneStream:
    """One stream for all ranks.

    Args:
        length: of an epoch, the same in all of them.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._draw_once)

    def stream_length(self, epoch: int) -> int:
        """Samples of every rank, the same in every epoch."""
        return self._length

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order, shape (stream_length(epoch),), read-only, the same for every rank."""
        return self._epoch(epoch)

    def _draw_once(self, epoch: int) -> Indices:
        stream = self._draw_epoch(epoch)
        stream.flags.writeable = False
        return stream

    def _draw_epoch(self, epoch: int) -> Indices:
        raise NotImplementedError
