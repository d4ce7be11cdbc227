"""READs of ranges that the source alone has: the worker that has read one answers it, before the loop hears of it.

In: READs of large files, on the loop, as most of those of a cold file are. Out: bytes. Beside the source's own time
each costs one message to a worker. It is counted, and its bytes are remembered, behind the answer.

Only a first try is made here. One that fails, or takes too long, or finds that the file has changed, goes the way of
all other READs (`mlfs.engine.ranges`), where it counts as the first of two.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import trio

from mlfs.engine.block_reads import BlockReads, FromSource, HandedOut, Spent
from mlfs.engine.context import Context
from mlfs.engine.fetch import Fetched, Fetcher, as_os_error, or_error
from mlfs.engine.pagecache import Buffer
from mlfs.engine.runner import Call
from mlfs.engine.shortages import patiently
from mlfs.limits import lacking

log = logging.getLogger("mlfs.engine")

Found = list[tuple[Buffer, int, Fetched | None]]


class ReadReply(Protocol):
    """The way of an answer to one READ."""

    def gives(self, data: Buffer) -> None:
        """From any thread: these are its bytes."""

    def fails(self, error: Exception) -> None:
        """From any thread: it gets this error."""


class RangeReply(ReadReply, Protocol):
    """The same of one that is answered from here, or is not."""

    def noted(self) -> None:
        """On the loop: what it counts for has been noted."""

    def goes_on(self, spent: Spent) -> None:
        """On the loop: it is not answered, and has to be read as others are. Args: spent: for `Ranges.read`."""


class RangeRead:
    """A READ that a worker is at.

    Attributes:
        file: the open file that waits. due: the right to answer, taken out by whoever does, which is atomic.
        call: the worker's. since_s, answered_s: when it began, and had its answer, by the engine's clock.
    """

    __slots__ = ("answered_s", "asked", "call", "count", "due", "file", "reply", "since_s")

    def __init__(self, file: int, asked: FromSource, reply: RangeReply, count: HandedOut, since_s: float) -> None:
        self.file, self.asked, self.reply, self.count = file, asked, reply, count
        self.since_s = self.answered_s = since_s
        self.due = [True]
        self.call: Call | None = None

    def take(self) -> bool:
        """Whether the answer is still to be given: by whoever asks, then. From any thread."""
        try:
            return self.due.pop()
        except IndexError:
            return False


class RangeReads:
    """Takes READs that the source alone can answer.

    Args:
        hedge_s: how long a try may take.
    """

    def __init__(
        self, context: Context, hedge_s: float, fetcher: Fetcher, blocks: BlockReads, waits: ReadWaits
    ) -> None:  # fmt: skip
        self._runner, self._shortages, self._clock = context.runner, context.shortages, context.clock
        self._hedge_s = hedge_s
        self._fetcher, self._blocks, self._waits = fetcher, blocks, waits
        self._generations = fetcher.samples.manifest.generation_view
        self._under_way: dict[RangeRead, None] = {}  # in the order in which they began
        self._watches = False

    def begin(
        self, file: int, entry: int, generation: int, offset: int, size: int, reply: RangeReply, count: HandedOut
    ) -> bool:  # fmt: skip
        """Have a READ of a file in blocks answered, in this generation; False for one that is not for here.

        Args:
            file: the open file that waits. count: told of the places that the bytes came from.
        """
        asked = self._blocks.from_source(entry, generation, offset, size)
        if asked is None:
            return False
        read = RangeRead(file, asked, reply, count, self._clock())
        try:
            read.call = self._runner.start("read", self._in_worker, read, then=partial(self._ended, read))
        except Exception as error:  # no thread is to be had: whoever waits for it says so
            log.debug("a READ goes another way: %s", error)
            return False
        # The rest is done while the worker wakes up. It tells the loop of its end, so not before this is over.
        self._blocks.begins(asked, offset, size)
        self._waits.begins(file)
        self._under_way[read] = None
        if not self._watches:
            self._watches = True
            trio.lowlevel.spawn_system_task(self._watch)
        return True

    def _in_worker(self, read: RangeRead) -> Found | OSError:
        found = or_error(self._read, read)
        if isinstance(found, OSError) and lacking(found) is not None:
            found = patiently(self._shortages, or_error, self._read, read)
        if not read.due and not read.asked.is_awaited:
            self._runner.unhurried()  # the reader has its bytes: the loop need not be woken for what is left to do
        return found

    def _read(self, read: RangeRead) -> Found:
        """Read it, and answer before it is remembered. Raises: OSError."""

        def give(data: bytes) -> None:
            if self._generations[read.asked.entry] != read.asked.generation:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            if read.take():
                read.answered_s = self._clock()
                try:
                    read.reply.gives(data)
                except Exception as error:
                    read.reply.fails(error)

        return self._fetcher.read_ranges(read.asked.parts, give)

    def _ended(self, read: RangeRead, found: Found | OSError | None, error: BaseException | None) -> None:
        """On the loop: the worker is done."""
        if read.due and read.take():
            self._goes_on(read, found if isinstance(found, OSError) else as_os_error(error))
            return
        self._end(read)
        try:
            if found is not None and not isinstance(found, OSError):
                self._blocks.came(read.asked, found, read.count)
        finally:
            read.reply.noted()

    def _end(self, read: RangeRead) -> None:
        self._under_way.pop(read, None)
        self._blocks.is_over(read.asked)
        self._waits.ends(read.file, read.since_s, read.answered_s)

    def _goes_on(self, read: RangeRead, error: OSError | None) -> None:
        """The source has failed, or hangs."""
        read.answered_s = self._clock()
        self._end(read)
        read.reply.goes_on([error])

    async def _watch(self) -> None:
        """Give up tries that take too long. One task does that for all, and it is there while there are any."""
        try:
            while self._under_way:
                read = next(iter(self._under_way))
                wait_s = read.since_s + self._hedge_s - self._clock()
                if wait_s > 0:
                    await trio.sleep(wait_s)
                elif read.take():
                    if read.call is not None:
                        read.call.give_up()
                    self._goes_on(read, None)
                else:  # it has its answer, and the loop is about to hear of it
                    self._under_way.pop(read)
        except Exception:  # a bug: READs that hang do so until the source answers
            log.exception("READs could not be watched")
        finally:
            self._watches = False


# -- how long readers wait in READ requests


class ReadWaits:
    """How long readers wait in READ requests: for pages that the kernel does not have, and for ranges of large files.

    In: READs that have to wait, each with the open file that it is for. Out: waits, told one by one. Loop only.

    The kernel may send several READs of a file at once, for one reader who waits for the first of them. So READs of
    a file that wait at the same time count as one wait: from when the first of them begins until none is left. A
    reader who computes while the kernel reads ahead for it waits less than that.

    Args:
        waited: told of each wait for which open file it was, and how many seconds it took.
    """

    def __init__(self, clock: Callable[[], float], waited: Callable[[int, float], None]) -> None:
        self._clock = clock
        self._waited = waited
        # By open file: READs that are not over, and from when to when those have waited that are.
        self._waiting: dict[int, tuple[int, list[tuple[float, float]]]] = {}

    @contextmanager
    def of(self, file: int) -> Iterator[None]:
        """A READ of the file waits while the context lasts."""
        self.begins(file)
        since_s = self._clock()
        try:
            yield
        finally:
            self.ends(file, since_s, self._clock())

    def begins(self, file: int) -> None:
        """A READ of the file waits, until `ends`."""
        count, waits = self._waiting.get(file, (0, []))
        self._waiting[file] = count + 1, waits

    def ends(self, file: int, since_s: float, until_s: float) -> None:
        """One has waited from when to when: it may have had its answer some time ago."""
        count, waits = self._waiting.pop(file)
        if waits and since_s <= waits[-1][1]:
            since_s, last_s = min(since_s, waits[-1][0]), waits.pop()[1]
            until_s = max(until_s, last_s)
        waits.append((since_s, until_s))
        if count > 1:
            self._waiting[file] = count - 1, waits
            return
        waits.sort()
        for number, (since_s, until_s) in enumerate(waits, 1):
            if number < len(waits) and waits[number][0] <= until_s:
                waits[number] = since_s, max(until_s, waits[number][1])
            else:
                self._waited(file, until_s - since_s)
