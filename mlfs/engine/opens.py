"""Answers the opens of one mount: at once where the bytes are in place, else when they are.

In: opens from the request handlers, on the loop. Out: permission to go on, a handle for a large file, or an OSError
when the source failed twice. The path of every staged open is `hit`: a look into the samples' table and a counter.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import numpy as np
import trio
from numpy.typing import NDArray

from mlfs.engine.context import Context
from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.digest import WAITS
from mlfs.engine.fetch import Fetched
from mlfs.engine.ranges import Ranges
from mlfs.limits import lacking
from mlfs.places.place import Places
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Touched, Waiter, Waits
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.stats import PAGE_CACHE

log = logging.getLogger("mlfs.engine")


class WaitingReader(Waiter):
    """A reader whose open is not answered yet: one object from the request to its answer (see `Answerable`).

    This class has the part that all readers share: how the open counts, and that one for whom nothing can be staged
    reads by ranges. Its subclass knows whose open it is, and where the answer goes: `in_place` and `over`. A file is
    opened as the one sample that it is; a file of several samples is read by ranges.

    Args:
        counts: whether the open is to be counted; not where it was before.
    """

    __slots__ = ("_counts", "_opens")

    def __init__(self, opens: Opens, entry: int, counts: bool = True) -> None:
        super().__init__(entry, opens.clock())
        self._opens = opens
        self._counts = counts

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: see Answerable."""
        raise NotImplementedError

    def over(self, error: Exception | None, handle: int, source_bytes: int) -> None:
        """On the loop, in the end: the error if there was one, a large file's handle or 0, what the source gave."""
        raise NotImplementedError

    def answer(self, brought: Fetched | None) -> None:
        """The reader goes on, with pages in place; see Answerable."""
        source_bytes = brought.size_bytes if brought is not None and brought.place == SOURCE else 0
        if self._counts:
            self._opens.count(self.sample, brought)
        self._end(None, 0, source_bytes)

    def open_direct(self, unstaged: bool) -> None:
        """The reader goes on by itself; see Answerable."""
        if unstaged:
            if self._counts:
                self._opens.count(self.sample, None)  # the READ that follows tells where the bytes came from
            self._end(None, 0, 0)
        elif handle := self._opens.ranges.open_at_once(self.sample):
            self._reads_by(handle)
        else:
            trio.lowlevel.spawn_system_task(self._read_by_ranges)

    def refuse(self, error: OSError) -> None:
        """The reader gets the error. But something that this process lacks for the whole file it may have for a part at
        a time; and a file whose length nobody knows is read as it comes."""
        if lacking(error) is not None or self._opens.ranges.is_unsized(self.sample):
            trio.lowlevel.spawn_system_task(self._read_by_ranges)
        else:
            self._end(error, 0, 0)

    async def _read_by_ranges(self) -> None:
        ranges = self._opens.ranges
        try:
            handle = await ranges.open(self.sample)
        except Exception as error:
            if lacking(error) is None or ranges.is_unsized(self.sample):
                self._end(error, 0, 0)
                return
            handle = 0  # no descriptor is left to hold the file open: each READ opens it for itself
        self._reads_by(handle)

    def _reads_by(self, handle: int) -> None:
        ranges = self._opens.ranges
        if self._counts:
            self._opens.counted.direct(ranges.kind_of(handle), ranges.staged_bytes(handle))
        self._end(None, handle, 0)

    def _end(self, error: Exception | None, handle: int, source_bytes: int) -> None:
        self._opens.stalled(self.since_s)
        try:
            self.over(error, handle, source_bytes)
        except Exception:  # a bug there costs the reader, never the mount
            log.exception("the end of a fetch could not be told")


class Opens:
    """Answers whether a file is in place, and takes readers who wait for one that is not.

    Attributes:
        ranges: for readers who read the source by ranges. counted: counts what was opened. clock: seconds, monotone.
    """

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        places: Places,
        ranges: Ranges,
        counted: CountedOpens,
    ) -> None:
        self._step = context.step
        self._counters = context.counters
        self.clock = context.clock
        self._table = scheduler.table
        self._places = places
        self.ranges = ranges
        self.counted = counted
        self._counted_staged = counted.staged

    def hit(self, entry: int) -> bool:
        """Whether the file's pages are in place; counts the read if so. No waiting: the path of every staged open."""
        state = self._table.state[entry]
        if state == State.DROPPING:
            self._step(Touched(entry))
            state = self._table.state[entry]
        if state == State.STAGED or state == State.RECENT:  # noqa: PLR1714 - a tuple costs more
            self._counted_staged(entry)
            return True
        return False

    def hit_again(self, entry: int) -> bool:
        """Count a hit by a reader whose read was counted before its file turned out to have changed."""
        if self._table.state[entry] == State.DROPPING:
            self._step(Touched(entry))
        return self._table.state[entry] in (State.STAGED, State.RECENT)

    def told(self, entries: NDArray[np.int64], free: Collection[int]) -> None:
        """The kernel tells of opens that it has answered by itself: count them, and keep the pages that are there.

        Args:
            free: files that nobody has open any more.
        """
        for entry in entries[np.frombuffer(self._table.state, np.uint8)[entries] == State.DROPPING].tolist():
            self._step(Touched(entry))
        are_whole = self.ranges.are_whole(entries)
        self.counted.told(entries[are_whole].tolist(), free)
        for entry in entries[~are_whole].tolist():
            self.counted.direct(*self.ranges.at_hand(entry))
            trio.lowlevel.spawn_system_task(self.ranges.look, entry)

    def wait(self, reader: WaitingReader) -> None:
        """A reader waits for a file that was not in place: `over` is told once, before this returns maybe."""
        self._step(Waits(reader))

    def count(self, entry: int, brought: Fetched | None) -> None:
        """A reader who waited goes on. `brought`: what was fetched for him; None: it came for others."""
        if brought is None:
            self.counted.staged(entry)
        else:
            self.counted.brought(entry, self._places.kinds[brought.place])

    def answered_before(self, noted: Iterable[tuple[int, int, int]]) -> None:
        """Count opens that another process has answered and not counted. Those that had to wait count as read from the
        source, which is where most of them were."""
        for entry, _, kind in noted:
            size_bytes = int(self._table.sizes[entry]) if self.ranges.is_whole(entry) else 0
            self._counters.read(PlaceKind.SOURCE if kind == WAITS else PAGE_CACHE, size_bytes)

    def stalled(self, since_s: float) -> None:
        """A reader has waited since then."""
        self._counters.stall(self.clock() - since_s)
