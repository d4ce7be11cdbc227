"""What the engine knows of each manifest entry: its state, pending uses and the budgets they draw on.

In: transitions decided by the engine on the loop. Out: states, and the bytes of the staging window and of the RAM
class. The loop writes; worker threads read, and write `verified` and `disk` (single bytes, no read-modify-write). A
few bytes an entry, fixed-size, so that 100 million files stay cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

PAGE_BYTES = 4096


class State:
    """Where an entry's bytes are, as far as the engine believes. The kernel may forget pages: the demand path is the
    truth.

    ABSENT    not in the page cache.
    FETCHING  reserved in the window; a worker fetches and pushes it.
    STAGED    in the page cache, in the window, its predicted use is still to come.
    RECENT    in the page cache, in the window, used or never predicted: the first to be dropped.
    DROPPING  handed to the dropper, still in the window.
    KEPT      in the page cache, held by the RAM class.

    Plain ints, not an enum: they are compared several times for each read.
    """

    ABSENT: Final = 0
    FETCHING: Final = 1
    STAGED: Final = 2
    RECENT: Final = 3
    DROPPING: Final = 4
    KEPT: Final = 5


def footprint_bytes(size_bytes: int) -> int:
    """What a sample occupies in the page cache: whole pages; also an empty one, so that budgets bound their number."""
    return max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES


class SampleTable:
    """State of all entries and the two memory budgets.

    Invariants: `window_bytes` = sum of footprints over FETCHING, STAGED, RECENT, DROPPING; `kept_bytes` = over KEPT;
    `promised_bytes` = over `promised` entries, none of which is KEPT; kept + promised <= ram_capacity_bytes.
    """

    def __init__(self, n_entries: int, sizes: memoryview, window_capacity_bytes: int, ram_capacity_bytes: int) -> None:
        self.state = bytearray(n_entries)
        self.promised = bytearray(n_entries)  # 1: the RAM class has set its footprint aside
        self.verified = bytearray(n_entries)  # 1: its version was seen at the source since the mount; workers write it
        self.pending = bytearray(n_entries)  # predicted uses inside the look-ahead, saturating
        self.disk = bytearray(n_entries)  # 1 + index of the disk tier that is believed to hold it, 0 for none
        self.open_count: dict[int, int] = {}
        self.sizes = sizes
        self.window_capacity_bytes = window_capacity_bytes
        self.window_bytes = 0
        self.ram_capacity_bytes = ram_capacity_bytes
        self.kept_bytes = 0
        self.kept_samples = 0
        self.promised_bytes = 0

    def footprint(self, entry: int) -> int:
        """Bytes the entry occupies in the page cache."""
        return footprint_bytes(self.sizes[entry])

    def fits_window(self, entry: int) -> bool:
        """Whether the window has room for the entry now."""
        return self.window_bytes + self.footprint(entry) <= self.window_capacity_bytes

    def ram_free_bytes(self) -> int:
        """What the RAM class has neither filled nor promised."""
        return self.ram_capacity_bytes - self.kept_bytes - self.promised_bytes

    def move(self, entry: int, new: int) -> None:
        """Change an entry's state and the budgets with it."""
        old, cost = self.state[entry], (-(-self.sizes[entry] // PAGE_BYTES) or 1) * PAGE_BYTES  # as footprint_bytes
        if State.FETCHING <= old <= State.DROPPING:
            self.window_bytes -= cost
        elif old == State.KEPT:
            self.kept_bytes -= cost
            self.kept_samples -= 1
        if State.FETCHING <= new <= State.DROPPING:
            self.window_bytes += cost
        elif new == State.KEPT:
            self.break_promise(entry)
            self.kept_bytes += cost
            self.kept_samples += 1
        self.state[entry] = new

    def promise_ram(self, entry: int) -> None:
        """Set the entry's footprint aside in the RAM class."""
        if not self.promised[entry]:
            self.promised[entry] = 1
            self.promised_bytes += self.footprint(entry)

    def break_promise(self, entry: int) -> None:
        """Give the entry's footprint in the RAM class back, if any was set aside."""
        if self.promised[entry]:
            self.promised[entry] = 0
            self.promised_bytes -= self.footprint(entry)

    # -- the RAM class on its own account: see mlfs.tiers.ram

    @staticmethod
    def footprint_of(size_bytes: int) -> int:
        """What a sample of that size occupies."""
        return footprint_bytes(size_bytes)

    def keeps(self, entry: int) -> bool:
        """Whether the RAM class holds the entry."""
        return self.state[entry] == State.KEPT

    def kept_entries(self) -> list[int]:
        """All entries that the RAM class holds."""
        return [int(entry) for entry in np.flatnonzero(np.frombuffer(self.state, dtype=np.uint8) == State.KEPT)]

    def begin_keep(self, entry: int) -> bool:
        """Pages are about to be pushed for the RAM class: set room aside if none is yet; False when there is none."""
        state = self.state[entry]
        if state == State.KEPT or self.promised[entry]:
            return True
        if state == State.DROPPING or self.footprint(entry) > self.ram_free_bytes():
            return False
        if state == State.RECENT:
            self.move(entry, State.KEPT)  # a promise would not save it from being dropped for its room in the window
        else:
            self.promise_ram(entry)
        return True

    def end_keep(self, entry: int, pushed: bool) -> bool:
        """The pages were pushed, or were not; returns whether the RAM class holds or will hold the entry."""
        state = self.state[entry]
        if state not in (State.ABSENT, State.KEPT):  # staged meanwhile: kept after its use, if promised
            return pushed and self.promised[entry] == 1
        if not pushed:
            self.break_promise(entry)
            self.move(entry, State.ABSENT)
            return False
        if state == State.ABSENT and not self.promised[entry] and self.footprint(entry) > self.ram_free_bytes():
            return False  # a fetch in between failed and gave the room back
        self.move(entry, State.KEPT)
        return True

    def end_kept(self, entry: int) -> bool:
        """The RAM class lets go of the entry; False when it did not hold it."""
        if self.state[entry] != State.KEPT:
            return False
        self.move(entry, State.ABSENT)
        return True

    def fetch_kept_again(self, entry: int) -> None:
        """A KEPT entry's pages are gone: fetch it through the window, its room in the RAM class set aside meanwhile."""
        self.move(entry, State.ABSENT)
        self.promise_ram(entry)
        self.move(entry, State.FETCHING)

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
        """The entry's size changes inside: take it out of the budgets before, and back in after."""
        state, promised = self.state[entry], self.promised[entry]
        self.move(entry, State.ABSENT)
        self.break_promise(entry)
        yield
        if promised and self.footprint(entry) <= self.ram_free_bytes():
            self.promise_ram(entry)
        self.move(entry, State.ABSENT if state == State.KEPT else state)
