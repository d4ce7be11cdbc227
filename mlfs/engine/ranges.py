"""Reads by ranges: what the kernel does not have of an open file, and files too large to be staged for a reader.

In: READ requests, on the loop. Out: bytes; OSError only when the source failed twice. Nothing here depends on a
prediction being right, and nothing here is staged.

Two rules keep reads right (docs/concurrency.md): a READ never waits for a push, since it holds the very page locked
that the push needs; and a handle of an older generation gets the content that it had, by its own descriptor, or ESTALE.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from mlfs.engine.block_reads import BlockReads, HandedOut, Spent
from mlfs.engine.context import Context, MountLimits
from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.digest import Digest
from mlfs.engine.fetch import Fetcher, or_error
from mlfs.engine.hot_contents import HotContent, HotContents
from mlfs.engine.pagecache import Buffer
from mlfs.engine.range_reads import RangeReads, RangeReply, ReadWaits
from mlfs.engine.shortages import patiently
from mlfs.engine.write_behind import WriteBehind
from mlfs.limits import Resource, lacking
from mlfs.places.open_files import SharedFile
from mlfs.places.posix import PosixFile
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Outdated, SourceHung
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.waiting import FINAL_ERRORS

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")

# A file that changes again while it is opened is opened again so often.
OPEN_TRIES = 3
# Contents of small files whose pages the kernel took back: several READs of a file come together.
HOT_BYTES = 16 << 20
FIRST_LARGE_HANDLE = 1 << 60
# Handles that one process may give out, before those of the next one that serves the same mount begin.
NUMBERS_A_LIFE = 1 << 40
# A bit in the number of a large file's handle: the kernel has to pass on each read, as it does not know where the file
# ends. Such a file need not be large.
PASSED_ON = 1 << 58
REPLACED_ERRORS = frozenset({errno.ENOENT, errno.ESTALE, errno.ELOOP})
# The source cannot be asked by the name any more, or refuses it: what is open can be read all the same.
OPEN_STILL_ERRORS = REPLACED_ERRORS | {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}


class LargeHandle(NamedTuple):
    """An open large file: one content, whatever happens to the name.

    Attributes:
        opened: the source's file; None where this node held all of it when it was opened, and nobody had opened it.
        shared: the same where others use it as well, as the file is in blocks.
    """

    entry: int
    generation: int
    opened: PosixFile | None
    shared: SharedFile | None = None


def _close(handle: LargeHandle) -> None:
    if handle.shared is not None:
        handle.shared.close()
    elif handle.opened is not None:
        handle.opened.close()


@dataclass(frozen=True, slots=True)
class RangesStatistics:
    """Large files that are open for reads by ranges, and bytes held of files whose pages the kernel took back."""

    open_files: int
    held_bytes: int


class Ranges:
    """Reads of open files, by their handles: of large ones from the source, of others past the kernel's pages.

    Attributes:
        waits: how long readers wait in READs.
    """

    def __init__(
        self,
        context: Context,
        limits: MountLimits,
        scheduler: Scheduler,
        fetcher: Fetcher,
        write_behind: WriteBehind,
        digest: Digest,
        counted: CountedOpens,
    ) -> None:
        self._step = context.step
        self._runner = context.runner
        self._counters = context.counters
        self._shortages = context.shortages
        self._limits = limits
        self._largest_whole_bytes = limits.of_scheduler().largest_whole_bytes
        self._scheduler = scheduler
        self._fetcher = fetcher
        self._samples, self._places = fetcher.samples, fetcher.places
        self._manifest = fetcher.samples.manifest
        self._write_behind = write_behind
        self._digest = digest
        self._counted = counted
        self.waits = ReadWaits(context.clock, self._waited)
        self._large: dict[int, LargeHandle] = {}
        self._handed_out: dict[int, int] = {}  # by handle of a file in blocks, the bytes that were counted for it
        self._large_numbers = itertools.count(FIRST_LARGE_HANDLE + limits.lives * NUMBERS_A_LIFE)
        self._hot = HotContents(min(HOT_BYTES, limits.buffer_bytes // 8))
        self._blocks = BlockReads(
            context, scheduler, fetcher, write_behind, digest, counted, self._hot, self._once, self._twice,
            limits,
        )  # fmt: skip
        self._reads = RangeReads(context, limits.hedge_s, fetcher, self._blocks, self.waits)
        self._hot_flights: dict[int, trio.Event] = {}
        self._looks: dict[int, trio.Event] = {}  # looks under way at files that were opened without a request

    def statistics(self) -> RangesStatistics:
        return RangesStatistics(len(self._large), self._hot.bytes)

    # -- large files

    async def open(self, entry: int) -> int:
        """Open the source file for one reader: the number of a handle. Raises: OSError.

        The file has the content that the manifest shows when this returns. Somebody else may have noticed a change
        between the open in a worker and its result here: then what is open is of the past, and must not be read under
        the attributes of now.
        """
        if len(self._large) >= self._limits.most_open_files:
            self._shortages.met(Resource.FILES)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self._samples.blocks_of(entry) and not self.is_unsized(entry):
            return await self._open_in_blocks(entry)
        for _ in range(OPEN_TRIES):
            opened = await self._twice("demand", self._fetcher.open, entry)
            if self._fetcher.is_current(entry, opened):
                number = next(self._large_numbers) | (PASSED_ON if opened.unsized else 0)
                self._large[number] = LargeHandle(entry, self._manifest.generation_view[entry], opened)
                return number
            opened.close()
        raise OSError(errno.ESTALE, "the file keeps changing at the source")

    def is_open(self, number: int) -> bool:
        """Whether this process has opened the file of a large file's handle."""
        return number in self._large

    async def open_again(self, number: int, entry: int, generation: int) -> None:
        """Open the file of a handle that another process has given out, which served this mount and died. Raises:
        OSError; ESTALE where the source has another content by now."""
        self._check_generation(entry, generation)
        mine = await self.open(entry)
        handle = self._large.pop(mine)
        if number in self._large or handle.generation != generation:  # another READ was faster; or it has just changed
            _close(handle)
            self._check_generation(entry, generation)
            return
        self._large[number] = handle
        self._handed_out[number] = self._blocks.reached_bytes(entry)

    async def _open_in_blocks(self, entry: int) -> int:
        """The same of a file in blocks. The source opens it once, and only looks at it where this node holds all of
        it."""
        for _ in range(OPEN_TRIES):
            generation, shared = self._manifest.generation_view[entry], None
            kept = self._blocks.kept(entry)
            if kept and self._fetcher.is_verified(entry):
                shared = self._fetcher.take_open(entry) or await self._look_if_it_can_be(entry)
            else:
                shared = await self._twice("demand", self._fetcher.open_shared, entry, not kept)
            if shared is not None:
                generation = self._manifest.generation_view[entry]
                if not self._fetcher.is_current(entry, shared.opened):
                    shared.close()
                    continue
            elif self._manifest.generation_view[entry] != generation:
                continue
            return self._handle(entry, generation, shared)
        raise OSError(errno.ESTALE, "the file keeps changing at the source")

    def open_at_once(self, entry: int) -> int:
        """The same without waiting: of a file in blocks that this node holds all of, and that the source has opened for
        an earlier reader. 0 for any other file."""
        if len(self._large) >= self._limits.most_open_files or self.is_unsized(entry) or not self._blocks.kept(entry):
            return 0
        shared = self._fetcher.take_open(entry) if self._fetcher.is_verified(entry) else None
        return self._handle(entry, self._manifest.generation_view[entry], shared) if shared is not None else 0

    def _handle(self, entry: int, generation: int, shared: SharedFile | None) -> int:
        """A handle of a file in blocks."""
        number = next(self._large_numbers)
        if shared is not None and shared.opened.unsized:
            number |= PASSED_ON
        opened = shared.opened if shared is not None else None
        self._large[number] = LargeHandle(entry, generation, opened, shared)
        return number

    async def _look_if_it_can_be(self, entry: int) -> SharedFile | None:
        """Take hold of a file that this node holds all of: should another one take its name, and the blocks go, the
        handle has its bytes still. A source that fails or hangs does not matter."""
        try:
            opening = self._runner.run_within(
                self._limits.hedge_s, "demand", or_error, self._fetcher.open_shared, entry, False
            )
            return _or_raised(await opening)
        except (OSError, trio.TooSlowError):
            return None

    def kind_of(self, number: int) -> PlaceKind:
        """The place that a large file is read from, as far as its opening tells."""
        handle = self._large.get(number)
        kept = handle is not None and self._is_in_blocks(handle) and self._blocks.kept(handle.entry)
        return self._blocks.kind_of(handle.entry) if handle is not None and kept else PlaceKind.SOURCE

    def staged_bytes(self, number: int) -> int:
        """Bytes of a large file that are in the page cache as it is opened; they count as handed out."""
        handle = self._large.get(number)
        staged = self._blocks.staged_bytes(handle.entry) if handle is not None and self._is_in_blocks(handle) else 0
        self._handed_out[number] = staged
        return staged

    async def look(self, entry: int) -> None:
        """Look whether a large file has changed that was opened without a request, for whoever opens it next."""
        if entry in self._looks:  # somebody looks: what he finds holds for this one, too
            await self._looks[entry].wait()
            return
        over = self._looks[entry] = trio.Event()
        try:
            self.close_large(await self.open(entry))
        except Exception as error:
            log.debug("a look at %r: %s", self._manifest.path(entry), error)
        finally:
            del self._looks[entry]
            over.set()

    def at_hand(self, entry: int) -> tuple[PlaceKind, int]:
        """The place that a large file without a handle is read from, and its bytes in the page cache."""
        kept = self._blocks.kept(entry)
        return self._blocks.kind_of(entry) if kept else PlaceKind.SOURCE, self._blocks.staged_bytes(entry)

    def opened(self, number: int) -> PosixFile | None:
        """The source's file behind a large file's handle, None where it is not open."""
        return self._large[number].opened

    def is_unsized(self, entry: int) -> bool:
        """Whether the size of a file is known to be wrong: only `open` gives a way to all of its bytes."""
        return entry in self._manifest.unsized.files

    def generation_of(self, number: int) -> int:
        """The generation of the content that a large file's handle reads."""
        return self._large[number].generation

    def entry_of(self, number: int) -> int:
        """The entry of a large file's handle."""
        return self._large[number].entry

    def read_at_once(self, number: int, offset: int, size: int) -> Buffer | None:
        """Bytes through a large file's handle that lie in memory; None where they do not: `read_large` follows."""
        handle = self._large.get(number)
        if handle is None or not self._is_in_blocks(handle):
            return None
        part = self._blocks.at_once(handle.entry, handle.generation, offset, size, self._counted.ranged)
        if part is not None:
            self._handed_out[number] = self._handed_out.get(number, 0) + len(part)
        return part

    def begin_large(self, number: int, offset: int, size: int, reply: RangeReply) -> bool:
        """Have a READ through a large file's handle answered that wants what the source alone has; False for any other
        one, which is for `read_large`."""
        handle = self._large.get(number)
        if handle is None or not self._is_in_blocks(handle):
            return False
        return self._reads.begin(number, handle.entry, handle.generation, offset, size, reply, self._count_of(number))

    def begin_untold(self, entry: int, generation: int, offset: int, size: int, reply: RangeReply) -> bool:
        """The same of a large file that was opened without a request; any other READ is for `read`."""
        if not self._samples.blocks_of(entry) or self.is_unsized(entry):
            return False
        return self._reads.begin(entry, entry, generation, offset, size, reply, self._counted.ranged)

    def _count_of(self, number: int) -> HandedOut:
        def count(kind: PlaceKind, size_bytes: int) -> None:
            self._counted.ranged(kind, size_bytes)
            self._handed_out[number] = self._handed_out.get(number, 0) + size_bytes

        return count

    async def read_large(self, number: int, offset: int, size: int, spent: Spent | None = None) -> Buffer:
        """Bytes through a large file's handle. Args: spent: of tries at the source, see `mlfs.engine.range_reads`."""
        handle = self._large[number]
        with self.waits.of(number):
            if self._is_in_blocks(handle):
                try:
                    part = await self._blocks.read(
                        handle.entry, handle.generation, offset, size, self._counted.ranged, spent
                    )  # fmt: skip
                    self._handed_out[number] = self._handed_out.get(number, 0) + len(part)
                    return part
                except OSError as error:
                    goes_on = REPLACED_ERRORS if handle.opened is None else OPEN_STILL_ERRORS
                    if self._is_in_blocks(handle) and error.errno not in goes_on:
                        raise
            if handle.opened is None:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            data: Buffer = await self._twice("read", handle.opened.read, offset, size)
        self._counted.ranged(PlaceKind.SOURCE, len(data))
        self._counted.gave(PlaceKind.SOURCE, len(data))
        self._digest.source_gave(handle.entry, len(data))
        return data

    def _is_in_blocks(self, handle: LargeHandle) -> bool:
        """Whether the handle has the content that blocks are of: that of now."""
        if handle.opened is not None and (handle.shared is None or handle.opened.unsized):
            return False
        return self._manifest.generation_view[handle.entry] == handle.generation

    def _waited(self, file: int, seconds: float) -> None:
        """A READ has waited, of a large file's handle or of another file."""
        self._counters.stall(seconds)
        self._digest.waited(self._large[file].entry if file in self._large else file, seconds)

    def close_large(self, number: int) -> int:
        """Close a large file's handle; returns its entry."""
        handle = self._large.pop(number)
        passed = self._blocks.reached_bytes(handle.entry) - self._handed_out.pop(number, 0)
        if passed > 0:  # the kernel had the rest of what a job's reader has gone through
            self._counted.staged_range(passed)
        _close(handle)
        return handle.entry

    def _check_generation(self, entry: int, generation: int) -> None:
        if self._manifest.generation_view[entry] != generation:
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened")

    # -- pages that the kernel does not have

    def is_whole(self, entry: int) -> bool:
        """Whether a file is one sample, which is read whole."""
        return self._manifest.size_view[entry] <= self._largest_whole_bytes and self._samples.is_one(entry)

    def are_whole(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        small: NDArray[np.bool_] = self._manifest.size[entries] <= self._largest_whole_bytes
        return small & self._samples.are_one(entries)

    async def read(
        self, entry: int, generation: int, offset: int, size: int, untold: bool = False, spent: Spent | None = None
    ) -> Buffer:  # fmt: skip
        """Bytes of a file whose page the kernel does not have (any more).

        Args:
            untold: whether the file was opened without a request: then its pages need not have been there.
            spent: of tries at the source, see `mlfs.engine.range_reads`.
        """
        self._check_generation(entry, generation)
        samples = (entry,) if self._samples.blocks_of(entry) else self._samples.of_file(entry)
        try:
            if not self.is_whole(entry):
                count = self._counted.ranged if untold else partial(self._part_elsewhere, entry, offset)
                return await self._read_part(entry, generation, offset, size, count, spent)
            held = self._hot.get(samples[0], generation)
            if held is None:
                try:
                    with self.waits.of(entry):
                        data = await self._hot_bytes_of(samples[0], entry, generation)
                except OSError as error:
                    if lacking(error) is None:
                        raise
                    count = partial(self._part_elsewhere, entry, offset)
                    return await self._read_part(entry, generation, offset, size, count)  # no room for the whole
            else:
                data = held.data
                if offset == 0:  # the first of the READs of another open
                    self._counted.answered_elsewhere(entry, PlaceKind.RAM)
        except OSError as error:
            if error.errno not in REPLACED_ERRORS:
                raise
            for sample in samples:
                self._step(Outdated(sample))  # or the next open would find it in place, too
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened") from None
        return memoryview(data)[offset : offset + size]

    def _part_elsewhere(self, entry: int, offset: int, kind: PlaceKind, size_bytes: int) -> None:
        """The kernel had taken back a part of a file that counts as staged."""
        self._counted.range_answered_elsewhere(entry, kind, offset, size_bytes)

    async def _read_part(
        self, entry: int, generation: int, offset: int, size: int, count: HandedOut, spent: Spent | None = None
    ) -> Buffer:  # fmt: skip
        with self.waits.of(entry):
            if self._samples.blocks_of(entry) and not self.is_unsized(entry):
                return await self._blocks.read(entry, generation, offset, size, count, spent)
            part = await self._read_range(entry, generation, offset, size)
        count(PlaceKind.SOURCE, len(part))
        self._counted.gave(PlaceKind.SOURCE, len(part))
        self._digest.source_gave(entry, len(part))
        return part

    async def _read_range(self, entry: int, generation: int, offset: int, size: int) -> Buffer:
        with closing(await self._twice("read", self._fetcher.open_unchanged, entry)) as opened:
            self._check_generation(entry, generation)
            return await self._twice("read", opened.read, offset, size)

    async def _hot_bytes_of(self, sample: int, entry: int, generation: int) -> Buffer:
        """The whole content, fetched once for the several READs of a file that come together."""
        while True:
            held = self._hot.get(sample, generation)
            if held is not None:
                return held.data
            flight = self._hot_flights.get(sample)
            if flight is None:
                break
            await flight.wait()
        self._hot_flights[sample] = trio.Event()
        place, instead = self._scheduler.where(sample)
        try:
            fetched = await self._twice("read", self._fetcher.read_bytes, sample, place, instead)
            self._check_generation(entry, generation)
        finally:
            self._hot_flights.pop(sample).set()
        if fetched.error is not None or fetched.data is None:
            raise fetched.error or OSError(errno.EIO, "no data")
        by_choice = bool(instead) and fetched.place == SOURCE
        kind = self._places.kinds[fetched.place]
        self._counters.fetch(kind, fetched.size_bytes, by_choice)
        self._counters.error("pages_taken_back")
        self._counted.answered_elsewhere(entry, kind)
        if fetched.place == SOURCE:
            self._digest.source_gave(entry, fetched.size_bytes)
        if kind.is_afar:
            self._write_behind.got_aside(fetched)
        self._hot.add(sample, HotContent(generation, fetched.data, kind))
        return fetched.data

    # -- the source fails or hangs

    async def _once(self, pool: str, call: Callable[..., T | None], *args: object) -> T | None:
        """Run a call on a place of this node; None when it fails. Raises: trio.TooSlowError when it hangs."""
        result: T | OSError | None = await self._runner.run_within(
            self._limits.hedge_s, pool, partial(patiently, self._shortages, or_error, call, *args)
        )
        return None if isinstance(result, OSError) else result

    async def _twice(self, pool: str, call: Callable[..., T], *args: object, spent: Spent | None = None) -> T:
        """Run a call on the source; when it fails or hangs, once more. Raises: its error; ETIMEDOUT if both hang.

        Args:
            spent: the first of these tries, if it was made already.
        """
        asked: Callable[[], T | OSError] = partial(patiently, self._shortages, or_error, call, *args)
        result: T | OSError | None
        try:
            result = spent.pop() if spent else await self._runner.run_within(self._limits.hedge_s, pool, asked)
        except trio.TooSlowError:
            result = None
        if result is None:
            self._too_slow()
        else:
            error = result if isinstance(result, OSError) else getattr(result, "error", None)
            if error is None or error.errno in FINAL_ERRORS:
                return _or_raised(result)
            self._counters.error("source_retried")
        try:
            return _or_raised(await self._runner.run_within(self._limits.timeout_s, pool, asked))
        except trio.TooSlowError:
            self._too_slow()
            text = f"the source did not answer within {self._limits.timeout_s:g} s, twice"
            raise OSError(errno.ETIMEDOUT, text) from None

    def _too_slow(self) -> None:
        self._counters.error("source_timeout")
        self._step(SourceHung())


def _or_raised(result: T | OSError) -> T:
    """On the loop: the result; an error is raised."""
    if isinstance(result, OSError):
        raise result
    return result
