"""What the engine knows of each manifest entry: its state, pending uses, who holds a copy, and the staging window.

In: transitions decided by the engine on the loop. Out: states, and the bytes of the staging window. The loop writes;
worker threads read, and write `verified` and `held_by` (single bytes, no read-modify-write). A few bytes an entry,
fixed-size, so that 100 million files stay cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PAGE_BYTES = 4096


class State:
    """Where an entry's pages are, as far as the engine believes. The kernel may forget them: a READ then tells.

    ABSENT    not in the page cache.
    FETCHING  reserved in the window; a worker fetches and pushes it.
    STAGED    in the page cache, its predicted use is still to come.
    RECENT    in the page cache, used or never predicted: the first to be dropped.
    DROPPING  handed to the dropper.

    Plain ints, not an enum: they are compared several times for each read.
    """

    ABSENT: Final = 0
    FETCHING: Final = 1
    STAGED: Final = 2
    RECENT: Final = 3
    DROPPING: Final = 4


def footprint_bytes(size_bytes: int) -> int:
    """What a sample occupies in the page cache: whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class SampleTable:
    """State of all entries, and the window's budget.

    Attributes:
        pending: predicted uses inside the look-ahead, saturating.
        held_by: 1 + index of the tier that is believed to hold a copy, 0 for none.
        verified: 1 when the entry's version was seen at the source since the mount.
        open_count: readers by entry; only entries that are open.

    Invariant: `window_bytes` = sum of footprints over all entries that are not ABSENT.
    """

    def __init__(self, n_entries: int, sizes: memoryview, window_capacity_bytes: int) -> None:
        self.state = bytearray(n_entries)
        self.pending = bytearray(n_entries)
        self.held_by = bytearray(n_entries)
        self.verified = bytearray(n_entries)
        self.open_count: dict[int, int] = {}
        self.sizes = sizes
        self.window_capacity_bytes = window_capacity_bytes
        self.window_bytes = 0

    def footprint(self, entry: int) -> int:
        """Bytes the entry occupies in the page cache."""
        return footprint_bytes(self.sizes[entry])

    def fits_window(self, entry: int) -> bool:
        """Whether the window has room for the entry now."""
        return self.window_bytes + self.footprint(entry) <= self.window_capacity_bytes

    def move(self, entry: int, new: int) -> None:
        """Change an entry's state, and the window's bytes with it."""
        old = self.state[entry]
        if (old == State.ABSENT) != (new == State.ABSENT):
            cost = footprint_bytes(self.sizes[entry])
            self.window_bytes += cost if old == State.ABSENT else -cost
        self.state[entry] = new

    def expect(self, entry: int) -> None:
        """One more predicted use."""
        if self.pending[entry] < 255:
            self.pending[entry] += 1

    def fulfil(self, entry: int) -> int:
        """One predicted use came or was given up; returns how many are left."""
        if self.pending[entry]:
            self.pending[entry] -= 1
        return self.pending[entry]

    @contextmanager
    def resized(self, entry: int) -> Iterator[None]:
        """The entry's size changes inside: take it out of the window before, and back in after."""
        state = self.state[entry]
        self.move(entry, State.ABSENT)
        yield
        self.move(entry, state)
