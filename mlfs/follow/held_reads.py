"""Reads that wait until the order of the next epoch is at hand.

Pure. In: reads, how far the ranks are, the epochs at hand. Out: whether a read waits; later the reads that waited, in
their order. Used by `mlfs.follow.job`.

A loader's workers open the first samples of an epoch while others are still in the one before. When the order of that
epoch is not at hand yet, such a read fits nothing: matched at once, it would count as wrongly predicted. So a read that
fits nothing waits while a rank is near the end of what is at hand, and all reads after it wait with it, because they
are matched in their order.
"""

from __future__ import annotations

from collections import deque

from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.matching import StreamMatcher

MOST_HELD = 4096
"""Reads that may wait: more than any loader reads ahead. If an order takes longer, the reads go on without it."""

Read = tuple[int, int, int, float]
"""Sample, process, its parent, when."""


class HeldReads:
    """See the module."""

    def __init__(self, epochs: EpochsAtHand) -> None:
        self._epochs = epochs
        self._reads: deque[Read] = deque()
        self._near_end = True  # a rank may come to the end of what is at hand with its next reads
        self._near_from = 0  # the position from which on a rank is near it

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def may_hold(self) -> bool:
        """Whether a read that fits nothing waits, as it may be of an epoch whose order is not at hand."""
        return bool(self._reads) or (self._near_end and self._epochs.next_may_come)

    def hold(self, sample: int, process: int, parent: int, at_s: float, matcher: StreamMatcher) -> bool:
        """Whether a read waits. If so it is kept until `release`."""
        if not self._reads:
            if not self.may_hold or matcher.fits(sample, process):
                return False
        elif len(self._reads) >= MOST_HELD:
            return False
        self._reads.append((sample, process, parent, at_s))
        return True

    def rank_came_to(self, frontier: int) -> None:
        """A rank has read, and reads next at `frontier`."""
        if frontier >= self._near_from:
            self._near_end = True

    def epoch_added(self, furthest: int, lag: int) -> None:
        """Another epoch is at hand.

        Args:
            furthest: the frontier of the rank that is furthest. lag: how far from its frontier a rank may read.
        """
        self._near_from = self._epochs.end_at_hand - lag - 1
        self._near_end = furthest >= self._near_from

    def release(self) -> list[Read]:
        """The reads that waited; they wait no more."""
        released = list(self._reads)
        self._reads.clear()
        return released
