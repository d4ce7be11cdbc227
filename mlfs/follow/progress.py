"""How far one rank's stream has been read.

Pure. In: positions that were read. Out: the oldest unread position, the furthest read one, and what is given up. Used
by `mlfs.follow.matching`; the prefetcher reads `frontier`.
"""

from __future__ import annotations

Given = tuple[int, int]
"""Positions that are given up: from, up to but without."""

_FEW = 64


class RankProgress:
    """How far one rank's stream has been read.

    Invariant: floor <= frontier; each position below floor is done; `done` holds the done positions at or above it.
    """

    __slots__ = ("done", "floor", "frontier")

    def __init__(self, start: int) -> None:
        self.floor = start
        self.frontier = start
        self.done: set[int] = set()

    def take(self, position: int, lag: int, advance: bool = True) -> Given | None:
        """Mark `position` as read; return the positions given up because they lie more than `lag` behind.

        Without `advance` the frontier stays: a match by chance must not carry it away. Some of the positions given up
        may have been read.
        """
        floor = self.floor
        if position == floor:
            floor += 1
            done = self.done
            while floor in done:
                done.remove(floor)
                floor += 1
            self.floor = floor
        elif position > floor:
            self.done.add(position)
        if advance and position >= self.frontier:
            self.frontier = position + 1
        self.frontier = max(self.frontier, floor)
        return self._expire(self.frontier - lag) if self.frontier - lag > floor else None

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
        return given

    def is_done(self, position: int) -> bool:
        """Whether the position was read or given up."""
        return position < self.floor or position in self.done
