"""The first reads of each process that no job explains, and the last reads of all: bounded, whatever comes.

In: opens (entry, process, its parent). Out: what inferring needs of them. Called by `mlfs.explain.inference` and
`mlfs.explain.inferred_jobs` for each open: cheap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import isqrt

from mlfs.explain.question import MOST_SKIPPED
from mlfs.follow.evidence import UNTIMED, Read
from mlfs.follow.plain_order import LONGEST_STEP, PLAIN_SHARE

# Eight ranks with eight workers each.
MOST_PROCESSES = 64
# A data set of 40 files, the smallest that is searched for, needs some 20 reads; batches of up to 32 show their gap.
MOST_FIRST_READS = 64
# What a job that is found can be shown of what came before: some epochs of a small data set, seconds of a fast loader.
RECENT_READS = 4096
# A process that idles, such as one that only looks at a sample, is waited for this many times as many reads.
_PATIENCE = 8
# Opens of a process that opens files again at once: so many show how a sampler repeats its samples.
REPEATED_OPENS = 15
# By chance a file comes again after about as many as the root of all: after four times as many hardly ever.
_FEWEST_OF_A_PASS = 4
_MOST_BYTES = 64 << 20
# With fewer reads a process shows neither an order nor a place in it.
FEW_READS = 3


@dataclass
class Process:
    """A process, and its first reads.

    Attributes:
        parent: its pid. last: the entry that it has opened last.
        first: entries, one that is opened again at once counted once. times: how often in a row each is opened.
        late: how many of the first ones may be of the pass before.
    """

    parent: int
    first: list[int]
    times: list[int]
    last: int = -1
    late: int = 0


class FirstReads:
    """First reads by process, in the order of each process' first one; and the last reads in order.

    Attributes:
        total: reads seen, those included that were not kept. A file opened twice in a row by a process is one read.
        opened: the same, but each open counts. recent: the last opens; a sampler may repeat its samples.
        processes: those that are remembered, by pid.
    """

    def __init__(self) -> None:
        self.total = self.opened = 0
        self.processes: dict[int, Process] = {}
        self.recent: deque[Read] = deque(maxlen=RECENT_READS)

    def add(self, entry: int, pid: int, parent: int) -> None:
        self.opened += 1
        self.recent.append(Read(entry, pid, parent, UNTIMED))
        process = self.processes.get(pid)
        if process is not None and process.last == entry:
            if process.first[-1] == entry:
                process.times[-1] += 1
            return
        self.total += 1
        if process is None:
            if len(self.processes) >= MOST_PROCESSES and not self._forget_one():
                return
            process = self.processes[pid] = Process(parent, [], [])
        process.last = entry
        if len(process.first) < MOST_FIRST_READS:
            process.first.append(entry)
            process.times.append(1)

    def add_all(self, entries: Sequence[int], pid: int, parent: int) -> None:
        """Add opens of a process, of which all but the last one may be of the pass before."""
        for entry in entries:
            self.add(entry, pid, parent)
        process = self.processes.get(pid)
        if len(entries) > 1 and process is not None:
            process.late = len(entries) - 1

    def _forget_one(self) -> bool:
        """Forget the first process that has read but a few files: `find -exec` begins one for each."""
        short = next((pid for pid, one in self.processes.items() if len(one.first) < FEW_READS), None)
        if short is not None:
            del self.processes[short]
        return short is not None

    def of(self, keep: Callable[[int], bool]) -> FirstReads:
        """The first reads of some processes alone."""
        found = FirstReads()
        for pid in filter(keep, self.processes):
            one = self.processes[pid]
            found.processes[pid] = Process(one.parent, list(one.first), list(one.times), one.last, one.late)
        found.recent.extend(read for read in self.recent if keep(read.process))
        found.opened = self.opened - len(self.recent) + len(found.recent)
        found.total = self.total - _times_read(self.recent) + _times_read(found.recent)
        return found

    def joined(self, others: FirstReads) -> FirstReads:
        """Those of other processes, and these; of a process that is among both these alone."""
        found, more = self.of(lambda pid: pid not in others.processes), others.of(lambda _: True)
        found.processes.update(more.processes)
        found.recent.extend(more.recent)
        found.total, found.opened = found.total + more.total, found.opened + more.opened
        return found

    def ready(self, needed: int) -> set[int]:
        """The children of those parents of which one child has read `needed` files, the first one as well, and each one
        half of them, unless one idles: any may be the one that reads from a rank's start."""
        found: set[int] = set()
        for children in self._families():
            lengths = [len(child.first) - child.late for child in children.values()]
            short = lengths[0] < needed or 2 * min(lengths) < needed
            waits = short and max(sum(lengths), self.total) < _PATIENCE * needed
            shows = any(len(one.first) - one.late >= needed and _shows_repeats(one) for one in children.values())
            if not waits and shows:
                found.update(children)
        return found

    def nearly_ready(self, needed: int) -> set[int]:
        """The children of those parents of which one child has read half as many files: other ranks of one job, say."""
        slow = (of for of in self._families() if 2 * max(len(one.first) for one in of.values()) >= needed)
        return {pid for children in slow for pid in children}

    def _families(self) -> Iterable[dict[int, Process]]:
        """The processes of each parent, in the order in which they began."""
        families: dict[int, dict[int, Process]] = {}
        for pid, process in self.processes.items():
            families.setdefault(process.parent, {})[pid] = process
        return families.values()

    def walkers(self) -> set[int]:
        """Processes that read in the order of the directories: together, where they read but a few files each."""
        found: set[int] = set()
        for children in self._families():
            short = {pid: one.first for pid, one in children.items() if len(one.first) < FEW_READS}
            found.update(pid for pid, one in children.items() if pid not in short and _is_plain(one.first))
            together = list(chain.from_iterable(short.values()))
            if len(together) > FEW_READS and _is_plain(together):
                found.update(short)
        return found

    def but_walkers(self) -> FirstReads:
        """The reads of processes that do not walk the directories."""
        walkers = self.walkers()
        return self.of(lambda pid: pid not in walkers)

    def searched_with(self, needed: int) -> set[int]:
        """Processes that have read `needed` files; of those of a parent that walk the directories only the first."""
        walkers, known, found = self.walkers(), set[int](), set[int]()
        for pid, process in self.processes.items():
            if len(process.first) < needed or (pid in walkers and process.parent in known):
                continue
            known |= {process.parent} if pid in walkers else set()
            found.add(pid)
        return found

    def pids(self) -> list[int]:
        """Processes that read, and their parents."""
        return list(dict.fromkeys(pid for read in self.recent for pid in (read.process, read.parent)))

    def opens(self) -> list[list[int]]:
        """The first reads by process, each as often as it was opened in a row."""
        return [
            [entry for entry, times in zip(one.first, one.times, strict=True) for _ in range(times)]
            for one in self.processes.values()
        ]

    def kin(self) -> list[tuple[int, int]]:
        """The processes with their parents, in the order of `opens`."""
        return [(pid, process.parent) for pid, process in self.processes.items()]

    def heads(self, needed: int) -> list[list[int]]:
        """The first reads by process: those with enough of them first, else in the order in which they began."""
        return sorted((list(one.first) for one in self.processes.values()), key=lambda head: len(head) < needed)


