"""Who opens what: the observed opens of a job, and the processes that they come from.

Pure. In: opens as `mlfs.follow.matching` has counted them. Out: the same, counted anew where a process turns out to
have been under way when its job was registered.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mlfs.follow.lanes import Cell, Lane


class Open(NamedTuple):
    """An observed open, how it was counted, and the position it was matched to (-1: none).

    `again`: its process had opened the entry before it once more, which was not counted.
    """

    entry: int
    process: int
    parent: int
    cell: Cell
    agrees: bool
    rank_index: int
    position: int
    again: bool = False


class Reader:
    """A process.

    Attributes:
        lanes: that it may be in, the likeliest first. last_entry: that it opened. again: it opened that once more.
        rank_index: the rank it reads for, -1 while that is not known. streak: opens in a row that agreed.
        followed: whether any lane was ever confirmed.
    """

    __slots__ = ("again", "followed", "lanes", "last_entry", "rank_index", "streak")

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.last_entry = -1
        self.again = False
        self.rank_index = -1
        self.streak = 0
        self.followed = False


def first_opens_of_late(history: deque[Open], process: int, lane: Lane) -> list[tuple[int, Open]]:
    """The opens of a process that was under way before anybody looked, once its lane is confirmed: where, and which.

    They came in the predicted order; only where in it the process is was not known yet. None unless all that it has
    opened so far, and that was not predicted, lies in the lane.
    """
    own = [(at, seen) for at, seen in enumerate(history) if seen.process == process]
    if any(seen.agrees for _, seen in own) or len(own) != lane.streak:
        return []
    return own
