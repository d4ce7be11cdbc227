"""Tells the scheduler of reads in batches: a moment later, and off the readers' path.

In: opens as they are asked for, readers who waited and go on (from the worker that answered), releases; READs that
waited. Out: events for the scheduler. Those who observe hear of each open once the jobs have counted its batch. Which
process reads, and who its parent is, is looked up here, once a reader. In a server that takes over, the first reads are
those that the one before it had noted and not counted, and none is counted before the jobs go on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import trio
from numpy.typing import NDArray

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.read_trail import Noted, ReadTrail
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import Read
from mlfs.plan.scheduler.events import Event, Opened, ReadersWaited, ReadsSeen, Refused, SourceGave

# Opens and releases are taken in together, so late: a pass of the scheduler for each would cost every reader.
EVENTS_DELAY_S = 0.01
# Most of them in one step: what the first of them show, that the script began anew or reads as registered after all, is
# acted on before the last are counted.
EVENTS_A_STEP = 64
# The same of opens that are told together: of some milliseconds, in which a step for each 64 would take a third of what
# they cost.
TOLD_A_STEP = 256
# After so long the loop has requests to answer. Sooner costs more than it gives: a pass of trio's scheduler takes as
# long as a step, and memory that requests have pushed out of the processor's caches is read again.
LONGEST_TURN_S = 0.0005
MOST_READERS = 4096
# So long reads wait for jobs that go on from another server: the order of a job of many samples takes longer.
LONGEST_HELD_S = 10.0
# Kinds of what is seen of a file: an open of one that is in place; an open that waits, and its end, which is that the
# reader goes on, or is refused; bytes that the source gave to a reader who has it open; a READ that tells of a row; and
# opens that were told together.
OPENS, WAITS, GOES_ON, REFUSED, GAVE, ROW, TOLD = range(7)
NOTED = frozenset({OPENS, WAITS, ROW})
# An event that was seen and is not told yet: its kind, the file, the reader's thread, when, and the bytes that the
# source gave (of GOES_ON and GAVE). It is a plain tuple, as one is made for each open.
_Seen = tuple[int, int, int, float, int]
Entries = NDArray[np.int64]
"""Files, shape (n,)."""
Pids = NDArray[np.int32]
"""The reader of each, shape (n,); 0: the kernel does not name him."""


class Uncounted(NamedTuple):
    """The reads that were noted, and may not be counted.

    Attributes:
        trail: of the reads that come, too. by_jobs: so many of them were counted by jobs, and heard of by others.
        by_place: so many were counted by where their bytes came from. takes_over: whether another process noted them.
    """

    trail: ReadTrail
    by_jobs: int = 0
    by_place: int = 0
    takes_over: bool = False


def name_of(pid: int) -> str:
    """The name of the program that a process runs; "" when there is none of that number."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as comm:
            return comm.read().decode(errors="replace").strip()
    except OSError:
        return ""


