"""Notices staged pages that the kernel has taken back, before their reader does.

In: the samples that are staged and will be read, from the scheduler; whether their pages are still there, from the page
cache. Out: `PagesLost` for the scheduler, which has them staged again. `run` must be running.

The kernel takes pages back when memory is short, and where a daemon has it reclaim memory ahead of need. It begins with
those that were stored first: these are the ones that will be read first. It tells nobody. So a few samples are looked
at now and then; where pages of one are gone, all samples that are staged are looked at, the soonest needed first. To
look at a sample costs about as much as to open it, so a mount whose pages stay looks seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from mlfs.engine.context import Context
from mlfs.engine.pagecache import PageCache
from mlfs.plan.scheduler.events import PagesLost
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.tree.samples import Samples

POOL = "look"
# After pages were found gone it is looked again so soon: a daemon that reclaims memory does so every few seconds.
SHORTEST_PAUSE_S = 0.5
# While nothing is gone the pause doubles up to this: 16 looks in 8 s take less than 0.1 % of a core.
LONGEST_PAUSE_S = 8.0
# The same while nobody reads: training validates for minutes, or has been stopped for the night.
LONGEST_IDLE_PAUSE_S = 60.0
# Samples that are looked at while nothing is gone: half of them those needed soonest, half spread over all.
A_FEW = 16
# Most samples that are looked at once something is gone: seconds of reading for any loader.
MOST = 4096
# Samples a call to the worker, so that those needed soonest are being staged while others are still looked at.
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PageWatchStatistics:
    """How many staged samples were looked at, and of how many the kernel had taken pages back."""

    looked_at: int
    taken_back: int


class PageWatch:
    """Looks now and then whether the kernel still has pages of staged samples; `run` must be running."""

    def __init__(self, context: Context, scheduler: Scheduler, pages: PageCache, samples: Samples) -> None:
        self._step = context.step
        self._runner = context.runner
        self._scheduler = scheduler
        self._pages = pages
        self._samples, self._rows = samples, samples.file_blocks.rows
        self._looked_at = self._taken_back = 0
        self._paused = False

    def statistics(self) -> PageWatchStatistics:
        return PageWatchStatistics(self._looked_at, self._taken_back)

    def pause(self, pause: bool) -> None:
        """Look at nothing, since files are opened for that, and an unmount must not find them open; or go on."""
        self._paused = pause

    async def run(self) -> None:
        pause_s, before = SHORTEST_PAUSE_S, 0
        while True:
            await trio.sleep(pause_s)
            gone = not self._paused and await self._look()
            longest_s = LONGEST_IDLE_PAUSE_S if self._scheduler.reads() == before else LONGEST_PAUSE_S
            pause_s, before = SHORTEST_PAUSE_S if gone else min(longest_s, 2 * pause_s), self._scheduler.reads()

    async def _look(self) -> bool:
        """Look at a few samples, and at all of them if pages of one are gone; whether that was so."""
        staged = self._scheduler.staged(MOST)
        soonest = staged[: A_FEW // 2]
        spread = staged[A_FEW // 2 :: max(1, 2 * len(staged) // A_FEW)]
        if not await self._lost_of([*soonest, *spread]):
            return False
        staged = self._scheduler.staged(MOST)
        for start in range(0, len(staged), AT_ONCE):
            if self._paused:
                break
            await self._lost_of(staged[start : start + AT_ONCE])
        return True

    async def _lost_of(self, samples: Sequence[int]) -> int:
        """Look at samples, and tell the scheduler of those whose pages are gone; returns how many."""
        if not samples:
            return 0
        lost = await self._runner.run(POOL, self._gone, samples)
        self._looked_at += len(samples)
        self._taken_back += len(lost)
        if lost:
            self._step(PagesLost(lost))
        return len(lost)

    def _gone(self, samples: Sequence[int]) -> list[int]:
        """In a worker: look which of the samples have lost pages."""
        gone: set[int] = set()
        rows_of: dict[int, dict[int, tuple[int, int]]] = {}  # by file, which is opened once for all of them
        for sample in samples:
            file = self._samples.file_of(sample)
            if sample >= self._rows.first:
                begin, end = self._pushed_of(sample, file)
                if begin < end:
                    rows_of.setdefault(file, {})[sample] = begin, end - begin
            elif not self._paused and not self._pages.resident(file):
                gone.add(sample)
        for file, rows in rows_of.items():
            if not self._paused:
                there = self._pages.resident_ranges(file, list(rows.values()))
                gone.update(row for row, is_there in zip(rows, there, strict=True) if not is_there)
        return [sample for sample in samples if sample in gone]

    def _pushed_of(self, row: int, file: int) -> tuple[int, int]:
        """The bytes behind a row's tripwire, from the first one to behind the last one."""
        return self._rows.tripwire_of(row)[1], min(self._rows.pages_of(row)[1], self._samples.sizes[file])
