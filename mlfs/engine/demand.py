"""The demand path: opens and reads that found nothing staged, answered at once from the nearest place.

In: opens and reads from the request handlers, on the loop. Out: permission to go on (the pages are there), a handle
for a large file, or bytes; OSError only when the source failed twice. Nothing here depends on a prediction being right.

Two rules keep reads right (docs/concurrency.md): a READ never waits for a push, since it holds the very page locked
that the push needs; and a handle of an older generation gets ESTALE instead of a mix of two contents.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.pagecache import Buffer
from mlfs.engine.prefetch import Prefetcher
from mlfs.engine.runner import Call, Runner
from mlfs.engine.staging import Staging
from mlfs.engine.table import SampleTable, State
from mlfs.places.source import OpenFile
from mlfs.stats import Counters
from mlfs.tree.manifest import clamp_ns

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")
Landed = Callable[[Exception | None], None]

IN_PLACE = (State.STAGED, State.RECENT)
LARGEST_WHOLE_DEMAND_BYTES = 4 << 20
OPEN_TRIES = 3
HOT_BYTES = 16 << 20
FIRST_LARGE_HANDLE = 1 << 60
REPLACED_ERRORS = frozenset({errno.ENOENT, errno.ESTALE, errno.ELOOP})
FINAL_ERRORS = frozenset({errno.ENOENT, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP})


class LargeHandle(NamedTuple):
    """An open large file, read by ranges from one descriptor: one content, whatever happens to the name."""

    entry: int
    generation: int
    opened: OpenFile


class _Flight:
    """A fetch under way for a reader who waits: when it is given up on, and a second one made."""

    __slots__ = ("call", "due_s", "entry", "in_place", "landed")

    def __init__(self, entry: int, in_place: Callable[[], bool], landed: Landed, due_s: float) -> None:
        self.entry = entry
        self.in_place = in_place
        self.landed = landed
        self.due_s = due_s
        self.call: Call


def _failure(entry: int, error: BaseException | None) -> Fetched:
    """The outcome of a fetch that raised. What is no OSError is a bug: it costs this read EIO, never the mount."""
    if isinstance(error, OSError):
        return Fetched(entry, error=error)
    log.error("a fetch failed in an unforeseen way", exc_info=error)
    return Fetched(entry, error=OSError(errno.EIO, "an internal error, see the log"))


class Demand:
    """Opens and reads of one mount.

    Attributes:
        from_pfs: bytes fetched from the PFS by opens that the jobs have not digested yet, by entry.

    Args:
        clock: seconds, monotone.
        hedge_s: how long the source may take before it is asked once more, in another thread.
        timeout_s: how long that second try may take before the reader gets ETIMEDOUT.
        keep: called with what was fetched from the PFS, for a tier to keep it.
    """

    def __init__(
        self,
        table: SampleTable,
        staging: Staging,
        fetcher: Fetcher,
        prefetcher: Prefetcher,
        counters: Counters,
        runner: Runner,
        clock: Callable[[], float],
        hedge_s: float,
        timeout_s: float,
        keep: Callable[[Fetched], None],
    ) -> None:
        self.table = table
        self.staging = staging
        self.fetcher = fetcher
        self.prefetcher = prefetcher
        self.counters = counters
        self.runner = runner
        self.clock = clock
        self.hedge_s = hedge_s
        self.timeout_s = timeout_s
        self._keep = keep
        self.from_pfs: dict[int, int] = {}
        self._flights: dict[_Flight, None] = {}
        self._watch: trio.CancelScope | None = None
        self._failed: list[_Flight] = []
        self._large: dict[int, LargeHandle] = {}
        self._large_ids = itertools.count(FIRST_LARGE_HANDLE)
        self._hot: OrderedDict[int, tuple[int, Buffer]] = OrderedDict()
        self._hot_bytes = 0
        self._hot_flights: dict[int, trio.Event] = {}

    # -- open

    def hit(self, entry: int) -> bool:
        """Whether the entry's pages are in place; counts the read if so. No waiting: the path of every staged open."""
        state = self.table.state[entry]
        if state in IN_PLACE or (state == State.DROPPING and self.staging.rescue(entry, State.RECENT)):
            self.counters.read("page_cache", self.table.sizes[entry])
            return True
        return False

    def begin(self, entry: int, in_place: Callable[[], bool], landed: Landed) -> bool:
        """Begin to fetch an entry for a reader who waits. False when it is to wait for something else: see `open`.

        Args:
            in_place: called, by the worker that fetched them, as soon as the bytes are in place. Returns whether it let
                the reader go on, who then need not wait for this loop.
            landed: told in the end, on the loop, of the error if there was one.
        """
        began_s = self.clock()

        def over(error: Exception | None) -> None:
            self.counters.stall(self.clock() - began_s)
            landed(error)

        return self._begin(entry, in_place, over)

    async def open(self, entry: int) -> int:
        """Get the entry's bytes in place for a reader who waits.

        Returns: 0, or the number of a handle to read a large file with. Raises: OSError.
        """
        began = self.clock()
        try:
            while True:
                if self.table.state[entry] == State.ABSENT and self.table.sizes[entry] > LARGEST_WHOLE_DEMAND_BYTES:
                    return await self._open_large(entry)
                if await self._fetched(entry):
                    return 0
                if self.table.state[entry] not in (State.FETCHING, State.DROPPING):
                    self.hit(entry)
                    return 0
                if not await self._settled(entry):
                    return await self._overtake(entry)
        finally:
            self.counters.stall(self.clock() - began)

    async def _fetched(self, entry: int) -> bool:
        """Fetch if nobody else does. Raises: OSError."""
        over, errors = trio.Event(), []

        def landed(error: Exception | None) -> None:
            errors.append(error)
            over.set()

        if not self._begin(entry, lambda: False, landed):
            return False
        await over.wait()
        if errors[0] is not None:
            raise errors[0]
        return True

    async def _settled(self, entry: int) -> bool:
        with trio.move_on_after(self.hedge_s):
            settled = self.staging.settled(entry)
            self.prefetcher.collect(entry)  # after that: a worker leaves its result first, and then looks who waits
            await settled.wait()
            return True
        return False

    def _begin(self, entry: int, in_place: Callable[[], bool], landed: Landed) -> bool:
        state = self.table.state[entry]
        if state == State.ABSENT and self.table.sizes[entry] <= LARGEST_WHOLE_DEMAND_BYTES:
            self.staging.make_room(self.table.footprint(entry))
            self.table.move(entry, State.FETCHING)  # a reader waits: what is still being dropped is not waited for
        elif state != State.FETCHING or not self.prefetcher.claim(entry):
            return False
        self.fetcher.routes.tried.discard(entry)  # a reader waits: this is no time to try how a tier does now
        flight = _Flight(entry, in_place, landed, trio.current_time() + self.hedge_s)
        then = partial(self._arrived, flight)
        try:
            flight.call = self.runner.start("demand", self._fetch_and_tell, entry, in_place, then=then)
        except Exception as error:  # no thread is to be had
            self.staging.finish(entry, _failure(entry, error))
            raise
        self._flights[flight] = None
        if self._watch is not None and self._watch.deadline == math.inf:
            self._watch.deadline = flight.due_s
        return True

    async def run(self) -> None:
        """See after fetches that hang or failed, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                for flight in self._to_repeat():
                    nursery.start_soon(self._fetch_once_more, flight)
                oldest = next(iter(self._flights), None)
                with trio.CancelScope(deadline=oldest.due_s if oldest else math.inf) as self._watch:
                    await trio.sleep_forever()

    def _to_repeat(self) -> list[_Flight]:
        repeat, self._failed = self._failed, []
        for flight in list(self._flights):
            if flight.due_s > trio.current_time():
                break
            del self._flights[flight]
            flight.call.give_up()
            self._too_slow()
            repeat.append(flight)
        return repeat

    def _arrived(self, flight: _Flight, fetched: Fetched | None, error: BaseException | None) -> None:
        del self._flights[flight]
        if fetched is None:
            self._landed(flight, _failure(flight.entry, error))
        elif self._to_retry(fetched):
            self._failed.append(flight)
            if self._watch is not None:
                self._watch.deadline = -math.inf  # now
        else:
            self._landed(flight, fetched)

    async def _fetch_once_more(self, flight: _Flight) -> None:
        try:
            fetched = await self._once_more("demand", self._fetch_and_tell, flight.entry, flight.in_place)
        except Exception as error:
            fetched = _failure(flight.entry, error)
        self._landed(flight, fetched)

    def _landed(self, flight: _Flight, fetched: Fetched) -> None:
        error: Exception | None = fetched.error
        try:
            self.staging.finish(flight.entry, fetched._replace(data=None), in_use=True)
            if error is None:
                self.counters.read(fetched.route, fetched.size_bytes)
                if fetched.route == "pfs":
                    self._keep(fetched)
        except Exception as bug:  # the reader must not wait for ever
            error = _failure(flight.entry, bug).error
        try:
            flight.landed(error)
        except Exception:  # a bug there costs the reader, never the mount
            log.exception("the end of a fetch could not be told")

    def _fetch_and_tell(self, entry: int, in_place: Callable[[], bool]) -> Fetched:
        try:
            fetched = self.fetcher.fetch(entry, close_later=True)
            if fetched.error is None and fetched.route == "pfs":
                self.from_pfs[entry] = fetched.size_bytes  # before the open can be digested
            answered = fetched.staged and in_place()
        finally:
            self.fetcher.source.close_read()
        if answered and entry not in self.staging.waiters:
            self.runner.unhurried()
        return fetched

    async def _overtake(self, entry: int) -> int:
        """A prefetch of the entry hangs: answer the reader by a way of its own, and leave the state to the prefetch."""
        self.counters.error("prefetch_hung")
        self.prefetcher.hangs(entry)
        if self.fetcher.passed_over(entry):
            self.fetcher.routes.come_back(self.clock())
            if self.table.sizes[entry] <= LARGEST_WHOLE_DEMAND_BYTES:
                return 0  # READ requests are answered from the tier
        return self._add_large(entry, await self._open_current(entry))

    async def _open_large(self, entry: int) -> int:
        opened = await self._open_current(entry)
        self.counters.read("pfs", opened.version.size)
        self.counters.fetch("pfs", opened.version.size)
        self.from_pfs[entry] = opened.version.size
        return self._add_large(entry, opened)

    async def _open_current(self, entry: int) -> OpenFile:
        """The source file, of the content that the manifest shows when this returns: the handle gets its generation.

        Somebody else may have noticed a change between the open in a worker and its result here: then what is open is
        of the past, and must not be read under the attributes of now.
        """
        for _ in range(OPEN_TRIES):
            opened = await self._twice("demand", self._open_or_error, entry)
            if isinstance(opened, OSError):
                raise opened
            if self.fetcher.version(entry) == (opened.version.size, clamp_ns(opened.version.mtime_ns)):
                return opened
            opened.close()
        raise OSError(errno.ESTALE, "the file keeps changing at the source")

    def _add_large(self, entry: int, opened: OpenFile) -> int:
        handle = next(self._large_ids)
        self._large[handle] = LargeHandle(entry, self.fetcher.manifest.generation_view[entry], opened)
        return handle

    def _open_or_error(self, entry: int) -> OpenFile | OSError:
        try:
            return self.fetcher.open(entry)
        except OSError as error:
            return error

    # -- read

    async def read(self, entry: int, generation: int, offset: int, size: int) -> Buffer:
        """Bytes of an entry whose page the kernel does not have (any more)."""
        self._check_generation(entry, generation)
        try:
            if self.table.sizes[entry] > LARGEST_WHOLE_DEMAND_BYTES:
                return await self._read_range(entry, generation, offset, size)
            data = await self._hot_bytes_of(entry, generation)
        except OSError as error:
            if error.errno not in REPLACED_ERRORS:
                raise
            self.staging.forget(entry)  # or the next open would find it in place, too
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened") from None
        return memoryview(data)[offset : offset + size]

    async def read_large(self, number: int, offset: int, size: int) -> Buffer:
        """Bytes through a large file's handle."""
        handle = self._large[number]
        self._check_generation(handle.entry, handle.generation)
        result = await self._twice("read", self._read_or_error, handle.opened, offset, size)
        if isinstance(result, OSError):
            raise result
        return result

    def close_large(self, number: int) -> int:
        """Close a large file's handle; returns its entry."""
        handle = self._large.pop(number)
        handle.opened.close()
        return handle.entry

    def _check_generation(self, entry: int, generation: int) -> None:
        if self.fetcher.manifest.generation_view[entry] != generation:
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened")

    async def _read_range(self, entry: int, generation: int, offset: int, size: int) -> Buffer:
        opened = await self._twice("read", self._open_unchanged, entry)
        if isinstance(opened, OSError):
            raise opened
        try:
            self._check_generation(entry, generation)
            result = await self._twice("read", self._read_or_error, opened, offset, size)
        finally:
            opened.close()
        if isinstance(result, OSError):
            raise result
        return result

    def _open_unchanged(self, entry: int) -> OpenFile | OSError:
        try:
            opened = self.fetcher.source.open(entry)
        except OSError as error:
            return error
        if opened.changed:
            opened.close()
            return OSError(errno.ESTALE, "the file changed at the source since it was opened")
        return opened

    def _read_or_error(self, opened: OpenFile, offset: int, size: int) -> Buffer | OSError:
        try:
            return opened.read(offset, size)
        except OSError as error:
            return error

    async def _hot_bytes_of(self, entry: int, generation: int) -> Buffer:
        """The whole content, fetched once for the several READs of a file that come together."""
        while True:
            held = self._hot.get(entry)
            if held is not None and held[0] == generation:
                return held[1]
            flight = self._hot_flights.get(entry)
            if flight is None:
                break
            await flight.wait()
        self._hot_flights[entry] = trio.Event()
        began = self.clock()
        try:
            fetched = await self._twice("read", self.fetcher.read_bytes, entry)
            self._check_generation(entry, generation)
        finally:
            self._hot_flights.pop(entry).set()
            self.counters.stall(self.clock() - began)
        if fetched.error is not None or fetched.data is None:
            raise fetched.error or OSError(errno.EIO, "no data")
        self.counters.fetch(fetched.route, fetched.size_bytes, fetched.by_choice)
        self.counters.error("pages_taken_back")
        self._remember(entry, generation, fetched.data)
        return fetched.data

    def _remember(self, entry: int, generation: int, data: Buffer) -> None:
        old = self._hot.pop(entry, None)
        self._hot_bytes += len(data) - (len(old[1]) if old else 0)
        self._hot[entry] = (generation, data)
        while self._hot_bytes > HOT_BYTES:
            _, (_, oldest) = self._hot.popitem(last=False)
            self._hot_bytes -= len(oldest)

    # -- the source fails or hangs

    async def _twice(self, pool: str, call: Callable[..., T], *args: object) -> T:
        """Run a call on the source; when it fails or hangs, once more. Raises ETIMEDOUT when the second hangs."""
        try:
            result = await self.runner.run_within(self.hedge_s, pool, call, *args)
        except trio.TooSlowError:
            self._too_slow()
        else:
            if not self._to_retry(result):
                return result
        return await self._once_more(pool, call, *args)

    async def _once_more(self, pool: str, call: Callable[..., T], *args: object) -> T:
        try:
            return await self.runner.run_within(self.timeout_s, pool, call, *args)
        except trio.TooSlowError:
            self._too_slow()
            raise OSError(errno.ETIMEDOUT, f"the source did not answer within {self.timeout_s:g} s, twice") from None

    def _too_slow(self) -> None:
        self.counters.error("source_timeout")
        self.fetcher.routes.come_back(self.clock())

    def _to_retry(self, result: object) -> bool:
        error = result if isinstance(result, OSError) else getattr(result, "error", None)
        if error is None or error.errno in FINAL_ERRORS:
            return False
        self.counters.error("source_retried")
        return True
