"""Tells the scheduler of reads in batches: a moment later, and off the readers' path.

In: opens as they are asked for, readers who waited and go on (from the worker that answered), releases; READs that
waited. Out: events for the scheduler. Those who observe hear of each open once the jobs have counted its batch. Which
process reads, and who its parent is, is looked up here, once a reader.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

import trio

from mlfs.engine.coalesce import Coalesced
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import Read
from mlfs.plan.scheduler.events import Event, Opened, ReadersWaited, ReadsSeen, Refused, SourceGave

# Opens and releases are taken in together, so late: a pass of the scheduler for each would cost every reader.
EVENTS_DELAY_S = 0.01
# Most of them in one step: what the first of them show, that the script began anew or reads as registered after all, is
# acted on before the last are counted.
EVENTS_A_STEP = 64
# After so long the loop has requests to answer. Sooner costs more than it gives: a pass of trio's scheduler takes as
# long as a step, and memory that requests have pushed out of the processor's caches is read again.
LONGEST_TURN_S = 0.0005
MOST_READERS = 4096
# Kinds of what is seen of a file: an open of one that is in place; an open that waits, and its end, which is that the
# reader goes on, or is refused; bytes that the source gave to a reader who has it open; a READ that tells of a row.
OPENS, WAITS, GOES_ON, REFUSED, GAVE, ROW = range(6)
# An event that was seen and is not told yet: its kind, the file, the reader's thread, when, and the bytes that the
# source gave (of GOES_ON and GAVE). It is a plain tuple, as one is made for each open.
_Seen = tuple[int, int, int, float, int]


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

    Attributes:
        nameless: opens by readers whom the kernel does not name (pid 0), as they are in another pid namespace.
    """

    def __init__(
        self,
        step: Callable[..., None],
        tell: Callable[[Sequence[Read]], None],
        clock: Callable[[], float],
        kin_of: Callable[[int], tuple[int, int]],
    ) -> None:
        self._step = step
        self._tell = tell
        self._clock = clock
        self._kin_of = kin_of
        self._known_kin: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._events: deque[_Seen] = deque()
        self._released: list[int] = []  # files; their opens are in `_events`, or were taken in before
        self.nameless = 0
        self._waited_s: dict[int, float] = {}  # by file, in READs, not told yet
        self._busy = False
        self._soon = Coalesced(EVENTS_DELAY_S)

    @property
    def under_way(self) -> int:
        """Opens and releases that were not taken in yet."""
        return self._busy + len(self._events) + len(self._released)

    def opened(self, entry: int, pid: int) -> None:
        """A reader opens a file that is in place."""
        if not self._soon.called:  # asked here, as nearly always it was called before
            self._soon.call()
        self._events.append((OPENS, entry, pid, self._clock(), 0))

    def meets(self, pids: Iterable[int]) -> None:
        """Processes that read are looked up at once, as they may end before their reads are told."""
        for pid in pids:
            if pid not in self._known_kin:
                self._kin(pid)

    def told(self, opened: Sequence[tuple[int, int]], closed: Iterable[int]) -> None:
        """Files were opened and closed a moment ago, which is taken in at once.

        Args:
            opened: the files, each with its reader.
        """
        self.meets({pid for _, pid in opened})
        now_s = self._clock()
        self._events.extend([(OPENS, entry, pid, now_s, 0) for entry, pid in opened])
        self._released.extend(closed)
        self._soon.now()

    def reads_row(self, row: int, pid: int) -> None:
        """A reader reads a row of a file that it has open. Those who observe opens do not hear of it."""
        self._soon.call()
        self._events.append((ROW, row, pid, self._clock(), 0))

    def waits(self, entry: int, pid: int) -> None:
        """A reader opens a file that is not in place: `goes_on` has to follow, or `refused`."""
        self._soon.call()
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
        """For as long as the mount lives."""
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
                    count = min(left, EVENTS_A_STEP)
                    left -= count
                    over = not left
                    self._take_in(count, released if over else ())
                    if self._clock() >= ends_s:
                        await trio.lowlevel.checkpoint()
                        ends_s = self._clock() + LONGEST_TURN_S
            finally:
                self._busy = False

    def take_in_now(self) -> None:
        """Tell the scheduler of all that was seen, for somebody who asks what comes next; not amid a batch."""
        while self._events and not self._busy:
            self._take_in(min(len(self._events), EVENTS_A_STEP), ())

    async def taken_in(self) -> None:
        """All that was seen before this call is told."""
        while self._busy:
            await trio.sleep(EVENTS_DELAY_S)
        self.take_in_now()

    def _take_in(self, count: int, released: Sequence[int]) -> None:
        """Have the scheduler count so many, and what was released, and then those who observe look at it."""
        events: list[Event] = []
        opens: list[Read] = []
        rows: list[Read] = []
        reads: list[Read] = []  # what is told together: of samples in place
        for _ in range(count):
            kind, entry, pid, at_s, source_bytes = self._events.popleft()
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
        if reads or released:
            events.append(ReadsSeen(reads, released))
        self._step(*events)
        self._tell([*opens, *reads] if opens else reads)

    def process_of(self, pid: int) -> int:
        """The process of a reader, as reads have it."""
        return (self._known_kin.get(pid) or self._kin(pid))[0]

    def _kin(self, pid: int) -> tuple[int, int]:
        """The process of a reader (a thread, maybe) who is seen for the first time, and that one's parent."""
        kin = self._known_kin[pid] = self._kin_of(pid) if pid else (NO_PID, 0)
        if len(self._known_kin) > MOST_READERS:
            self._known_kin.popitem(last=False)
        return kin
