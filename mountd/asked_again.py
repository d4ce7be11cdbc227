"""Opens that come a second time, because the first found that the file has changed and was answered ESTALE.

In: opens that the kernel is about to make again, by another inode of the file (docs/decisions/nodeids.md). Out: whether
an open is one of these, so that a reader's one read is counted once. Used by mountd.handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# The kernel comes again within the same system call. Who does not (he was killed) is given up for the newest.
MOST: Final = 256


class AskedAgain:
    """See the module.

    Args:
        given_up: (entry, reader): who does not come.
    """

    def __init__(self, given_up: Callable[[int, int], None]) -> None:
        self._given_up = given_up
        self._awaited: dict[tuple[int, int], int] = {}

    def comes(self, entry: int, pid: int, source_bytes: int) -> None:
        """The reader will ask again. `source_bytes`: what the source gave for him so far."""
        self._awaited[entry, pid] = source_bytes
        if len(self._awaited) > MOST:
            self._given_up(*self._take_oldest())

    def take(self, entry: int, pid: int) -> int | None:
        """What the source has given for a reader who asks again; None for one who asks for the first time."""
        return self._awaited.pop((entry, pid), None)

    def _take_oldest(self) -> tuple[int, int]:
        oldest = next(iter(self._awaited))
        del self._awaited[oldest]
        return oldest
