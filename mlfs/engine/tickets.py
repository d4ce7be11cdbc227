"""Readers who wait: their tickets, and the fetches that are made for them at once.

In: readers who opened what is not in place; the scheduler's commands about them. Out: fetches in threads of their own,
answers. The worker that has a reader's bytes in place lets him go on before the loop hears of it. The scheduler's
Answer comes behind, and finds that done.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from mlfs.engine.fetch import Fetched, Fetcher, as_os_error, landed_of
from mlfs.engine.runner import Call, Runner, start
from mlfs.engine.shortages import Shortages, patiently
from mlfs.engine.write_behind import WriteBehind
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.stats import Counters


class Ticket(Protocol):
    """A reader who waits for an open."""

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: the bytes are in place. Whether this let the reader go on: then he need not wait for the loop.

        Args:
            source_bytes: what the source gave for it.
        """

    def answer(self, brought: PlaceKind | None, source_bytes: int) -> None:
        """On the loop: go on. `brought`: from where the bytes came for this reader, None: they came for others."""

    def open_direct(self, unstaged: bool) -> None:
        """On the loop: read the source by ranges; or, unstaged, go on without pages."""

    def refuse(self, error: OSError) -> None:
        """On the loop: the source failed."""


class PeerTicket(Protocol):
    """Another node that waits for a sample of this one. Exactly one of these is called, on the loop."""

    def ready(self, brought: Fetched | None) -> None:
        """The sample is in place. `brought`: what was fetched just now, if it was."""

    def missing(self) -> None:
        """The sample is not to be had here."""


class _ForPeer:
    """A peer's ticket among those of readers."""

    def __init__(self, ticket: PeerTicket) -> None:
        self.ticket = ticket

    def in_place(self, source_bytes: int) -> bool:
        """See Ticket."""
        return False

    def answer(self, brought: PlaceKind | None, source_bytes: int) -> None:
        """See Ticket."""
        self.ticket.ready(None)

    def open_direct(self, unstaged: bool) -> None:
        """See Ticket."""
        self.ticket.missing()

    def refuse(self, error: OSError) -> None:
        """See Ticket."""
        self.ticket.missing()


class _Told:
    """A reader who was told already, past a scheduler that failed over him."""

    def in_place(self, source_bytes: int) -> bool:
        """See Ticket."""
        return False

    def answer(self, brought: PlaceKind | None, source_bytes: int) -> None:
        """See Ticket."""

    def open_direct(self, unstaged: bool) -> None:
        """See Ticket."""

    def refuse(self, error: OSError) -> None:
        """See Ticket."""


