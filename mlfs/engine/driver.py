"""Drives the scheduler: carries its commands out with threads and pages, and tells it what became of them.

In: events, on the loop. Out: fetches, drops and copies in worker threads; answers to readers who wait; calls on those
who compute orders and plans. All decisions are the scheduler's (mlfs.plan.scheduler), which knows nothing of threads;
nothing is decided here. One step at a time: an event that arises while commands are carried out waits for the next one.

A thread of a lane gets a whole batch (`_Batch`): it claims each sample before it begins, so that a reader who waits
can have a sample back that was not begun; and it leaves each result where the loop finds it, for a reader who waits
shall not wait for the rest of the batch.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import trio

from mlfs.engine.fetch import LARGEST_WHOLE_BYTES, Fetched, Fetcher
from mlfs.engine.runner import Call, Runner, Then
from mlfs.engine.write_behind import WriteBehind
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")

# Bytes that a lane collects before it has a tier keep them in one write; a batch holds at most one sample more.
KEPT_AT_ONCE_BYTES = 2 << 20


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


class _Batch:
    """A lane's fetch: what it has not begun, and what it has done."""

    __slots__ = ("claims", "counted", "done", "fetch", "item_of", "items")

    def __init__(self, fetch: c.Fetch) -> None:
        self.fetch = fetch.fetch
        self.items = fetch.items
        self.item_of = {item.sample: item for item in fetch.items}
        self.claims = dict(self.item_of)  # whoever takes an item out has it
        self.done: dict[int, e.Landed] = {}
        self.counted: set[int] = set()  # samples whose end was counted


class _Over:
    """What a lane's thread says of a batch that is over."""

    __slots__ = ("cpu_s", "keeping_s", "kept", "landed", "wall_s")

    def __init__(self) -> None:
        self.landed: list[e.Landed] = []
        self.kept: list[e.Kept] = []
        self.wall_s = self.cpu_s = self.keeping_s = 0.0


