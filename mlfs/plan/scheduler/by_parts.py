"""Whether rows come from the source by themselves, or each with all of the blocks that it lies in.

Pure. In: ends of fetches of rows, with what the source gave. Out: one of the two. A reader in a random order begins
each of his first rows in another block. If whole blocks are brought for him, he waits for a megabyte each time, and
nothing is left to bring when he has come to a third of his rows: then the source has nothing to do. Row by row he goes
as fast as the source gives, from the first row to the last. But a source of disks may give a tenth in so small parts.
So both are tried while readers wait, and measured against each other.
"""

from __future__ import annotations

LEAST_PART_BYTES = 64 << 10
"""Rows that are shorter bring whole blocks: no source is as fast in such parts, and there would be many to remember."""
PERIOD_S = 0.4
"""A way is measured for so long, after as long a time in which lanes become as many as it needs."""
WORTH = 0.8
"""Parts are worth this share of what whole blocks give: they bring what is needed first."""
TRY_AGAIN_S = 10.0
"""The other way is tried anew after so long, and each time after twice as long: sources change, but seldom."""
MOST_TRY_AGAIN_S = 320.0


class ByParts:
    """The way in force.

    Attributes:
        in_parts: whether rows come by themselves.
    """

    def __init__(self) -> None:
        self.in_parts = False
        self._rates: dict[bool, float] = {}  # by way, bytes a second
        self._since_s = -1.0  # when the period under way began, below 0 for none
        self._bytes = 0
        self._settled = False
        self._try_s, self._after_s = 0.0, TRY_AGAIN_S

    def ended(self, in_parts: bool, given_bytes: int, now_s: float, more: bool) -> bool:
        """A fetch of rows is over. Returns whether the other way is taken from now on.

        Args:
            more: whether more waited, so that it tells how much the source can give.
        """
        if in_parts != self.in_parts:
            return False  # of the way before, or for nobody who waits
        if not more or self._since_s < 0:
            self._since_s, self._bytes = now_s if more else -1.0, 0
            return False
        self._bytes += given_bytes
        passed_s = now_s - self._since_s
        if passed_s < PERIOD_S:
            return False
        rate, self._since_s, self._bytes = self._bytes / passed_s, now_s, 0
        if not self._settled:
            self._settled = True
            return False
        self._rates[in_parts] = rate
        if (not in_parts) not in self._rates or now_s >= self._try_s:
            self._rates.pop(not in_parts, None)
            self._try_s, self._after_s = now_s + self._after_s, min(2 * self._after_s, MOST_TRY_AGAIN_S)
            self.in_parts = not in_parts
        else:
            self.in_parts = self._rates[True] >= WORTH * self._rates[False]
        if self.in_parts == in_parts:
            return False
        self._since_s, self._settled = -1.0, False
        return True
