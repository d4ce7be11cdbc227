"""Opens that come a second time, because the first found that the file has changed and was answered ESTALE.

In: opens that the kernel is about to make again, by another inode of the file (docs/decisions/nodeids.md), with what
the first has opened. Out: whether an open is one of these: so a reader's one read is counted once, and a file that
changes all the time can be opened, since the second open need not look whether it has changed again. Used by
mountd.handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

# The kernel comes again within the same system call. Who does not (he was killed, or uses an overlay) is given up for
# the newest, or after that time, so that no file of the source is held open for him.
MOST: Final = 64
PATIENCE_S: Final = 10.0


class First(NamedTuple):
    """The result of the first open: bytes that the source gave, a large file's handle or 0."""

    source_bytes: int
    handle: int
    at_s: float


class AskedAgain:
    """Remembers first opens until their second one comes, or does not. Called on the loop.

    Args:
        given_up: (entry, reader, handle): who does not come.
    """

    def __init__(self, clock: Callable[[], float], given_up: Callable[[int, int, int], None]) -> None:
        self._clock = clock
        self._given_up = given_up
        self._awaited: dict[tuple[int, int], First] = {}

    def comes(self, entry: int, pid: int, source_bytes: int, handle: int) -> None:
        """The reader will ask again."""
        now_s = self._clock()
        self._give_up(entry, pid)
        self._awaited[entry, pid] = First(source_bytes, handle, now_s)
        while len(self._awaited) > MOST or next(iter(self._awaited.values())).at_s < now_s - PATIENCE_S:
            self._give_up(*next(iter(self._awaited)))

    def take(self, entry: int, pid: int) -> First | None:
        """The result of the first open of a reader who asks again; None for one who asks for the first time."""
        return self._awaited.pop((entry, pid), None)

    def _give_up(self, entry: int, pid: int) -> None:
        first = self._awaited.pop((entry, pid), None)
        if first is not None:
            self._given_up(entry, pid, first.handle)
