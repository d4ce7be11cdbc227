"""The contract of the mount's page cache: the staging buffer (storage class 0) lives in it.

Implemented by the daemon over FUSE notifications, by a dict in engine tests. All calls block and run in worker threads,
never in a request handler: a push can wait for a page that the very request being answered has locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class PageCache(Protocol):
    """Pages of this mount. Everything in it is a hint: the kernel may take it back at any time."""

    def push(self, entry: int, generation: int, offset: int, data: Buffer) -> bool:
        """Store bytes of an entry's content; True when the kernel took them. Never raises for the kernel's refusals."""

    def targets(self, entries: Sequence[int], generations: Sequence[int]) -> list[int]:
        """The numbers under which a mover pushes those generations' bytes (mlfs.engine.moves). None is 0.

        The kernel is made to know the entries, where it may not.
        """

    def look_up(self, entry: int) -> None:
        """Have the kernel know the entry and its attributes, as it has just said that it does not."""

    def resident(self, entry: int) -> bool:
        """Whether all pages of the entry are there; True where that cannot be told."""

    def resident_ranges(self, entry: int, ranges: Sequence[tuple[int, int]]) -> list[bool]:
        """The same of ranges of the entry, each an offset and a size above 0."""

    def drop(self, entry: int, offset: int = 0, size: int = 0) -> None:
        """Drop the entry's pages, or with a size those of a range (its attributes may go too)."""

    def replace(self, entry: int) -> None:
        """The entry's content changed: its name leads to another inode from now on, whose attributes the kernel learns.

        Those who have the old content open keep its inode, with its pages and attributes.
        """