class LeftAlone:
    """Processes whose first reads nothing explains. Each is looked at again once it begins another pass.

    Its first reads may have been in the middle of an epoch, where a run was resumed. It begins a pass when it reads a
    file again after many others; who does so sooner draws with replacement.

    Args:
        n: entries of the mount. Rows, which stand behind them, are nothing that is explained.
    """

    def __init__(self, n: int) -> None:
        self._bytes, self._fewest = n // 8 + 1, _FEWEST_OF_A_PASS * isqrt(n)
        self._most = max(1, min(MOST_PROCESSES, _MOST_BYTES // self._bytes))
        self._read: dict[int, bytearray] = {}  # by process: a bit for each file; empty where nothing is noted
        self._last: dict[int, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._read)

    def add(self, processes: Iterable[int]) -> None:
        """Nothing explains what these have read first."""
        self._read.update((process, bytearray(self._bytes)) for process in processes)
        for process in list(self._read)[: -self._most]:
            self._read[process].clear()

    def begins(self, entry: int, process: int) -> Sequence[int]:
        """Note a read. Returns none for a process that is one of these, and goes on with its pass.

        Else what counts from here on: this read; and where the process begins another pass those right before, as the
        first ones of a pass may be of files that the one before has left out.
        """
        read, last = self._read.get(process), self._last.get(process, ())
        if not read or (last and last[-1] == entry):
            return (entry,) if read is None else ()
        at, bit = entry >> 3, 1 << (entry & 7)
        if at >= len(read):
            return ()
        if read[at] & bit and int.from_bytes(read).bit_count() >= self._fewest:
            del self._read[process]
            return *self._last.pop(process, ()), entry
        self._last.setdefault(process, deque(maxlen=MOST_SKIPPED)).append(entry)
        if read[at] & bit:
            read.clear()
        else:
            read[at] |= bit
        return ()


def _shows_repeats(process: Process) -> bool:
    """Whether a process that opens files again at once has shown how often; True for one that does not."""
    opens = sum(process.times)
    return opens == len(process.first) or opens >= REPEATED_OPENS


def _is_plain(entries: Sequence[int]) -> bool:
    steps = [0 < after - before <= LONGEST_STEP for before, after in pairwise(entries)]
    return sum(steps) >= PLAIN_SHARE * len(steps)


def _times_read(reads: Iterable[Read]) -> int:
    """How many reads there are, where a file that its process opens again at once counts once."""
    last: dict[int, int] = {}
    times = 0
    for read in reads:
        times += last.get(read.process, -1) != read.sample
        last[read.process] = read.sample
    return times
