"""Reads that were told of together: a process's opens of a file within a batch of these may be one.

Pure. In: reads, in the order in which they are told. Out: what a process has opened a moment before a read of it.

The kernel that tells of opens behind them (mountd.silent) makes one event of a process's opens of a file for as long as
the first one waits to be told. So a read of the batch says that its process has opened the file at least once. Which of
the others it has opened again shows where it reads on: `mlfs.follow.tracker.Tracker.untold_before`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from mlfs.follow.evidence import Read

_at_s: Final = itemgetter(Read._fields.index("at_s"))


def are_together(reads: Sequence[Read]) -> bool:
    """Whether reads that follow each other were told of together. Opens that come as requests have a time each."""
    return len(reads) > 1 and (reads[0].at_s == reads[1].at_s or reads[-2].at_s == reads[-1].at_s)


class _Batch:
    """Reads that came together. Nearly always nobody asks who has read what: they are looked at when somebody does."""

    __slots__ = ("_by_process", "_unseen", "at_s")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self._unseen: list[Sequence[Read]] = []
        self._by_process: dict[int, set[int]] = {}

    def add(self, reads: Sequence[Read]) -> None:
        self._unseen.append(reads)

    def of(self, process: int) -> set[int]:
        """The samples that a process has opened."""
        for reads in self._unseen:
            for read in reads:
                self._by_process.setdefault(read.process, set()).add(read.sample)
        self._unseen.clear()
        return self._by_process.get(process, set())


class ToldTogether:
    """The reads of the last two batches. Those of a batch have one time."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque(maxlen=2)

    def add(self, reads: Sequence[Read]) -> None:
        """These came next. Args: reads: of one batch, or of the end of one and the beginning of the next."""
        if reads[0].at_s != reads[-1].at_s:
            for _, portion in groupby(reads, _at_s):
                self.add(list(portion))
            return
        if not self._batches or self._batches[-1].at_s != reads[0].at_s:
            self._batches.append(_Batch(reads[0].at_s))
        self._batches[-1].add(reads)

    def before(self, reads: Sequence[Read], at: int) -> set[int]:
        """The samples that the process of `reads[at]` has opened before it in its batch, or in the one before that.

        An open that was told with another one came while that one's batch was collected. Args: reads: not added yet.
        """
        process, at_s, found, is_earlier = reads[at].process, reads[at].at_s, set[int](), False
        for read in reversed(reads[:at]):
            if read.at_s != at_s:
                if is_earlier:
                    return found
                at_s, is_earlier = read.at_s, True
            if read.process == process:
                found.add(read.sample)
        for batch in reversed(self._batches):
            if batch.at_s != at_s:
                if is_earlier:
                    break
                at_s, is_earlier = batch.at_s, True
            found |= batch.of(process)
        return found
