"""Finds out which pages the kernel took back, ahead of the readers, and has them staged again.

In: a notice that a READ came for pages that were believed to be there; on the loop. Out: samples handed to the
prefetcher to be fetched again. Without a notice nothing here runs. After one, the entries counted on are asked after in
the order of need, from each rank's next read on, until so many in a row were there that the kernel must be done.

The notice's own entry says nothing: its READ has put the pages back, and READs also come of O_DIRECT readers, whose
pages are all there. So a notice begins a watch, and a watch that finds nothing lost makes the next one wait longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import trio

from mlfs.engine.job import JobRun
from mlfs.engine.pagecache import PageCache
from mlfs.engine.prefetch import Item, Prefetcher
from mlfs.engine.runner import Runner
from mlfs.engine.table import SampleTable, State
from mlfs.plan.placement import NOWHERE
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")

ALL_THERE_SAMPLES = 1000
BATCH = 64
REWIND_S = 1.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0


class Reclaim:
    """The watch over pages believed to be there. Loop only, but for `_are_there`.

    Attributes:
        watching: whether a watch is on.
        found: samples whose pages were found gone, since the start.

    Args:
        jobs: the live collection of running jobs.
        clock: seconds, monotone.
    """

    def __init__(
        self,
        table: SampleTable,
        pages: PageCache,
        counters: Counters,
        runner: Runner,
        prefetcher: Prefetcher,
        jobs: Mapping[str, JobRun],
        clock: Callable[[], float],
    ) -> None:
        self.table = table
        self.pages = pages
        self.counters = counters
        self.runner = runner
        self.prefetcher = prefetcher
        self.jobs = jobs
        self.clock = clock
        self.watching = False
        self.found = 0
        self._found_before = 0
        self._there_in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._quiet_until = float("-inf")
        self._walked_since = 0.0
        self._walked: dict[tuple[JobRun, int], int] = {}  # by job and rank: the next position to ask after
        self._wanted = trio.Event()
        prefetcher.on_looked = self.go_on

    def missed(self, entry: int) -> None:
        """A READ came for an entry that is STAGED or KEPT."""
        now = self.clock()
        if self.watching:
            if now - self._walked_since >= REWIND_S:  # what was there when asked after may be gone by now
                self._walked, self._walked_since = {}, now
                self.go_on()
            return
        if now < self._quiet_until:
            return
        log.info("pages of entry %d may have been taken back by the kernel: looking after those to be read next", entry)
        self.watching, self._there_in_a_row, self._found_before = True, 0, self.found
        self._walked, self._walked_since = {}, now
        self.go_on()

    def go_on(self) -> None:
        """There may be more to ask after."""
        if self.watching:
            self._wanted.set()

    async def run(self) -> None:
        """Watch whenever there is reason to, for as long as the mount lives."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            # samples that wait for room come first: those after them are needed later
            while self.watching and not self.prefetcher.lost:
                batch = self._next_batch()
                if batch is None:
                    break
                there = await self.runner.run("verify", self._are_there, [item.entry for item in batch])
                for item, is_there in zip(batch, there, strict=True):
                    self._judge(item, is_there)

    def _are_there(self, entries: Sequence[int]) -> list[bool]:
        return [self.pages.resident(entry, self.table.sizes[entry]) for entry in entries]

    def _next_batch(self) -> list[Item] | None:
        """The next few positions of the rank whose turn it is; None when all that is counted on was asked after."""
        best: tuple[int, JobRun, int] | None = None
        for job in self.jobs.values():
            if not job.predicting or job.finished:
                continue
            for rank, progress in enumerate(job.matcher.ranks):
                position = max(self._walked.get((job, rank), 0), progress.frontier)
                if position < job.cursors[rank] and (best is None or position - progress.frontier < best[0]):
                    best = (position - progress.frontier, job, rank)
        if best is None:
            return None
        ahead, job, rank = best
        return self._walk(job, rank, job.matcher.ranks[rank].frontier + ahead)

    def _walk(self, job: JobRun, rank: int, position: int) -> list[Item]:
        index = job.index_at(position)
        end = min(position + BATCH, job.cursors[rank])
        if index is None:
            self._walked[job, rank] = end
            return []
        first, last = position - index.base, min(end - index.base, index.length)
        self._walked[job, rank] = index.base + last
        ids, looked = index.ids[rank][first:last].tolist(), index.looked[rank][first:last]
        return [
            Item(entry, job, index.epoch, NOWHERE)
            for entry, counted in zip(ids, looked, strict=True)
            if counted and self._believed(entry)
        ]

    def _believed(self, entry: int) -> bool:
        """Whether the entry is counted on; one that a reader holds open is, or is not, it is too late to care."""
        return self.table.state[entry] in (State.STAGED, State.KEPT) and not self.table.open_count.get(entry)

    def _judge(self, item: Item, is_there: bool) -> None:
        if is_there:
            self._there_in_a_row += 1
            if self._there_in_a_row >= ALL_THERE_SAMPLES and self.watching:
                self._end()
        elif self._believed(item.entry) and self.table.pending[item.entry]:
            self._there_in_a_row = 0
            self.found += 1
            self.counters.error("pages_taken_back")
            self.prefetcher.fetch_again(item)

    def _end(self) -> None:
        self.watching = False
        self._walked = {}
        found = self.found - self._found_before
        self._pause_s = FIRST_PAUSE_S if found else min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._quiet_until = float("-inf") if found else self.clock() + self._pause_s
        log.info("%d samples had been taken back and were fetched again", found)