class Driver:
    """See the module.

    Args:
        clock: seconds, monotone; also called by workers. cpu_clock: seconds that the calling thread has computed.
        timeout_s: the patience with a second try, for the message.
        prefetch_failed: told of each prefetch that failed: (sample, error).
        others: who carries out the commands about jobs, orders and plans, by the command's class.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        places: Sequence[PlaceInfo],
        fetcher: Fetcher,
        write_behind: WriteBehind,
        counters: Counters,
        runner: Runner,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        timeout_s: float,
        prefetch_failed: Callable[[int, OSError], None],
        others: Mapping[type, Callable[[Any], None]],
    ) -> None:
        self._scheduler = scheduler
        self._places = places
        self._fetcher = fetcher
        self._write_behind = write_behind
        self._counters = counters
        self._runner = runner
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._timeout_s = timeout_s
        self._prefetch_failed = prefetch_failed
        self._inbox: list[e.Event] = []
        self._stepping = False
        self._stopped = False
        self._tickets: dict[int, tuple[int, Ticket]] = {}  # by number: the sample and who waits
        self._ticket_numbers = itertools.count(1)
        self._waiting: dict[int, list[Ticket]] = {}  # by sample; workers look into it
        self._brought: dict[int, Fetched] = {}  # the end of a fetch for a reader, while it is told
        self._calls: dict[int, Call] = {}  # fetches for readers
        self._batches: dict[int, _Batch] = {}
        self._alarm_s = math.inf
        self._alarm: trio.CancelScope | None = None
        self._do: dict[type, Callable[[Any], None]] = {
            c.Fetch: self._fetch,
            c.Abandon: self._abandon,
            c.Recall: self._recall,
            c.Drop: self._drop,
            c.Answer: self._answer,
            c.OpenDirect: self._open_direct,
            c.Refuse: self._refuse,
            c.Warn: self._warn,
            c.WakeAt: self._wake_at,
            c.Count: self._count,
            **others,
        }

    @property
    def lanes_at_work(self) -> int:
        """Batches that lanes have."""
        return len(self._batches)

    def step(self, *events: e.Event) -> None:
        """On the loop: have the scheduler take events in, and carry out what it says."""
        self._inbox += events
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox:
                taken, self._inbox = self._inbox, []
                for command in self._scheduler.step(self._clock(), taken):
                    self._do[type(command)](command)
        finally:
            self._stepping = False

    def stop(self, stop: bool) -> None:
        """Fetch nothing ahead any more; or go on after all."""
        self._stopped = stop
        self.step(e.Stopped(stop))

    # -- readers who wait

    def wait(self, sample: int, ticket: Ticket) -> None:
        """A reader waits for a sample that was not in place; the ticket is told once, at once maybe."""
        number = next(self._ticket_numbers)
        self._tickets[number] = sample, ticket
        self._waiting.setdefault(sample, []).append(ticket)
        self.step(e.ReadWaits(number, sample))

    def _take_ticket(self, number: int) -> Ticket:
        sample, ticket = self._tickets.pop(number)
        waiting = self._waiting[sample]
        waiting.remove(ticket)
        if not waiting:
            del self._waiting[sample]
        return ticket

    def _answer(self, answer: c.Answer) -> None:
        brought = self._brought.pop(answer.sample, None)
        if brought is None:
            self._take_ticket(answer.ticket).answer(None, 0)
        else:
            kind = self._places[brought.place].kind
            self._take_ticket(answer.ticket).answer(kind, brought.size_bytes if brought.place == SOURCE else 0)

    def _open_direct(self, direct: c.OpenDirect) -> None:
        self._take_ticket(direct.ticket).open_direct(direct.unstaged)

    def _refuse(self, refuse: c.Refuse) -> None:
        text = f"the source did not answer within {self._timeout_s:g} s, twice"
        error = OSError(refuse.error, text if refuse.timed_out else os.strerror(refuse.error))
        brought = self._brought.get(refuse.sample)
        self._take_ticket(refuse.ticket).refuse(brought.error if brought and brought.error else error)

    # -- fetches for readers

    def _fetch(self, fetch: c.Fetch) -> None:
        if not fetch.waited_for:
            batch = self._batches[fetch.fetch] = _Batch(fetch)
            pool = self._places[fetch.pool].name
            self._start(pool, exhaust, self._fetch_batch(batch), then=partial(self._batch_over, batch))
            return
        item = fetch.items[0]
        then = partial(self._arrived, fetch.fetch, item)
        call = self._start("demand", self._fetch_for_reader, item, then=then)
        if call is not None:
            self._calls[fetch.fetch] = call

    def _start(self, pool: str, call: Callable[..., Any], *args: object, then: Then[Any]) -> Call | None:
        """Start a call; where no thread is to be had it ends at once with that error."""
        try:
            return self._runner.start(pool, call, *args, then=then)
        except Exception as error:
            then(None, error)
            return None

    def _fetch_for_reader(self, item: c.Item) -> Fetched:
        """In a worker: fetch, and let those who wait go on."""
        try:
            fetched = self._fetcher.fetch(item.sample, self._nearest(item), item.instead, close_later=True)
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
            fetched = Fetched(item.sample, error=_as_os_error(error))
        landed = _landed(fetch, fetched)
        if not landed.error:
            self._count_fetch(item, landed)
        self._brought[item.sample] = fetched
        self.step(landed)
        self._brought.pop(item.sample, None)
        if item.keep_in and not landed.error and self._comes_from_afar(landed.place):
            self._write_behind.keep(fetch, fetched, item.keep_in)

    def _abandon(self, abandon: c.Abandon) -> None:
        call = self._calls.pop(abandon.fetch, None)
        if call is not None:
            call.give_up()

    # -- fetches of lanes

    def _fetch_batch(self, batch: _Batch) -> Generator[int, None, _Over]:
        """In a worker: fetch what nobody took back, tell at once of what is waited for, and have tiers keep it.

        Yields each sample as soon as it is begun: for runners that have time pass then (the threads' has none).
        """
        over, keep = _Over(), _Keep(self._fetcher, batch.fetch)
        began_s, cpu_began_s = self._clock(), self._cpu_clock()
        for item in batch.items:
            if batch.claims.pop(item.sample, None) is None:
                continue
            yield item.sample
            if self._scheduler.table.sizes[item.sample] > LARGEST_WHOLE_BYTES:
                fetched = self._fetcher.fetch_large(item.sample, lambda: not self._stopped)
            else:
                fetched = self._fetcher.fetch(item.sample, self._nearest(item), item.instead)
            landed = _landed(batch.fetch, fetched)
            if item.keep_in and not landed.error and self._comes_from_afar(landed.place):
                keep.add(fetched, item.keep_in)  # before anybody can know of it: who asks from now on gets it from here
            batch.done[item.sample] = landed
            over.landed.append(landed)
            if item.sample in self._waiting:
                self._runner.post(self._tell_early, batch, item.sample)
            if keep.bytes > KEPT_AT_ONCE_BYTES:
                over.keeping_s += keep.write(over.kept, self._clock)
        over.keeping_s += keep.write(over.kept, self._clock)
        over.wall_s, over.cpu_s = self._clock() - began_s, self._cpu_clock() - cpu_began_s
        return over

    def _nearest(self, item: c.Item) -> int:
        """In a worker: the place to ask; a copy may have been kept since it was decided to ask the source."""
        by_choice = item.place or item.instead
        return item.place if by_choice else self._scheduler.table.held_by[item.sample]

    def _comes_from_afar(self, place: int) -> bool:
        """Whether bytes came from another place than this node's own."""
        return self._places[place].kind in (PlaceKind.SOURCE, PlaceKind.PEER)

    def _tell_early(self, batch: _Batch, sample: int) -> None:
        """A reader waits for one sample of a batch that is still under way, and may hang."""
        landed = batch.done.get(sample)
        if landed is not None and batch.fetch in self._batches:
            self._count_landed(batch, landed)
            self.step(landed)

    def _recall(self, recall: c.Recall) -> None:
        """A reader waits: have the sample back, or its result if it is there."""
        batch = self._batches.get(recall.fetch)
        if batch is None:
            return
        if batch.claims.pop(recall.sample, None) is not None:
            self.step(e.Recalled(recall.fetch, recall.sample))
        else:
            self._tell_early(batch, recall.sample)

    def _batch_over(self, batch: _Batch, over: _Over | None, error: BaseException | None) -> None:
        if over is None:  # a bug, or no thread to be had: it costs these prefetches
            number, over = _as_os_error(error).errno or errno.EIO, _Over()
            over.landed = [e.Landed(batch.fetch, item.sample, error=number) for item in batch.items]
        for landed in over.landed:
            self._count_landed(batch, landed)
        del self._batches[batch.fetch]
        self.step(
            e.FetchEnded(batch.fetch, over.landed, over.wall_s, over.cpu_s, over.keeping_s), *over.kept
        )  # fmt: skip

    def _count_landed(self, batch: _Batch, landed: e.Landed) -> None:
        """Count a sample's end, once."""
        if landed.sample in batch.counted:
            return
        batch.counted.add(landed.sample)
        if landed.error:
            self._prefetch_failed(landed.sample, OSError(landed.error, os.strerror(landed.error)))
        else:
            self._count_fetch(batch.item_of[landed.sample], landed)

    def _count_fetch(self, item: c.Item, landed: e.Landed) -> None:
        by_choice = bool(item.instead) and landed.place == SOURCE
        self._counters.fetch(self._places[landed.place].kind, landed.size_bytes, by_choice)

    # -- drops, time, words

    def _drop(self, drop: c.Drop) -> None:
        self._start("drop", self._fetcher.drop, drop.samples, then=partial(self._dropped, drop.samples))

    def _dropped(self, samples: Sequence[int], _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("pages could not be dropped", exc_info=error)
        self.step(e.Dropped(samples))

    def _wake_at(self, wake: c.WakeAt) -> None:
        self._alarm_s = wake.at_s
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            passing_s = max(0.0, self._alarm_s - self._clock())  # infinity stays what it is
            self._alarm.deadline = trio.current_time() + passing_s

    async def run(self) -> None:
        """Tell the scheduler when its time has come, for as long as the mount lives."""
        while True:
            with trio.CancelScope() as self._alarm:
                self._set_alarm()
                await trio.sleep_forever()
            self._alarm, self._alarm_s = None, math.inf
            self.step(e.TimePassed())

    def _warn(self, warn: c.Warn) -> None:
        log.warning("%s", warn.text)

    def _count(self, count: c.Count) -> None:
        self._counters.error(count.kind)


class _Keep:
    """In a worker: what a batch brought that places shall keep."""

    def __init__(self, fetcher: Fetcher, fetch: int) -> None:
        self._fetcher = fetcher
        self._fetch = fetch
        self._waiting: list[tuple[Fetched, tuple[int, ...]]] = []
        self.bytes = 0

    def add(self, fetched: Fetched, keep_in: tuple[int, ...]) -> None:
        """Have it kept soon; until then it is as good as kept."""
        if fetched.data is not None:
            self._fetcher.to_keep[fetched.sample] = fetched, keep_in[0]
        self._waiting.append((fetched, keep_in))
        self.bytes += fetched.size_bytes

    def write(self, kept: list[e.Kept], clock: Callable[[], float]) -> float:
        """Have it kept now; returns the seconds it took."""
        began_s = clock()
        batch, self._waiting, self.bytes = self._waiting, [], 0
        for (fetched, _), (place, used_bytes) in zip(batch, self._fetcher.keep(batch), strict=True):
            kept.append(e.Kept(self._fetch, fetched.sample, place, used_bytes))
        return clock() - began_s


def exhaust(work: Generator[object, None, T]) -> T:
    """In a worker: do all of the work, and return what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)


def _first(tickets: Sequence[Ticket]) -> Iterator[tuple[bool, Ticket]]:
    """Each ticket, and whether it is the first: the fetch counts as this one's."""
    return ((index == 0, ticket) for index, ticket in enumerate(tickets))


def _landed(fetch: int, fetched: Fetched) -> e.Landed:
    if fetched.error is not None:
        return e.Landed(fetch, fetched.sample, error=fetched.error.errno or errno.EIO)
    return e.Landed(fetch, fetched.sample, fetched.place, fetched.size_bytes, fetched.staged)


def _as_os_error(error: BaseException | None) -> OSError:
    """The error of a call that raised. What is no OSError is a bug: it costs this read EIO, never the mount."""
    if isinstance(error, OSError):
        return error
    log.error("a fetch failed in an unforeseen way", exc_info=error)
    return OSError(errno.EIO, "an internal error, see the log")
