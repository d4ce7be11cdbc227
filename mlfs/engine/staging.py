"""The staging window: moves samples through their states on the loop; reserve, finish, retire, drop.

In: decisions of the prefetcher and the demand path, results of fetches, ends of uses. Out: state transitions, drops of
pages (in worker threads), wake-ups of those who wait. Loop only, but for `_drop_batch`.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable

import trio

from mlfs.engine.fetch import Fetched
from mlfs.engine.pagecache import PageCache
from mlfs.engine.runner import Runner
from mlfs.engine.table import SampleTable, State
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")

DROP_BATCH = 64


class Staging:
    """The staging window.

    Attributes:
        on_room: called when the window may have got room.
        linger: whether used pages nobody is predicted to need stay until their room is needed (a plain cache), instead
            of being dropped at once (a predicted stream, which knows that they are not needed this epoch).
        waiters: entries whose fetch or drop somebody waits for. Worker threads look into it.
    """

    def __init__(self, table: SampleTable, pages: PageCache, counters: Counters, runner: Runner) -> None:
        self.table = table
        self.pages = pages
        self.counters = counters
        self.runner = runner
        self.on_room: Callable[[], None] = lambda: None
        self.linger = True
        self.waiters: dict[int, trio.Event] = {}
        # Lingering entries, in the order in which they began to linger. Each stands there once, however often it is
        # read: `_lingers` says whether it does. Some have gone another way meanwhile, or are open.
        self._recent: deque[int] = deque()
        self._lingers = bytearray(len(table.state))
        self._to_drop: deque[int] = deque()
        self._drop_claims: dict[int, bool] = {}
        self._of_the_past: set[int] = set()  # DROPPING, and not to be rescued
        self._drop_wanted = trio.Event()

    # -- a sample comes

    def finish(self, entry: int, fetched: Fetched, in_use: bool = False) -> None:
        """A fetch of a FETCHING entry ended. A second call for the same fetch changes nothing."""
        if self.table.state[entry] != State.FETCHING:
            return
        if fetched.error is None:
            self.counters.fetch(fetched.route, fetched.size_bytes, fetched.by_choice)
        if fetched.error is not None or not fetched.staged:
            self.table.move(entry, State.ABSENT)
            self.on_room()
        elif self.table.pending[entry]:
            self.table.move(entry, State.STAGED)
        else:
            self.table.move(entry, State.RECENT)
            if not in_use:
                self.retire(entry)
        self._settle(entry)

    def cancel(self, entry: int) -> None:
        """Give up a reserved entry that no worker has begun."""
        self.finish(entry, Fetched(entry, error=OSError(errno.ECANCELED, "no longer needed")))

    def settled(self, entry: int) -> trio.Event:
        """Set when the fetch or drop of the entry that is under way ends."""
        return self.waiters.setdefault(entry, trio.Event())

    def _settle(self, entry: int) -> None:
        event = self.waiters.pop(entry, None)
        if event is not None:
            event.set()

    # -- a sample goes

    def retire(self, entry: int) -> None:
        """A use of the entry is over. Without another one ahead, and without a reader, its pages go."""
        table = self.table
        state = table.state[entry]
        if state not in (State.STAGED, State.RECENT) or table.pending[entry] or table.open_count.get(entry):
            return
        if self.linger:
            table.move(entry, State.RECENT)
            if not self._lingers[entry]:
                self._lingers[entry] = 1
                self._recent.append(entry)
            self.make_room(0)
        else:
            self._drop(entry)

    def make_room(self, need_bytes: int) -> None:
        """Begin to drop lingering pages, oldest first, until the window will have `need_bytes` free."""
        table = self.table
        if table.window_bytes + need_bytes <= table.window_capacity_bytes:
            return
        coming = sum(table.footprint(entry) for entry in self._to_drop)
        while self._recent and table.window_bytes - coming + need_bytes > table.window_capacity_bytes:
            coming += self._drop_oldest()

    def drop_lingering(self) -> None:
        """Drop all lingering pages: a predicted stream needs the room."""
        while self._recent:
            self._drop_oldest()

    def _drop_oldest(self) -> int:
        """Begin to drop the entry that lingers longest; returns the bytes that will be free, 0 when it is in use."""
        entry = self._recent.popleft()
        self._lingers[entry] = 0
        if self.table.state[entry] != State.RECENT or self.table.open_count.get(entry):
            return 0
        self._drop(entry)
        return self.table.footprint(entry)

    def rescue(self, entry: int, state: int) -> bool:
        """Keep an entry that was about to be dropped; False when its pages are already going, or must go."""
        if entry in self._of_the_past or self._drop_claims.pop(entry, None) is None:
            return False
        self.table.move(entry, state)
        return True

    def forget(self, entry: int) -> None:
        """What is in place turned out to be of the past: the next open fetches it, whatever it has to wait for."""
        if self.table.state[entry] in (State.STAGED, State.RECENT):
            self._of_the_past.add(entry)
            self._drop(entry)
        elif self.table.state[entry] == State.DROPPING:
            self._of_the_past.add(entry)

    def _drop(self, entry: int) -> None:
        self.table.move(entry, State.DROPPING)
        self._drop_claims[entry] = True
        self._to_drop.append(entry)
        self._drop_wanted.set()

    async def run_dropper(self) -> None:
        """Drop pages in batches, for as long as the mount lives."""
        while True:
            await self._drop_wanted.wait()
            batch = [self._to_drop.popleft() for _ in range(min(DROP_BATCH, len(self._to_drop)))]
            if not batch:
                self._drop_wanted = trio.Event()
                continue
            dropped = await self.runner.run("drop", self._drop_batch, batch)
            for entry in dropped:
                self._of_the_past.discard(entry)
                if self.table.state[entry] == State.DROPPING:
                    self.table.move(entry, State.ABSENT)
                self._settle(entry)
            self.on_room()

    def _drop_batch(self, batch: list[int]) -> list[int]:
        dropped = []
        for entry in batch:
            if self._drop_claims.pop(entry, None) is not None:
                self.pages.drop(entry)
                dropped.append(entry)
        return dropped
