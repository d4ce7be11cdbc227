"""Linear positions of a job: where epochs begin and end.

In: a specification and its streams. Out: epochs by position and positions by epoch. Used by `mlfs.follow.job`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right

from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams


class Timeline:
    """Linear position: the sum of the lengths of the epochs before, plus the index within the epoch.

    The loop asks, and workers that compute an epoch's order.
    """

    def __init__(self, spec: JobSpec, streams: JobStreams) -> None:
        self.spec = spec
        self.streams = streams
        self._bases = [0]  # only grows, under the lock
        self._lock = threading.Lock()

    @property
    def start(self) -> int:
        """Linear position at which every rank begins."""
        step = min(self.spec.start_step * self.streams.batch_files, self.streams.length(self.spec.start_epoch))
        return self.base(self.spec.start_epoch) + step

    @property
    def end(self) -> int:
        """Linear position after the last epoch."""
        return self.base(self.spec.epochs)

    def base(self, epoch: int) -> int:
        """Linear position of an epoch's first sample."""
        if len(self._bases) <= epoch:
            with self._lock:
                while len(self._bases) <= epoch:
                    self._bases.append(self._bases[-1] + self.streams.length(len(self._bases) - 1))
        return self._bases[epoch]

    def begin(self, epoch: int) -> int:
        """Index in the epoch's streams at which its reading begins."""
        return self.start - self.base(epoch) if epoch == self.spec.start_epoch else 0

    def epoch_of(self, position: int) -> int:
        """The epoch a linear position lies in; the last one for the end."""
        while len(self._bases) < self.spec.epochs and self._bases[-1] <= position:
            self.base(len(self._bases))
        return bisect_right(self._bases, position, 1, min(len(self._bases), self.spec.epochs)) - 1
