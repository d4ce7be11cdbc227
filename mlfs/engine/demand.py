"""Fetches for whoever waits, made at once in threads of their own, and the answers.

In: the scheduler's commands about those who wait. Out: fetches, answers. The worker that has a reader's bytes in place
lets the reader go on before the loop hears of it. The scheduler's Answer comes behind, and finds that done.
"""

from __future__ import annotations

import errno
import logging
import os
from functools import partial
from typing import Protocol, cast

from mlfs.engine.context import Context
from mlfs.engine.fetch import Fetched, Fetcher, as_os_error, landed_of
from mlfs.engine.runner import start
from mlfs.engine.shortages import patiently
from mlfs.engine.write_behind import WriteBehind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Waiter, Waits
from mlfs.plan.scheduler.scheduler import Scheduler

log = logging.getLogger("mlfs.engine")


class Answerable(Protocol):
    """Whoever waits for a sample of this mount: answered by one of the last three, once, on the loop."""

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: the bytes are in place. Whether this let somebody go on, who need not wait for the loop then.

        Args:
            source_bytes: what the source gave for it.
        """

    def answer(self, brought: Fetched | None) -> None:
        """The sample is in place. `brought`: what was fetched for this very waiter; None: it was there, or others'."""

    def open_direct(self, unstaged: bool) -> None:
        """The source is to be read by ranges; or, unstaged, a copy of this node without pages."""

    def refuse(self, error: OSError) -> None:
        """The source failed."""


class Demand:
    """Carries out the commands about those who wait.

    Args:
        timeout_s: the patience with a second try, for the message.
    """

    def __init__(
        self, context: Context, scheduler: Scheduler, fetcher: Fetcher, write_behind: WriteBehind, timeout_s: float
    ) -> None:
        self._step = context.step
        self._runner = context.runner
        self._counters = context.counters
        self._shortages = context.shortages
        self._place_of = scheduler.place_of
        self._waiters = scheduler.waiters
        self._fetcher = fetcher
        self._places = fetcher.places
        self._write_behind = write_behind
        self._timeout_s = timeout_s
        self._brought: dict[int, Fetched] = {}  # the end of a fetch, while it is told
        self._wanted: set[int] = set()  # fetches under way that were not abandoned; workers ask
        self._past: set[Waiter] = set()  # answered past a scheduler that failed over them, and may answer them yet

    # -- answers

    def answer(self, command: c.Answer) -> None:
        """Let those who wait go on."""
        if waiter := self._who(command.waiter):
            # The fetch was one reader's, the first one's: for the others its sample was there. A node may have it, too.
            take = self._brought.get if command.waiter.is_peer else self._brought.pop
            waiter.answer(take(command.waiter.sample, None))

    def open_direct(self, command: c.OpenDirect) -> None:
        """A reader goes on by itself."""
        if waiter := self._who(command.waiter):
            waiter.open_direct(command.unstaged)

    def refuse(self, command: c.Refuse) -> None:
        """Give those who wait an error."""
        text = f"the source did not answer within {self._timeout_s:g} s, twice"
        error = OSError(command.error, text if command.timed_out else os.strerror(command.error))
        brought = self._brought.get(command.waiter.sample)
        if waiter := self._who(command.waiter):
            waiter.refuse(brought.error if brought and brought.error else error)

    def _who(self, waiter: Waiter) -> Answerable | None:
        """The one to be answered now; None for one who was."""
        if waiter in self._past:
            self._past.remove(waiter)
            return None
        return cast(Answerable, waiter)

    def fault(self, fault: c.Fault) -> None:
        """A bug of the scheduler costs what its event was about, never the mount, and no reader his read: whoever waits
        reads the source by himself."""
        log.error("the scheduler failed over %r", fault.event, exc_info=fault.error)
        self._counters.error("scheduler_fault")
        if isinstance(fault.event, Waits):
            self._past.add(fault.event.waiter)
            cast(Answerable, fault.event.waiter).open_direct(unstaged=False)

    # -- fetches

    def fetch(self, fetch: c.Fetch) -> None:
        """Fetch for those who wait, in a thread for them."""
        item = fetch.items[0]
        then = partial(self._arrived, fetch.fetch, item)
        self._wanted.add(fetch.fetch)
        start(self._runner, "demand", self._fetch_for_reader, item, fetch.fetch, then=then)

    def _fetch_for_reader(self, item: c.Item, fetch: int) -> Fetched:
        """In a worker: fetch, and let those who wait go on."""
        if fetch not in self._wanted:
            raise OSError(errno.ETIMEDOUT, "nobody waits for it any more")
        sample, place = item.sample, self._place_of(item)
        close_later = stage = True
        try:
            fetched = patiently(
                self._shortages, self._fetcher.fetch, sample, place, item.instead, close_later, stage, item.keep_in
            )
            gave = fetched.size_bytes if fetched.place == SOURCE else 0  # for the first one's read
            answered: list[bool] = []
            for waiter in tuple(self._waiters.get(sample, ())) if fetched.staged else ():
                answered.append(cast(Answerable, waiter).in_place(0 if answered else gave))
        finally:
            self._fetcher.close_read()
        if answered == [True]:  # the one reader has the bytes: the loop need not be woken for what is left to do
            self._runner.unhurried()
        return fetched

    def _arrived(self, fetch: int, item: c.Item, fetched: Fetched | None, error: BaseException | None) -> None:
        self._wanted.discard(fetch)
        if fetched is None:
            self._shortages.noticed(error)
            fetched = Fetched(item.sample, error=as_os_error(error))
        landed = landed_of(fetch, fetched)
        if not landed.error:
            by_choice = bool(item.instead) and landed.place == SOURCE
            self._counters.fetch(
                self._places.kinds[landed.place], landed.size_bytes - landed.read_before_bytes, by_choice
            )
        self._brought[item.sample] = fetched
        self._step(landed)
        self._brought.pop(item.sample, None)
        if item.keep_in and not landed.error and self._places.kinds[landed.place].is_afar:
            self._write_behind.keep(fetch, fetched, item.keep_in)

    def abandon(self, abandon: c.Abandon) -> None:
        """Nobody waits for a fetch any more: it is not begun. Bytes that come late are kept all the same."""
        self._wanted.discard(abandon.fetch)