def kin_of(pid: int) -> tuple[int, int]:
    """The process of a thread of this machine, and its parent; (pid, 0) when there is none of that number."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            fields = dict(line.split(b":", 1) for line in status.read().splitlines() if b":" in line)
        return int(fields[b"Tgid"]), int(fields[b"PPid"])
    except (OSError, KeyError, ValueError):
        return pid, 0


class Digest:
    """Collects opens and releases, and tells the scheduler of them together.

    Args:
        step: takes events for the scheduler. tell: hears of the opens of a batch.
        clock: seconds, monotone; also called by workers. kin_of: the process of a thread, and its parent.
        uncounted: by the process before this one, which has noted them.

    Attributes:
        nameless: opens by readers whom the kernel does not name (pid 0), as they are in another pid namespace.
    """

    def __init__(
        self,
        step: Callable[..., None],
        tell: Callable[[Sequence[Read]], None],
        clock: Callable[[], float],
        kin_of: Callable[[int], tuple[int, int]],
        uncounted: Uncounted,
    ) -> None:
        self._step = step
        self._tell = tell
        self._clock = clock
        self._kin_of = kin_of
        self._known_kin: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._events: deque[_Seen] = deque()
        self._told: deque[list[Read]] = deque()  # of each event of that kind
        self._released: list[int] = []  # files; their opens are in `_events`, or were taken in before
        self.nameless = 0
        self._waited_s: dict[int, float] = {}  # by file, in READs, not told yet
        self._trail, self._by_place = uncounted.trail, uncounted.by_place
        self._note = self._trail.note
        self._busy = uncounted.takes_over
        self._jobs_go_on = trio.Event()
        self._asked_before: dict[int, int] = {}  # by thread, the read that it was noted for and asks for again
        self._soon = Coalesced(EVENTS_DELAY_S)
        before = self._trail.since(uncounted.by_jobs)
        self._counted = self._trail.end - len(before)
        if uncounted.takes_over:
            self.meets({noted.thread for noted in before})
            self._events.extend(
                (ROW if kind == ROW else OPENS, sample, pid, clock(), 0) for sample, pid, kind in before
            )
        else:
            self._jobs_go_on.set()

    @property
    def under_way(self) -> int:
        """Opens and releases that were not taken in yet."""
        return self._busy + len(self._events) + len(self._released)

    def given_again(self, asked: Collection[tuple[int, bool]]) -> list[Noted]:
        """Note which requests the process before this one has read and not answered, but may have noted.

        Returns the opens that it has answered and not counted by place.

        Args:
            asked: the threads that ask again, and whether each reads rather than opens.
        """
        noted = self._trail.since(0)
        last = {one.thread: number for number, one in enumerate(noted)}
        unanswered = set()
        for thread, reads in asked:
            number = last.get(thread)
            if number is not None and (noted[number].kind == ROW) == reads:
                self._asked_before[thread] = noted[number].sample
                unanswered.add(number)
        first = len(noted) - min(len(noted), self._trail.end - self._by_place)
        return [noted[n] for n in range(first, len(noted)) if n not in unanswered and noted[n].kind != ROW]

    def _was_noted(self, sample: int, pid: int) -> bool:
        """Whether the process before this one has noted the read that is asked for again."""
        return self._asked_before.pop(pid, None) == sample

    def jobs_go_on(self) -> None:
        """The jobs of the server before this one are followed again, or are not to be."""
        self._jobs_go_on.set()

    @property
    def noted(self) -> tuple[int, int]:
        """How many of the reads that were noted jobs have counted, and how many were counted by place."""
        return self._counted, self._trail.end

    def opened(self, entry: int, pid: int) -> None:
        """A reader opens a file that is in place."""
        if self._asked_before and self._was_noted(entry, pid):
            return
        if not self._soon.called:  # asked here, as nearly always it was called before
            self._soon.call()
        self._note(entry, pid, OPENS)
        self._events.append((OPENS, entry, pid, self._clock(), 0))

    def meets(self, pids: Iterable[int]) -> None:
        """Processes that read are looked up at once, as they may end before their reads are told."""
        for pid in pids:
            if pid not in self._known_kin:
                self._kin(pid)

    def told(self, entries: Entries, pids: Pids, closed: Iterable[int]) -> None:
        """Files were opened and closed a moment ago, which is taken in at once.

        Args:
            entries: the opened files. closed: files.
        """
        readers = pids.tolist()
        kin = {pid: self._known_kin.get(pid) or self._kin(pid) for pid in set(readers)}
        if 0 in kin:
            self.nameless += readers.count(0)
        self._trail.note_all(entries, pids, OPENS)
        processes, parents = [kin[pid][0] for pid in readers], [kin[pid][1] for pid in readers]
        fields = zip(entries.tolist(), processes, parents, repeat(self._clock()), strict=False)
        while reads := list(map(tuple.__new__, repeat(Read), islice(fields, TOLD_A_STEP))):
            self._told.append(reads)
            self._events.append((TOLD, 0, 0, 0.0, 0))
        self._released.extend(closed)
        self._soon.now()

    def reads_row(self, row: int, pid: int) -> None:
        """A reader reads a row of a file that it has open. Those who observe opens do not hear of it."""
        if self._asked_before and self._was_noted(row, pid):
            return
        self._soon.call()
        self._note(row, pid, ROW)
        self._events.append((ROW, row, pid, self._clock(), 0))

    def waits(self, entry: int, pid: int) -> None:
        """A reader opens a file that is not in place: `goes_on` has to follow, or `refused`."""
        if self._asked_before and self._was_noted(entry, pid):
            return
        self._soon.call()
        self._note(entry, pid, WAITS)
        self._events.append((WAITS, entry, pid, self._clock(), 0))

    def goes_on(self, entry: int, pid: int, source_bytes: int) -> None:
        """A reader who waited has the file open. `source_bytes`: what the source gave for it."""
        self._soon.call()
        self._events.append((GOES_ON, entry, pid, self._clock(), source_bytes))

    def goes_on_in_worker(self, entry: int, pid: int, source_bytes: int) -> None:
        """The same from a worker, before the reader can know: what he does next counts later. `soon` has to follow."""
        self._events.append((GOES_ON, entry, pid, self._clock(), source_bytes))

    def soon(self) -> None:
        """On the loop: take in what was opened and closed, a moment later."""
        self._soon.call()

    def refused(self, entry: int, pid: int) -> None:
        """A reader who waited gets an error."""
        self._soon.call()
        self._events.append((REFUSED, entry, pid, self._clock(), 0))

    def released(self, entry: int) -> None:
        """A reader closed the file."""
        if not self._soon.called:
            self._soon.call()
        self._released.append(entry)

    def source_gave(self, entry: int, size_bytes: int) -> None:
        """The source gave bytes of the file to a reader who holds it open."""
        self._soon.call()
        self._events.append((GAVE, entry, 0, 0.0, size_bytes))

    def waited(self, entry: int, seconds: float) -> None:
        """A reader has waited in a READ of the file."""
        self._soon.call()
        self._waited_s[entry] = self._waited_s.get(entry, 0.0) + seconds

    async def run(self) -> None:
        with trio.move_on_after(LONGEST_HELD_S):
            await self._jobs_go_on.wait()
        self._busy = False
        self._soon.call()
        while True:
            await self._soon.wait()
            self._busy, left = True, len(self._events)
            released, self._released = self._released, []
            if self._waited_s:
                waited_s, self._waited_s = self._waited_s, {}
                self._step(*(ReadersWaited(entry, seconds) for entry, seconds in waited_s.items()))
            try:
                ends_s = self._clock() + LONGEST_TURN_S
                over = not left and not released
                while not over:
                    left = self._take_in(left, released)
                    over = not left
                    if self._clock() >= ends_s:
                        await trio.lowlevel.checkpoint()
                        ends_s = self._clock() + LONGEST_TURN_S
            finally:
                self._busy = False

    def take_in_now(self) -> None:
        """Tell the scheduler of all that was seen, for somebody who asks what comes next; not amid a batch."""
        while self._events and not self._busy:
            self._take_in(len(self._events), ())

    async def taken_in(self) -> None:
        """All that was seen before this call is told."""
        while self._busy:
            await trio.sleep(EVENTS_DELAY_S)
        self.take_in_now()

    def _take_in(self, left: int, released: Sequence[int]) -> int:
        """Have the scheduler count as many of the first events as make a step, and then those who observe look at it.

        Args:
            left: how many may be taken in. released: is counted with the last of them.

        Returns how many of them are left.
        """
        events: list[Event] = []
        opens: list[Read] = []
        rows: list[Read] = []
        reads: list[Read] = []  # what is told together: of samples in place
        last = max(0, left - EVENTS_A_STEP)
        while left > last:
            kind, entry, pid, at_s, source_bytes = self._events.popleft()
            left -= 1
            if kind == TOLD:
                told = self._told.popleft()
                self._counted += len(told)
                reads = reads + told if reads else told
                break
            self._counted += kind in NOTED
            process, parent = self._known_kin.get(pid) or self._kin(pid)
            if kind == OPENS:
                # tuple.__new__ makes a named tuple in half of the time.
                reads.append(tuple.__new__(Read, (entry, process, parent, at_s)))
                if not pid:
                    self.nameless += 1
                continue
            if reads:
                events.append(ReadsSeen(reads))
                opens += reads
                reads = []
            if kind == WAITS:
                self.nameless += not pid
                read = Read(entry, process, parent, at_s)
                events.append(ReadsSeen((read,), waits=True))
                opens.append(read)
            elif kind == GOES_ON:
                events.append(Opened(entry, process, at_s, source_bytes))
            elif kind == REFUSED:
                events.append(Refused(entry, process))
            elif kind == ROW:
                self.nameless += not pid
                rows.append(Read(entry, process, parent, at_s))
            else:
                events.append(SourceGave(entry, source_bytes))
        if rows:
            events.append(ReadsSeen(rows))
        released = () if left else released
        if reads or released:
            events.append(ReadsSeen(reads, released))
        self._step(*events)
        self._tell([*opens, *reads] if opens else reads)
        return left

    def process_of(self, pid: int) -> int:
        """The process of a reader, as reads have it."""
        return (self._known_kin.get(pid) or self._kin(pid))[0]

    def _kin(self, pid: int) -> tuple[int, int]:
        """The process of a reader (a thread, maybe) who is seen for the first time, and that one's parent."""
        kin = self._known_kin[pid] = self._kin_of(pid) if pid else (NO_PID, 0)
        if len(self._known_kin) > MOST_READERS:
            self._known_kin.popitem(last=False)
        return kin
