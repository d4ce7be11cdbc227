"""The first reads of each process that no job explains, and the last reads of all: bounded, whatever comes.

In: opens (entry, process, its parent). Out: what inferring needs of them. Called by `mlfs.explain.inference` and
`mlfs.explain.inferred_jobs` for each open: cheap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from mlfs.follow.plain_order import LONGEST_STEP, PLAIN_SHARE

# Eight ranks with eight workers each.
MOST_PROCESSES = 64
# A data set of 40 files, the smallest that is searched for, needs some 20 reads; batches of up to 32 show their gap.
MOST_FIRST_READS = 64
# What a job that is found can be shown of what came before: some epochs of a small data set, seconds of a fast loader.
RECENT_READS = 4096
# A first process that idles, such as one that only looks at a sample, is waited for this many times as many reads.
_PATIENCE = 8
# Opens of a process that opens files again at once: so many show how a sampler repeats its samples.
REPEATED_OPENS = 15
# With fewer reads a process shows neither an order nor a place in it.
FEW_READS = 3


class Read(NamedTuple):
    """An open as the engine saw it."""

    entry: int
    pid: int
    parent: int


class FirstReads:
    """First reads by process, in the order of each process' first one; and the last reads in order.

    Attributes:
        total: reads seen, those included that were not kept. A file opened twice in a row by a process is one read.
        opened: the same, but each open counts. recent: the last opens; a sampler may repeat its samples.
        parents: of each process that is remembered.
    """

    def __init__(self) -> None:
        self.total = self.opened = 0
        self.firsts: dict[int, list[int]] = {}
        self.parents: dict[int, int] = {}
        self.recent: deque[Read] = deque(maxlen=RECENT_READS)
        self._last: dict[int, int] = {}
        self._times: dict[int, list[int]] = {}  # how often in a row each first read was an open

    def add(self, entry: int, pid: int, parent: int) -> None:
        """Add an open."""
        self.opened += 1
        self.recent.append(Read(entry, pid, parent))
        if self._last.get(pid) == entry:
            if self.firsts[pid][-1] == entry:
                self._times[pid][-1] += 1
            return
        self.total += 1
        first = self.firsts.get(pid)
        if first is None:
            if len(self.firsts) >= MOST_PROCESSES and not self._forget_one():
                return
            first = self.firsts[pid] = []
            self.parents[pid] = parent
            self._times[pid] = []
        self._last[pid] = entry
        if len(first) < MOST_FIRST_READS:
            first.append(entry)
            self._times[pid].append(1)

    def _forget_one(self) -> bool:
        """Forget the first process that has read but a few files: `find -exec` begins one for each."""
        short = next((pid for pid, first in self.firsts.items() if len(first) < FEW_READS), None)
        if short is not None:
            for of in (self.firsts, self.parents, self._times, self._last):
                of.pop(short, None)
        return short is not None

    def of(self, keep: Callable[[int], bool]) -> FirstReads:
        """The first reads of some processes alone."""
        found = FirstReads()
        for pid in filter(keep, self.firsts):
            found.firsts[pid], found._times[pid] = list(self.firsts[pid]), list(self._times[pid])
            found.parents[pid] = self.parents[pid]
            if pid in self._last:
                found._last[pid] = self._last[pid]
        found.recent.extend(read for read in self.recent if keep(read.pid))
        found.opened = self.opened - len(self.recent) + len(found.recent)
        found.total = self.total - _times_read(self.recent) + _times_read(found.recent)
        return found

    def joined(self, others: FirstReads) -> FirstReads:
        """Those of other processes, and these; of a process that is among both these alone."""
        found, more = self.of(lambda pid: pid not in others.firsts), others.of(lambda _: True)
        for own, added in ((found.firsts, more.firsts), (found._times, more._times)):
            own.update(added)
        found.parents.update(more.parents)
        found._last.update(more._last)
        found.recent.extend(more.recent)
        found.total, found.opened = found.total + more.total, found.opened + more.opened
        return found

    def enough(self, needed: int) -> bool:
        """Whether some processes have read enough to be searched with."""
        return bool(self.ready(needed))

    def ready(self, needed: int) -> set[int]:
        """The children of those parents of which one child has read `needed` files, and the first one as well, unless
        that one idles."""
        found: set[int] = set()
        for children in self._families():
            lengths = [len(self.firsts[pid]) for pid in children]
            waits = lengths[0] < needed and max(sum(lengths), self.total) < _PATIENCE * needed
            if not waits and any(len(self.firsts[pid]) >= needed and self._shows_repeats(pid) for pid in children):
                found.update(children)
        return found

    def nearly_ready(self, needed: int) -> set[int]:
        """The children of those parents of which one child has read half as many files: other ranks of one job, say."""
        slow = (
            children for children in self._families() if 2 * max(len(self.firsts[pid]) for pid in children) >= needed
        )
        return {pid for children in slow for pid in children}

    def _families(self) -> Iterable[list[int]]:
        """The processes of each parent, in the order in which they began."""
        families: dict[int, list[int]] = {}
        for pid, parent in self.parents.items():
            families.setdefault(parent, []).append(pid)
        return families.values()

    def _shows_repeats(self, pid: int) -> bool:
        """Whether a process that opens files again at once has shown how often; True for one that does not."""
        opens = sum(self._times[pid])
        return opens == len(self.firsts[pid]) or opens >= REPEATED_OPENS

    def walkers(self) -> set[int]:
        """Processes that read in the order of the directories: together, where they read but a few files each."""
        found: set[int] = set()
        chains: dict[int, list[int]] = {}
        short: dict[int, list[int]] = {}
        for pid, first in self.firsts.items():
            if len(first) >= FEW_READS:
                found |= {pid} if _is_plain(first) else set()
            else:
                chains.setdefault(self.parents[pid], []).extend(first)
                short.setdefault(self.parents[pid], []).append(pid)
        for parent, chain in chains.items():
            if len(chain) > FEW_READS and _is_plain(chain):
                found.update(short[parent])
        return found

    def asked(self, needed: int) -> set[int]:
        """Processes that have read `needed` files; of those of a parent that walk the directories only the first."""
        walkers, known, found = self.walkers(), set[int](), set[int]()
        for pid, first in self.firsts.items():
            parent = self.parents[pid]
            if len(first) < needed or (pid in walkers and parent in known):
                continue
            known |= {parent} if pid in walkers else set()
            found.add(pid)
        return found

    def pids(self) -> list[int]:
        """Processes that read, and their parents."""
        return list(dict.fromkeys(pid for read in self.recent for pid in (read.pid, read.parent)))

    def opens(self) -> list[list[int]]:
        """The first reads by process, each as often as it was opened in a row."""
        return [
            [entry for entry, times in zip(first, self._times[pid], strict=True) for _ in range(times)]
            for pid, first in self.firsts.items()
        ]

    def kin(self) -> list[tuple[int, int]]:
        """The processes with their parents, in the order of `opens`."""
        return list(self.parents.items())

    def heads(self, needed: int) -> list[list[int]]:
        """The first reads by process: those with enough of them first, else in the order in which they began."""
        heads = [list(first) for first in self.firsts.values()]
        return sorted(heads, key=lambda head: len(head) < needed)


def _is_plain(entries: Sequence[int]) -> bool:
    steps = [0 < after - before <= LONGEST_STEP for before, after in pairwise(entries)]
    return sum(steps) >= PLAIN_SHARE * len(steps)


def _times_read(reads: Iterable[Read]) -> int:
    """How many reads there are, where a file that its process opens again at once counts once."""
    last: dict[int, int] = {}
    times = 0
    for read in reads:
        times += last.get(read.pid, -1) != read.entry
        last[read.pid] = read.entry
    return times