class Tickets:
    """See the module.

    Args:
        step: takes events for the scheduler. nearest: in a worker, the place to ask for an item.
        timeout_s: the patience with a second try, for the message.
    """

    def __init__(
        self,
        step: Callable[..., None],
        places: Sequence[PlaceInfo],
        fetcher: Fetcher,
        nearest: Callable[[c.Item], int],
        write_behind: WriteBehind,
        counters: Counters,
        runner: Runner,
        timeout_s: float,
        shortages: Shortages,
    ) -> None:
        self._step = step
        self._places = places
        self._fetcher = fetcher
        self._nearest = nearest
        self._write_behind = write_behind
        self._counters = counters
        self._runner = runner
        self._timeout_s = timeout_s
        self._shortages = shortages
        self._tickets: dict[int, tuple[int, Ticket]] = {}  # by number: the sample and who waits
        self._numbers = itertools.count(1)
        self._waiting: dict[int, list[Ticket]] = {}  # by sample; workers look into it
        self._brought: dict[int, Fetched] = {}  # the end of a fetch, while it is told
        self._calls: dict[int, Call] = {}

    def carry_out(self) -> dict[type, Callable[[Any], None]]:
        """Who carries out the commands about readers, by the command's class."""
        return {
            c.Answer: self._answer,
            c.OpenDirect: self._open_direct,
            c.Refuse: self._refuse,
            c.Abandon: self._abandon,
        }

    def anybody(self, sample: int) -> bool:
        """From any thread: whether somebody waits for the sample."""
        return sample in self._waiting

    def wait(self, sample: int, ticket: Ticket) -> None:
        """A reader waits for a sample that was not in place; the ticket is told once, at once maybe."""
        self._step(e.ReadWaits(self._enter(sample, ticket), sample))

    def ask(self, sample: int, ticket: PeerTicket) -> None:
        """Another node waits for a sample; the ticket is told once, at once maybe, and Released has to follow."""
        self._step(e.PeerAsks(self._enter(sample, _ForPeer(ticket)), sample))

    def _enter(self, sample: int, ticket: Ticket) -> int:
        number = next(self._numbers)
        self._tickets[number] = sample, ticket
        self._waiting.setdefault(sample, []).append(ticket)
        return number

    def _take_ticket(self, number: int) -> Ticket:
        """The reader with that number, who is told now. One who was told already is not told again."""
        if number not in self._tickets:
            return _Told()
        sample, ticket = self._tickets.pop(number)
        waiting = self._waiting[sample]
        waiting.remove(ticket)
        if not waiting:
            del self._waiting[sample]
        return ticket

    def _answer(self, answer: c.Answer) -> None:
        ticket = self._take_ticket(answer.ticket)
        if isinstance(ticket, _ForPeer):
            ticket.ticket.ready(self._brought.get(answer.sample))
            return
        brought = self._brought.pop(answer.sample, None)
        if brought is None:
            ticket.answer(None, 0)
        else:
            kind = self._places[brought.place].kind
            ticket.answer(kind, brought.size_bytes if brought.place == SOURCE else 0)

    def _open_direct(self, direct: c.OpenDirect) -> None:
        self._take_ticket(direct.ticket).open_direct(direct.unstaged)

    def _refuse(self, refuse: c.Refuse) -> None:
        text = f"the source did not answer within {self._timeout_s:g} s, twice"
        error = OSError(refuse.error, text if refuse.timed_out else os.strerror(refuse.error))
        brought = self._brought.get(refuse.sample)
        self._take_ticket(refuse.ticket).refuse(brought.error if brought and brought.error else error)

    def past_the_scheduler(self, number: int) -> None:
        """The scheduler failed over this reader: he reads the source by himself."""
        self._take_ticket(number).open_direct(unstaged=False)

    # -- fetches

    def fetch(self, fetch: c.Fetch) -> None:
        """Fetch for readers who wait, in a thread for them."""
        item = fetch.items[0]
        then = partial(self._arrived, fetch.fetch, item)
        call = start(self._runner, "demand", self._fetch_for_reader, item, then=then)
        if call is not None:
            self._calls[fetch.fetch] = call

    def _fetch_for_reader(self, item: c.Item) -> Fetched:
        """In a worker: fetch, and let those who wait go on."""
        try:
            place = self._nearest(item)
            fetched = patiently(
                self._shortages, self._fetcher.fetch, item.sample, place, item.instead, True
            )  # with close_later
            waiting = tuple(self._waiting.get(item.sample, ())) if fetched.staged else ()
            source_bytes = fetched.size_bytes if fetched.place == SOURCE else 0
            answered = [ticket.in_place(source_bytes if first else 0) for first, ticket in _first(waiting)]
        finally:
            self._fetcher.close_read()
        if answered == [True]:
            self._runner.unhurried()
        return fetched

    def _arrived(self, fetch: int, item: c.Item, fetched: Fetched | None, error: BaseException | None) -> None:
        self._calls.pop(fetch, None)
        if fetched is None:
            self._shortages.noticed(error)
            fetched = Fetched(item.sample, error=as_os_error(error))
        landed = landed_of(fetch, fetched)
        if not landed.error:
            by_choice = bool(item.instead) and landed.place == SOURCE
            self._counters.fetch(self._places[landed.place].kind, landed.size_bytes, by_choice)
        self._brought[item.sample] = fetched
        self._step(landed)
        self._brought.pop(item.sample, None)
        if item.keep_in and not landed.error and self._places[landed.place].is_afar:
            self._write_behind.keep(fetch, fetched, item.keep_in)

    def _abandon(self, abandon: c.Abandon) -> None:
        call = self._calls.pop(abandon.fetch, None)
        if call is not None:
            call.give_up()


def _first(tickets: Sequence[Ticket]) -> Iterator[tuple[bool, Ticket]]:
    """Each ticket, and whether it is the first: the fetch counts as this one's."""
    return ((index == 0, ticket) for index, ticket in enumerate(tickets))
