"""How far a job's next round has been refilled: what no node keeps, by its place in the tree, ahead of the readers.

Pure. In: the refills of the epochs at hand (`mlfs.served.refill`), how far the look-ahead is. Out: which position of
which rank is fetched next. Used by `mlfs.plan.scheduler.look_ahead`, for jobs whose order mlfs serves in rounds.

A part of an epoch that a reader has come to before the look-ahead did, as at the start of a job, is not refilled, nor
is the part after it: what is needed soon is fetched in the order of need, and no refill competes with that. A refill
leaves a share of the window to what is fetched in the order of need; where the window has shrunk so that it cannot, all
is fetched in that order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mlfs.plan.scheduler.followed import EpochStreams
from mlfs.served.refill import Refill

# The share of the window that one part may take. Half of it is what a round is made for, and some ranks have more than
# others; what nodes keep passes through the rest, on its way from memory, disks and peers to the readers.
MOST_OF_WINDOW = 0.75


class _Begun:
    """How far an epoch's refill is: `at` is where in its columns."""

    __slots__ = ("at", "due", "position", "rank", "refill")

    def __init__(self, refill: Refill, at: int) -> None:
        self.refill = refill
        self.at = at
        # Views that give plain numbers, for they are read one by one.
        self.rank, self.position, self.due = refill.rank.data, refill.position.data, refill.due.data

    def go_on(self) -> None:
        self.at += 1


class Refilling:
    """See the module."""

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
        self._not_before = -1  # linear position: parts that begin there or before it are not refilled

    def next_due(
        self, at_hand: Mapping[int, EpochStreams], frontier: int, cursor: int, window_bytes: int
    ) -> tuple[EpochStreams, int, int] | None:
        """(epoch, rank, index in its stream) of what is to be refilled next; None when nothing is due.

        Args:
            frontier: the linear position that the fastest rank reads next. cursor: which is looked at next.
        """
        for index in at_hand.values():
            refill = index.refill
            if refill is None or refill.room_bytes > MOST_OF_WINDOW * window_bytes:
                continue
            begun = self._begun.get(index.epoch)
            if begun is None:
                begun = self._begun[index.epoch] = self._begin(index, refill, frontier)
            if begun.at < len(begun.due) and cursor - index.base >= begun.due[begun.at]:
                return index, begun.rank[begun.at], begun.position[begun.at]
        return None

    def _begin(self, index: EpochStreams, refill: Refill, frontier: int) -> _Begun:
        """Begin behind the part that readers have come to, and the one after it."""
        parts = int(np.searchsorted(refill.begins, frontier - index.base, side="right"))
        if parts and frontier < index.base + index.length:
            end = int(refill.begins[parts]) if parts < len(refill.begins) else index.length
            self._not_before = index.base + end
        parts = max(parts, int(np.searchsorted(refill.begins, self._not_before - index.base, side="right")))
        return _Begun(refill, int(refill.firsts[parts]))

    def go_on(self, epoch: int) -> None:
        """What was due next has been seen to."""
        self._begun[epoch].go_on()

    def copy(self) -> Refilling:
        """Another one that is as far."""
        twin = Refilling()
        twin._not_before = self._not_before
        twin._begun = {epoch: _Begun(begun.refill, begun.at) for epoch, begun in self._begun.items()}
        return twin

    def forget_epoch(self, epoch: int) -> None:
        """An epoch is not needed any more."""
        self._begun.pop(epoch, None)

    def begin_anew(self) -> None:
        """Nothing is counted ahead any more."""
        self._begun.clear()
        self._not_before = -1
