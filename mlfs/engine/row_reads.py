"""READs of files that a job reads by rows: which row each is of, and who has gone on from which row.

In: READs, on the loop. Out: reads of rows for the digest, as opens are of files; the bytes of tripwires. A row counts
as open from the READ that tells of it until its reader's next one: so its pages are not dropped under him.

Pages that a READ brings of a row that is not staged are dropped behind its reader, too, or nobody would hear of its
next read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mlfs.engine.context import Context
from mlfs.engine.digest import Digest
from mlfs.engine.fetch import Fetcher
from mlfs.engine.pagecache import Buffer
from mlfs.engine.runner import start
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.stats import PAGE_CACHE

log = logging.getLogger("mlfs.engine")


class RowReads:
    """The rows that readers are at, by handle and thread."""

    def __init__(self, context: Context, scheduler: Scheduler, fetcher: Fetcher, digest: Digest) -> None:
        self._runner, self._counters = context.runner, context.counters
        self._scheduler, self._fetcher, self._digest = scheduler, fetcher, digest
        self._rows = fetcher.samples.file_blocks.rows
        self._at: dict[int, dict[int, int]] = {}  # by handle: by thread, the row that it reads

    def read(self, file: int, generation: int, handle: int, offset: int, size: int, pid: int) -> Buffer | None:
        """A READ of a range: note the row that it tells of. Returns its bytes if they are those of a tripwire."""
        if not self._rows.has(file):
            return None
        jobs = self._scheduler.jobs.values()
        for row in self._rows.read(file, offset, size):
            if not any(row < len(job.member) and job.member[row] for job in jobs):
                continue
            if not self._comes_to(row, handle, pid):
                return None
            wire = self._fetcher.tripwires.get(row)
            if wire is None or wire.generation != generation or wire.offset != offset or size > len(wire.data):
                return None
            return memoryview(wire.data)[:size]
        return None

    def _comes_to(self, row: int, handle: int, pid: int) -> bool:
        """Whether a reader reads this row now, as a READ of his seems to say. The kernel may have read on, behind the
        row that he is at: into the next one of the file, if that is not what a job reads next."""
        threads = self._at.setdefault(handle, {})
        before = threads.get(pid)
        if before == row:
            return True
        if before == row - 1 and not self._is_expected(row, pid):
            self.lay_tripwire(row)
            return False
        self._digest.reads_row(row, pid)
        table = self._scheduler.table
        if table.state[row] in (State.STAGED, State.RECENT):
            self._counters.read(PAGE_CACHE, table.sizes[row])
        threads[pid] = row
        if before is not None:
            self._leaves(before)
        return True

    def _is_expected(self, row: int, pid: int) -> bool:
        process = self._digest.process_of(pid)
        jobs = self._scheduler.jobs.values()
        return any(job.member[row] and job.matcher.fits(row, process) for job in jobs if row < len(job.member))

    def lay_tripwire(self, row: int) -> None:
        """The kernel has the page of a row that is to stay away: drop it, or nobody hears of the row's next read."""
        self._drop(row, self._fetcher.drop_tripwire)

    def closed(self, handle: int) -> None:
        """A handle is closed: nobody reads a row by it any more."""
        for row in self._at.pop(handle, {}).values():
            self._leaves(row)

    def _leaves(self, row: int) -> None:
        self._digest.released(row)
        if self._scheduler.table.state[row] in (State.ABSENT, State.QUEUED):
            self._drop(row, self._fetcher.drop_row)

    def _drop(self, row: int, how: Callable[[int], None]) -> None:
        start(self._runner, "drop", how, row, then=partial(_dropped, row))


def _dropped(row: int, _: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("pages of row %d could not be dropped", row, exc_info=error)
