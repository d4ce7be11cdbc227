"""How far one rank's stream has been read.

Pure. In: positions that were read. Out: the oldest unread position, the position after the furthest read one, and what
is given up: a position that the script left out must not be waited for for ever. Used by `mlfs.follow.tracker`; the
prefetching looks ahead from `frontier`.
"""

from __future__ import annotations

from collections.abc import Sequence

Given = tuple[int, int]
"""Positions that are given up: the first one, and the one after the last."""

_FEW = 64
"""Positions up to which taking them out of a set one by one is cheaper than making the set anew."""


class RankProgress:
    """How far one rank's stream has been read.

    Attributes:
        floor: the oldest position that is neither read nor given up.
        frontier: the position after the furthest one that was read in order.
        done: the positions at or above the floor that were read.

    Invariant: floor <= frontier.
    """

    __slots__ = ("done", "floor", "frontier")

    def __init__(self, start: int) -> None:
        self.floor = start
        self.frontier = start
        self.done: set[int] = set()

    def take(self, positions: Sequence[int], lag: int, advance: bool = True) -> Given | None:
        """Mark positions as read; return those given up because they lie more than `lag` behind.

        Without `advance` the frontier stays: a match by chance must not carry it away. Some of the positions given up
        may have been read.
        """
        floor, frontier, done = self.floor, self.frontier, self.done
        for position in positions:
            if position == floor:
                floor += 1
                while floor in done:
                    done.remove(floor)
                    floor += 1
            elif position > floor:
                done.add(position)
        self.floor = floor
        if advance:
            self.frontier = frontier = max(frontier, max(positions) + 1)
        if frontier < floor:
            self.frontier = frontier = floor
        return self._expire(frontier - lag) if frontier - lag > floor else None

    def _expire(self, floor: int) -> Given:
        """Give up what lies below `floor`."""
        given = (self.floor, floor)
        if floor - self.floor < _FEW:
            self.done.difference_update(range(self.floor, floor))
        else:
            self.done = {position for position in self.done if position >= floor}
        while floor in self.done:
            self.done.remove(floor)
            floor += 1
        self.floor = floor
        self.frontier = max(self.frontier, floor)  # positions beyond it may have been read without moving it
        return given

    def is_done(self, position: int) -> bool:
        """Whether the position was read or given up."""
        return position < self.floor or position in self.done
