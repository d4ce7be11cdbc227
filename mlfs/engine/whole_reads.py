"""READs of small files that are opened without a request: each is a demand read of the whole file.

In: READs on the loop, of files that are not in place. Out: bytes, given by the thread that has them, before it puts the
file into the page cache. So a READ, which holds pages locked, never waits for a push (docs/concurrency.md, rule 4).

A READ waits for the file as an OPEN does where opens are requests: the scheduler chooses the place, has the file
fetched once for all who want it, and kept where is room. Whoever finds no way here reads by ranges, as large files are.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack

import trio

from mlfs.engine.context import Context
from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.digest import Digest
from mlfs.engine.fetch import Fetched, Fetcher, WholeReader
from mlfs.engine.range_reads import ReadReply
from mlfs.engine.ranges import Ranges
from mlfs.limits import lacking
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Waits
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State

log = logging.getLogger("mlfs.engine")

# A READ of a file in one of these states is a demand read. In the others its pages were in place a moment ago.
NOT_IN_PLACE = (State.ABSENT, State.QUEUED, State.FETCHING)


class WholeRead(WholeReader):
    """A READ that waits for a whole file: answered by whoever takes the right to first (see `Answerable`)."""

    __slots__ = ("_due", "_generation", "_given", "_is_untold", "_offset", "_reads", "_reply", "_size", "_waits")

    def __init__(
        self, reads: WholeReads, entry: int, generation: int, offset: int, size: int, reply: ReadReply
    ) -> None:
        super().__init__(entry, reads.clock(), in_read=True)
        self._reads, self._reply = reads, reply
        self._generation, self._offset, self._size = generation, offset, size
        self._due = [True]  # the right to answer, taken out by whoever does, which is atomic
        self._given: Fetched | None = None
        self._waits = ExitStack()
        self._is_untold: bool | None = None

    def begin(self) -> None:
        """On the loop: have it wait."""
        self._is_untold = self._reads.counted.asked(self.sample) if not self._offset else None
        self._waits.enter_context(self._reads.ranges.waits.of(self.sample))
        self._reads.step(Waits(self))
        staging = self._reads.fetcher.being_staged.get(self.sample)
        if staging is not None:  # asked after it waits, or the thread that pushes might have just looked who does
            self._is_given_here(staging)

    def gets(self, fetched: Fetched, generation: int) -> bool:
        data = fetched.data
        if data is None or not self._take():
            return False
        if generation != self._generation:
            self._reply.fails(_stale())
            return False
        self._given = fetched
        self._reply.gives(memoryview(data)[self._offset : self._offset + self._size])
        return not self._offset and self._size >= len(data)

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: whether it has its answer."""
        return not self._due

    def answer(self, brought: Fetched | None) -> None:
        """On the loop: the file is in place, or a place of this node has it. See `Answerable`."""
        if not self._due or (brought is not None and self._is_given_here(brought)):
            self._end(brought)
        else:
            self.open_direct(unstaged=False)

    def open_direct(self, unstaged: bool) -> None:
        if self._take():
            trio.lowlevel.spawn_system_task(self._read_by_ranges)
        else:
            self._end(None)

    def refuse(self, error: OSError) -> None:
        """On the loop: the source failed. Something that this process lacks for the whole it may have for a part."""
        if lacking(error) is not None:
            self.open_direct(unstaged=False)
            return
        if self._take():
            self._reply.fails(error)
        self._end(None)

    def _is_given_here(self, fetched: Fetched) -> bool:
        """On the loop, which knows the generation of a content by its version."""
        samples = self._reads.fetcher.samples
        if fetched.data is None or fetched.version != samples.version_of(self.sample):
            return False
        self.gets(fetched, samples.manifest.generation_view[self.sample])
        return not self._due

    def _take(self) -> bool:
        """Whether the answer is still to be given: by whoever asks, then. From any thread."""
        try:
            return self._due.pop()
        except IndexError:
            return False

    async def _read_by_ranges(self) -> None:
        self._waits.close()  # the ranges count their own
        if self._is_untold is not None:
            self._reads.counted.asked_in_vain(self.sample, self._is_untold)
        try:
            data = await self._reads.ranges.read(self.sample, self._generation, self._offset, self._size)
            self._reply.gives(data)
        except Exception as error:
            self._reply.fails(error)

    def _end(self, brought: Fetched | None) -> None:
        """The rest of an answered READ."""
        self._waits.close()
        try:
            self._reads.over(self.sample, self._given, brought is not None, self._is_untold)
        except Exception:  # a bug there costs the count, never the mount
            log.exception("the end of a READ could not be told")


class WholeReads:
    """Takes READs of files that are not in place."""

    def __init__(
        self, context: Context, scheduler: Scheduler, fetcher: Fetcher, ranges: Ranges, digest: Digest,
        counted: CountedOpens,
    ) -> None:  # fmt: skip
        self.step, self.clock = context.step, context.clock
        self.fetcher, self.ranges = fetcher, ranges
        self._table = scheduler.table
        self._digest, self.counted = digest, counted

    def begin(self, entry: int, generation: int, offset: int, size: int, reply: ReadReply) -> bool:
        """Have a READ answered; False for one that is for `Ranges.read`."""
        if self._table.state[entry] not in NOT_IN_PLACE or not self.ranges.is_whole(entry):
            return False
        WholeRead(self, entry, generation, offset, size, reply).begin()
        return True

    def over(self, entry: int, given: Fetched | None, is_first: bool, is_untold: bool | None) -> None:
        """A READ was answered.

        Args:
            given: what it got. is_first: whether that was fetched for it. is_untold: see `CountedOpens.asked`; None: it
                is not the first READ of an open.
        """
        if given is None:
            return
        kind = self.fetcher.places.kinds[given.place]
        if is_untold is not None:
            self.counted.asked_and_brought(entry, kind, is_untold)
        if is_first and given.place == SOURCE:
            self._digest.source_gave(entry, given.size_bytes)


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
