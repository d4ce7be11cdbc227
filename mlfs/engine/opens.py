"""Opens of one mount: whether the bytes are in place, and readers who wait until they are.

In: opens from the request handlers, on the loop. Out: permission to go on, a handle for a large file, or an OSError
when the source failed twice. The path of every staged open is `hit`: a look into the samples' table and a counter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.driver import Driver
from mlfs.engine.ranges import Ranges
from mlfs.engine.tickets import Tickets
from mlfs.limits import lacking
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.events import Touched
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")

InPlace = Callable[[int], bool]
"""Called by the worker that fetched the bytes, with what the source gave for this open. Whether the reader goes on."""
Landed = Callable[[Exception | None, int, int], None]
"""Told in the end, on the loop: the error if there was one, a large file's handle or 0, what the source gave."""


class _Open:
    """A reader who waits: a mlfs.engine.tickets.Ticket."""

    __slots__ = ("_again", "_began_s", "_entry", "_landed", "_opens", "in_place")

    def __init__(
        self, opens: Opens, entry: int, in_place: InPlace, landed: Landed, began_s: float, again: bool
    ) -> None:
        self._opens = opens
        self._again = again
        self._entry = entry
        self._landed = landed
        self._began_s = began_s
        self.in_place = in_place

    def answer(self, brought: PlaceKind | None, source_bytes: int) -> None:
        """See Ticket."""
        if not self._again:
            self._opens.counted.brought(self._entry, brought)
        self._over(None, 0, source_bytes)

    def open_direct(self, unstaged: bool) -> None:
        """See Ticket."""
        if unstaged:
            if not self._again:
                self._opens.counted.staged(self._entry)  # the READ that follows tells where the bytes came from
            self._over(None, 0, 0)
        else:
            trio.lowlevel.spawn_system_task(self._read_by_ranges)

    def refuse(self, error: OSError) -> None:
        """See Ticket. What this process lacks for the whole file, it may have for a part at a time; and where nobody
        knows how long the whole is, it is read as it comes."""
        if lacking(error) is not None or self._opens.ranges.is_unsized(self._entry):
            trio.lowlevel.spawn_system_task(self._read_by_ranges)
        else:
            self._over(error, 0, 0)

    async def _read_by_ranges(self) -> None:
        try:
            handle = await self._opens.ranges.open(self._entry)
        except Exception as error:
            if lacking(error) is None or self._opens.ranges.is_unsized(self._entry):
                self._over(error, 0, 0)
                return
            handle = 0  # no descriptor is left to hold the file open: each READ opens it for itself
        if not self._again:
            self._opens.counted.direct()
        self._over(None, handle, 0)

    def _over(self, error: Exception | None, handle: int, source_bytes: int) -> None:
        self._opens.stalled(self._began_s)
        try:
            self._landed(error, handle, source_bytes)
        except Exception:  # a bug there costs the reader, never the mount
            log.exception("the end of a fetch could not be told")


class Opens:
    """See the module. A file is opened as the one sample that it is; a file of several samples is read by ranges.

    Attributes:
        ranges: for readers who read the source by ranges. counted: counts what was opened.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        driver: Driver,
        tickets: Tickets,
        ranges: Ranges,
        counted: CountedOpens,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._table = scheduler.table
        self._driver = driver
        self._tickets = tickets
        self.ranges = ranges
        self.counted = counted
        self._counted_staged = counted.staged
        self._counters = counters
        self._clock = clock

    def hit(self, entry: int) -> bool:
        """Whether the file's pages are in place; counts the read if so. No waiting: the path of every staged open."""
        state = self._table.state[entry]
        if state == State.DROPPING:
            self._driver.step(Touched(entry))
            state = self._table.state[entry]
        if state == State.STAGED or state == State.RECENT:  # noqa: PLR1714 - a tuple costs more
            self._counted_staged(entry)
            return True
        return False

    def hit_again(self, entry: int) -> bool:
        """The same for a reader whose read was counted already, when the file turned out to have changed."""
        if self._table.state[entry] == State.DROPPING:
            self._driver.step(Touched(entry))
        return self._table.state[entry] in (State.STAGED, State.RECENT)

    def begin(self, entry: int, in_place: InPlace, landed: Landed, again: bool = False) -> None:
        """A reader waits for a file that was not in place. `landed` is told, before this returns maybe.

        Args:
            again: his read was counted already.
        """
        self._tickets.wait(entry, _Open(self, entry, in_place, landed, self._clock(), again))

    async def open(self, entry: int) -> tuple[int, int]:
        """Wait for a file: 0 or a large file's handle, and what the source gave. Raises: OSError."""
        over = trio.Event()
        result: list[tuple[Exception | None, int, int]] = []

        def landed(error: Exception | None, handle: int, source_bytes: int) -> None:
            result.append((error, handle, source_bytes))
            over.set()

        self.begin(entry, lambda _: False, landed)
        await over.wait()
        error, handle, source_bytes = result[0]
        if error is not None:
            raise error
        return handle, source_bytes

    def stalled(self, began_s: float) -> None:
        """A reader has waited since then."""
        self._counters.stall(self._clock() - began_s)
