"""READs of files that a job reads by rows: which row each is of, and who has gone on from which row.

In: READs, on the loop. Out: reads of rows for the digest, as opens are of files; the bytes of tripwires. A row counts
as open from the READ that tells of it until its reader's next one: so its pages are not dropped under him.

The kernel reads on behind what was asked for, and around what a mapping asks for (mm/filemap.c: half of the read-ahead
before it, half behind): so the READs of several rows that lie near each other come together, and one of them is read.
It is the one that comes next in what a job expects of this reader, or soon; where none does, that in the middle of what
was read around, and the first of less: a library has read on behind it.

Pages that a READ brings of a row that is not staged are dropped behind its reader, too, or nobody would hear of its
next read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from itertools import islice

from mlfs.engine.context import Context
from mlfs.engine.digest import Digest
from mlfs.engine.fetch import Fetcher
from mlfs.engine.pagecache import Buffer
from mlfs.engine.runner import start
from mlfs.follow.job import JobRun
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.stats import PAGE_CACHE

log = logging.getLogger("mlfs.engine")

# The kernel's read-ahead of a mount: it reads no further around what was asked for.
AROUND_BYTES = 128 << 10
# Libraries read no more on behind a short row (HDF5 64 KiB, which may begin anywhere in a page).
AHEAD_BYTES = (64 << 10) + 4096
# READs that the kernel sends together are answered within this time, on a machine that is busy as well.
TOGETHER_S = 0.05
# For each reader who comes to a handle so many others are asked for whether they are there still. A worker may have the
# handle of the process that has begun it, which stays open when he is gone.
ASKED_FOR = 2


# Rows that are asked for at a time of what comes next. Each READ that is not the next one has more asked for.
FORESEEN = 64
# The threads of a process come to their rows out of turn: so many others may be before one.
OVERTAKEN = 32
# That is believed of a file whose rows have come so often without those beside them, and it is forgotten as soon.
SURE_ALONE, MOST_ALONE = 4, 16


class _Reader:
    """A thread that reads rows by a handle.

    Attributes:
        row: that it reads, None before the first one. came_s: when it came to that row.
        unclear: rows of READs that came together, one of which it asked for, so that none was counted yet.
        spans: from where to where in the file these READs go.
    """

    __slots__ = ("came_s", "row", "spans", "unclear")

    def __init__(self) -> None:
        self.row: int | None = None
        self.came_s = 0.0
        self.unclear: list[int] = []
        self.spans: tuple[int, int] | None = None

    def comes_to(self, row: int, now_s: float) -> int | None:
        """It reads this row now. Returns the row that it has left."""
        before, self.row, self.came_s = self.row, row, now_s
        return before

    def take_unclear(self) -> list[int]:
        """The rows of which it asked for one; none is left."""
        unclear, self.unclear, self.spans = self.unclear, [], None
        return unclear


class RowReads:
    """The rows that readers are at, by handle and thread."""

    def __init__(self, context: Context, scheduler: Scheduler, fetcher: Fetcher, digest: Digest) -> None:
        self._runner, self._counters, self._clock = context.runner, context.counters, context.clock
        self._scheduler, self._fetcher, self._digest = scheduler, fetcher, digest
        self._rows = fetcher.samples.file_blocks.rows
        self._readers: dict[int, dict[int, _Reader]] = {}  # by handle, by thread
        # By process, the rows that its jobs have it read next, the last one first: each READ would have the scheduler
        # take a step else.
        self._coming: dict[int, list[int]] = {}
        # By file, above 0 where READs of rows come without those of rows beside them, below 0 where not: it is mapped.
        self._alone: dict[int, int] = {}

    def follows(self, file: int) -> bool:
        """Whether jobs read, or have read, rows of a file."""
        return self._rows.has(file)

    def read(self, file: int, generation: int, handle: int, offset: int, size: int, pid: int) -> Buffer | None:
        """A READ of a range: note the row that it tells of. Returns its bytes if they are those of a tripwire."""
        if not self._rows.has(file):
            return None
        members = [job.member for job in self._scheduler.jobs.values()]
        rows = [
            row
            for row in self._rows.read(file, offset, size)
            if any(row < len(member) and member[row] for member in members)
        ]
        if rows:
            self._tells_of(rows, (offset, offset + size), self._reader(handle, pid), pid)
        end = min(offset + size, self._fetcher.samples.sizes[file])
        for row in rows:
            wire = self._fetcher.tripwires.get(row)
            if wire is None or (wire.generation, wire.offset) != (generation, offset):
                continue
            if end - offset <= len(wire.data):
                return memoryview(wire.data)[: end - offset]
        return None

    def _reader(self, handle: int, pid: int) -> _Reader:
        readers = self._readers.setdefault(handle, {})
        if pid not in readers:
            for other in list(islice(readers, ASKED_FOR)):
                one = readers.pop(other)
                if _is_there(other):
                    readers[other] = one  # others are asked for next
                else:
                    self._gone(one, other)
            readers[pid] = _Reader()
        return readers[pid]

    def _tells_of(self, rows: list[int], read: tuple[int, int], reader: _Reader, pid: int) -> None:
        """A READ tells that a reader has come to one of these rows, or that the kernel reads around its row."""
        if reader.row in rows:
            return
        if reader.unclear and not self._are_near(rows[0], reader.unclear[0]):
            self._settle(reader, pid)
        following = self._next_of(rows, reader, pid)
        if following is not None:
            unclear = reader.take_unclear()
            if unclear:
                self._note([following, *unclear])
            others = [row for row in (*unclear, *rows) if row != following]
            self._comes_to(following, reader, pid)
        elif self._are_around(rows, reader):
            others = rows
        else:
            reader.unclear += rows
            begin, end = reader.spans or read
            reader.spans = min(begin, read[0]), max(end, read[1])
            return
        self.lay_tripwires(others, reader.row)

    def _next_of(self, rows: list[int], reader: _Reader, pid: int) -> int | None:
        """The one of these rows that comes next for the reader's process, by what jobs expect; or soon, as its threads
        overtake each other, unless the kernel may have read around, or does so of this file."""
        process = self._digest.process_of(pid)
        coming = self._coming.get(process)
        file = self._rows.file_of(rows[0])
        strict = self._are_around(rows, reader) or self._alone.get(file, 0) < SURE_ALONE
        soon = coming[-1 if strict else -OVERTAKEN :] if coming else []
        following = max((row for row in rows if row in soon), key=soon.index, default=None)
        if coming and following is not None:
            coming.remove(following)
            return following
        self._coming.pop(process, None)
        self._digest.take_in_now()  # or a job would be asked about what it expected some reads ago
        for what in (_is_next,) if strict else (_is_next, _fits):
            following = next((row for row in rows if self._asks(row, pid, what)), None)
            if following is not None:
                break
        for job in self._scheduler.jobs.values() if following is not None else ():
            foreseen = job.matcher.coming(process, FORESEEN)
            if following in foreseen[:OVERTAKEN]:
                foreseen.remove(following)
                self._coming[process] = foreseen[::-1]
        return following

    def _note(self, rows: list[int]) -> None:
        """One of these rows was read: note whether the READ of it came by itself."""
        file = self._rows.file_of(rows[0])
        self._alone[file] = max(
            -MOST_ALONE, min(MOST_ALONE, self._alone.get(file, 0) + (1 if len(rows) == 1 else -SURE_ALONE))
        )

    def _are_around(self, rows: list[int], reader: _Reader) -> bool:
        """Whether the kernel may have read these around the row that a reader has come to."""
        together = self._clock() < reader.came_s + TOGETHER_S
        return together and reader.row is not None and self._are_near(rows[0], reader.row)

    def _are_near(self, row: int, other: int) -> bool:
        return abs(self._rows.offset_of(row) - self._rows.offset_of(other)) <= AROUND_BYTES

    def _settle(self, reader: _Reader, pid: int) -> None:
        """None of the rows comes next: the reader asked for the one in the middle of what the kernel reads around, and
        for the first one of less, unless only others fit what a job reads."""
        begin, end = reader.spans or (0, 0)
        is_around = end - begin > AHEAD_BYTES
        unclear = sorted(reader.take_unclear())
        self._note(unclear)
        row = unclear[(len(unclear) - 1) // 2 if is_around else 0]
        fitting = [one for one in unclear if self._asks(one, pid, _fits)]
        row = row if row in fitting or not fitting else fitting[0]
        self._comes_to(row, reader, pid)
        self.lay_tripwires([other for other in unclear if other != row], row)

    def _comes_to(self, row: int, reader: _Reader, pid: int) -> None:
        """A reader reads this row now, and has left the one before."""
        self._digest.reads_row(row, pid)
        table = self._scheduler.table
        if table.state[row] in (State.STAGED, State.RECENT):
            self._counters.read(PAGE_CACHE, table.sizes[row])
        before = reader.comes_to(row, self._clock())
        if before is not None:
            self._leaves(before)

    def _asks(self, row: int, pid: int, what: Callable[[JobRun], Callable[[int, int], bool]]) -> bool:
        """Ask the jobs that read this row about it and the reader."""
        process = self._digest.process_of(pid)
        jobs = self._scheduler.jobs.values()
        return any(job.member[row] and what(job)(row, process) for job in jobs if row < len(job.member))

    def lay_tripwires(self, rows: Sequence[int], but_for: int | None = None) -> None:
        """The kernel has pages of rows that are to stay away: drop them, or nobody hears of the rows' next reads."""
        if rows:
            start(self._runner, "drop", self._fetcher.lay_tripwires, rows, but_for, then=_dropped)

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def closed(self, handle: int) -> None:
        """A handle is closed: nobody reads a row by it any more."""
        for pid, reader in self._readers.pop(handle, {}).items():
            self._gone(reader, pid)

    def _gone(self, reader: _Reader, pid: int) -> None:
        self._coming.pop(self._digest.process_of(pid), None)
        if reader.unclear:
            self._settle(reader, pid)
        if reader.row is not None:
            self._leaves(reader.row)

    def _leaves(self, row: int) -> None:
        self._digest.released(row)
        if self._scheduler.table.state[row] in (State.ABSENT, State.QUEUED):
            start(self._runner, "drop", self._fetcher.drop_row, row, then=_dropped)


def _is_next(job: JobRun) -> Callable[[int, int], bool]:
    return job.matcher.is_next


def _fits(job: JobRun) -> Callable[[int, int], bool]:
    return job.matcher.fits


def _is_there(thread: int) -> bool:
    """Whether a thread lives; one of another pid namespace, which the kernel calls 0, may."""
    try:
        os.kill(thread or os.getpid(), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _dropped(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("pages of rows could not be dropped", exc_info=error)
