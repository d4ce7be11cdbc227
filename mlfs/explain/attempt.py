"""One search for a seed, as the daemon's loop sees it: begun, asked how far it is, begun again, ended.

In: what was read, if it is one of these data sets. Out: the search's events, as they come. The search itself runs in a
process of its own (`mlfs.explain.seed_search`), watched by a worker thread. Used by `mlfs.explain.inference`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from mlfs.explain.port import Workers
from mlfs.explain.question import MOST_HEADS, DataSet
from mlfs.explain.search_stages import Event, StageProgress, WordsAsked, has_numba
from mlfs.explain.seed_search import SeedSearch
from mlfs.explain.statistics import AttemptStatistics
from mlfs.follow.job import JobRun

log = logging.getLogger("mlfs.explain")

POOL = "infer"


class Woken(NamedTuple):
    """Among a search's events: whoever waits for them is to look up, as there is something else to do."""


# A seed or an order, the generators anew with each of some 16 that are found, the end: more than ever wait to be read.
MOST_EVENTS = 64


class Attempt:
    """One search for a seed, from its beginning to its end.

    Args:
        asked: the processes whose first reads are searched with.
        instead_of: the job that was refuted, and whose next epoch is looked for; None where nothing was known before.

    Attributes:
        again: whether there is a reason to begin again, with more reads. found: whether the search has found one.
        progress: where the search is; None before it tells.
    """

    def __init__(
        self, runner: Workers, clock: Callable[[], float], asked: set[int], instead_of: JobRun | None = None
    ) -> None:
        self.instead_of = instead_of
        self.again = self._woken = False
        self.found = False
        self.progress: StageProgress | None = None
        self._asked = asked
        self._runner = runner
        self._clock = clock
        self._stage_began_s = 0.0
        self._search: SeedSearch | None = None
        self._events: trio.MemorySendChannel[Event | Woken | None] | None = None  # while there is a search

    @asynccontextmanager
    async def searching(
        self,
        data_sets: Sequence[DataSet],
        hints: Sequence[int] = (),
        again: bool = False,
        enough: Callable[[], bool] = lambda: False,
        words: WordsAsked | None = None,
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Event | Woken | None]]:
        """Search for as long as the context lasts. Yields the events that explain something, and None at the end.

        Between them comes a `Woken` once `wake` was called.

        Args:
            hints, again, words: see `mlfs.explain.search_stages.SearchExtent`.
            enough: asked while the search goes on though it has found something: whether the rest of it is known.
        """
        search = self._search = SeedSearch(data_sets, hints, again, words)
        events, results = trio.open_memory_channel[Event | Woken | None](MOST_EVENTS)
        self._events = events

        def tell(event: Event | None) -> None:
            if isinstance(event, StageProgress):
                if self.progress is None or self.progress.stage != event.stage:
                    self._stage_began_s = self._clock()
                self.progress = event
                if self.found and enough():
                    search.kill()
            else:
                self.found = self.found or event is not None
                events.send_nowait(event)

        def search_in_thread() -> None:
            try:
                search.run(lambda event: self._runner.post(tell, event))
            except OSError as error:
                log.warning("the search for the seed cannot run: %s", error)
            self._runner.post(tell, None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._runner.run, POOL, search_in_thread)
            try:
                yield results
            finally:
                self.end()
                self._search = self._events = None

    def wake(self) -> None:
        """Have whoever waits for the search's events look up, if anybody does."""
        if self._events is not None and not self._woken:
            self._woken = True
            self._events.send_nowait(Woken())

    def has_woken(self) -> None:
        """Whoever waits has looked up: the next call of `wake` wakes it again."""
        self._woken = False

    def lacks(self, process: int) -> bool:
        """Whether the process' reads are not among those that are searched with, and may be."""
        return process not in self._asked and len(self._asked) < MOST_HEADS

    def begin_again(self) -> None:
        """End the search: another one with more reads is to follow."""
        self.again = True
        self.end()

    def end(self) -> None:
        """End the search, if there is one."""
        if self._search is not None:
            self._search.kill()

    def statistics(self) -> AttemptStatistics | None:
        """Frozen figures of what the search is at; None while that is not known, and at a stage's end."""
        progress = self.progress
        if progress is None or progress.done >= progress.of:
            return None
        passed_s = self._clock() - self._stage_began_s
        remaining_s = passed_s * (progress.of / progress.done - 1) if progress.done else None
        return AttemptStatistics(progress.stage, progress.done, progress.of, remaining_s, has_numba())
