"""Linear positions of a job: where epochs begin and end.

Pure. In: a specification and the lengths of its streams. Out: epochs by position and positions by epoch. Used by
`mlfs.follow.epochs_at_hand`.

Linear position: the sum of the lengths of the epochs before, plus the index within the epoch. An epoch's base is worked
out when it is first asked for. A million of them take seconds, so a caller that must not wait has a thread ask for the
last one first.
"""

from __future__ import annotations

from bisect import bisect_right

from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams


class Timeline:
    """The bases of a job's epochs. The loop may ask, and at the same time threads that compute an epoch's order."""

    def __init__(self, spec: JobSpec, streams: JobStreams) -> None:
        self.spec = spec
        self.streams = streams
        self._bases = [0]  # an entry never changes once it is there: see `base`

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
        """Linear position of an epoch's first sample.

        Needs no lock: two threads that work out the same base put the same number at the same index. One that is behind
        the other replaces numbers by their equals, and never appends one out of turn.
        """
        bases = self._bases
        for at in range(len(bases), epoch + 1):
            bases[at : at + 1] = [bases[at - 1] + self.streams.length(at - 1)]
        return bases[epoch]

    def begin(self, epoch: int) -> int:
        """Index in the epoch's streams at which its reading begins."""
        return self.start - self.base(epoch) if epoch == self.spec.start_epoch else 0

    def epoch_of(self, position: int) -> int:
        """The epoch a linear position lies in; the last one for the end."""
        bases = self._bases
        while len(bases) < self.spec.epochs and bases[-1] <= position:
            self.base(len(bases))
        return bisect_right(bases, position, 1, min(len(bases), self.spec.epochs)) - 1
