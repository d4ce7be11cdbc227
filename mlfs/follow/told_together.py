"""Reads that were told of together: a process's opens of a file within a batch of these may be one.

Pure. In: reads, in the order in which they are told. Out: what a process has opened a moment before a read of it.

The kernel that tells of opens behind them (mountd.silent) makes one event of a process's opens of a file for as long as
the first one waits to be told. So a read of the batch says that its process has opened the file at least once. Which of
the others it has opened again shows where it reads on: `mlfs.follow.tracker.Tracker.untold_before`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

from mlfs.follow.evidence import UNTIMED, Read

MOST_PORTIONS = 64
"""Portions of reads that are remembered: thousands of reads, which a server is told of together that has had no
processor for a tenth of a second."""


def are_together(reads: Sequence[Read]) -> bool:
    """Whether reads that follow each other were told of together. Opens that come as requests have a time each."""
    return len(reads) > 1 and (reads[0].at_s == reads[1].at_s or reads[-2].at_s == reads[-1].at_s)


class ToldTogether:
    """The last reads. Those of a batch have one time."""

    def __init__(self) -> None:
        self._portions: deque[Sequence[Read]] = deque(maxlen=MOST_PORTIONS)
        self._last_s = self._before_s = UNTIMED  # of the last batch, and of the one before

    def add(self, reads: Sequence[Read]) -> None:
        """These came next. Args: reads: of one batch, or of the end of one and the beginning of the next."""
        if reads[-1].at_s != self._last_s:
            self._before_s, self._last_s = self._last_s, reads[-1].at_s
            while self._portions and self._portions[0][-1].at_s < self._before_s:
                self._portions.popleft()
        self._portions.append(reads)

    def before(self, reads: Sequence[Read], at: int) -> set[int]:
        """The samples that the process of `reads[at]` has opened before it in its batch, or in the one before that.

        An open that was told with another one came while that one's batch was collected. Args: reads: not added yet.
        """
        process, at_s, found, is_earlier = reads[at].process, reads[at].at_s, set[int](), False
        for read in chain(reversed(reads[:at]), chain.from_iterable(map(reversed, reversed(self._portions)))):
            if read.at_s != at_s:
                if is_earlier:
                    break
                at_s, is_earlier = read.at_s, True
            if read.process == process:
                found.add(read.sample)
        return found
