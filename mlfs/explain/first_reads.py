"""The first reads of each process that no job explains, and the last reads of all: bounded, whatever comes.

In: opens (entry, process, its parent). Out: what inferring needs of them. Called by `mlfs.explain.inference` and
`mlfs.explain.inferred_job` for each open: cheap.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

# Eight ranks with eight workers each.
MOST_PROCESSES = 64
# A data set of 40 files, the smallest that is searched for, needs some 20 reads; batches of up to 32 show their gap.
MOST_FIRST_READS = 64
# What a job that is found can be shown of what came before: some epochs of a small data set, seconds of a fast loader.
RECENT_READS = 4096
# A first process that idles, such as one that only looks at a sample, is waited for this many times as many reads.
_PATIENCE = 8


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
    """

    def __init__(self) -> None:
        self.total = self.opened = 0
        self.firsts: dict[int, list[int]] = {}
        self.recent: deque[Read] = deque(maxlen=RECENT_READS)
        self._last: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._times: dict[int, list[int]] = {}  # how often in a row each first read was an open

    def add(self, entry: int, pid: int, parent: int) -> None:
        """One open."""
        self.opened += 1
        self.recent.append(Read(entry, pid, parent))
        if self._last.get(pid) == entry:
            if self.firsts[pid][-1] == entry:
                self._times[pid][-1] += 1
            return
        self.total += 1
        first = self.firsts.get(pid)
        if first is None:
            if len(self.firsts) >= MOST_PROCESSES:
                return
            first = self.firsts[pid] = []
            self._parents[pid] = parent
            self._times[pid] = []
        self._last[pid] = entry
        if len(first) < MOST_FIRST_READS:
            first.append(entry)
            self._times[pid].append(1)

    def enough(self, needed: int) -> bool:
        """Whether a process has read `needed` files, and the first of all processes as well, unless it idles."""
        lengths = [len(first) for first in self.firsts.values()]
        if not lengths or max(lengths) < needed:
            return False
        return lengths[0] >= needed or self.total >= _PATIENCE * needed

    def processes(self, needed: int) -> set[int]:
        """Those that have read `needed` files."""
        return {process for process, first in self.firsts.items() if len(first) >= needed}

    def pids(self) -> list[int]:
        """Processes that read, and their parents."""
        return list(dict.fromkeys(pid for read in self.recent for pid in (read.pid, read.parent)))

    def opens(self) -> list[list[int]]:
        """The first reads by process, each as often as it was opened in a row."""
        return [
            [entry for entry, times in zip(first, self._times[pid], strict=True) for _ in range(times)]
            for pid, first in self.firsts.items()
        ]

    def kin(self, needed: int = 0) -> list[tuple[int, int]]:
        """The processes with their parents, in the order of `heads`; in that of `opens` where nothing is needed."""
        return sorted(self._parents.items(), key=lambda one: len(self.firsts[one[0]]) < needed)

    def heads(self, needed: int) -> list[list[int]]:
        """The first reads by process: those with enough of them first, else in the order in which they began."""
        heads = [list(first) for first in self.firsts.values()]
        return sorted(heads, key=lambda head: len(head) < needed)
