"""Lanes: the threads that fetch ahead of the readers, a batch at a time.

In: the scheduler's Fetch commands for a pool of lanes. Out: pages pushed, copies kept, FetchEnded. A lane's thread gets
a whole batch: it claims each sample before it begins, so that a reader who waits can have a sample back that was not
begun; and it leaves each result where the loop finds it, for a reader shall not wait for the rest of the batch.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar, cast

from mlfs.engine.context import Context
from mlfs.engine.fetch import LARGEST_WHOLE_BYTES, Fetched, Fetcher, as_os_error, landed_of
from mlfs.engine.movers import Movers
from mlfs.engine.moving import Moving
from mlfs.engine.pagecache import Buffer
from mlfs.engine.runner import start
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.scheduler import Scheduler

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")

# Bytes that a lane collects before it has a tier keep them in one write; a batch holds at most one sample more. Where
# memory is short it collects less.
KEPT_AT_ONCE_BYTES = 2 << 20


class _Batch:
    """A lane's fetch: what it has not begun, and what it has done."""

    __slots__ = ("claims", "counted", "done", "fetch", "is_plain", "item_of", "items", "moving", "stage")

    def __init__(self, fetch: c.Fetch, is_plain: bool) -> None:
        self.fetch = fetch.fetch
        self.is_plain = is_plain  # whether movers may have it
        self.items = fetch.items
        self.stage = fetch.stage
        self.item_of = {item.sample: item for item in fetch.items}
        self.claims = dict(self.item_of)  # whoever takes an item out has it
        self.moving: Moving | None = None  # what a mover has of it
        self.done: dict[int, e.Landed] = {}
        self.counted: set[int] = set()  # samples whose end was counted


class _Over:
    """The end of a batch, as the lane's thread tells it."""

    __slots__ = ("cpu_s", "keeping_s", "kept", "landed", "wall_s")

    def __init__(self) -> None:
        self.landed: list[e.Landed] = []
        self.kept: list[e.Kept] = []
        self.wall_s = self.cpu_s = self.keeping_s = 0.0


class Lanes:
    """Carries out fetches ahead of the readers, each a batch in a thread of its place.

    Args:
        cpu_clock: seconds that the calling thread has computed. most_kept_bytes: of what a lane collects.
        movers: processes that fetch for lanes; None: lanes do it themselves.
    """

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        fetcher: Fetcher,
        cpu_clock: Callable[[], float],
        most_kept_bytes: int,
        movers: Movers | None = None,
    ) -> None:
        self._movers = movers
        self._step = context.step
        self._clock = context.clock
        self._runner = context.runner
        self._counters = context.counters
        self._shortages = context.shortages
        self._place_of, self._places_of = scheduler.place_of, scheduler.places_of
        self._waiters = scheduler.waiters
        self._sizes, self._first_row = scheduler.table.sizes, scheduler.table.first_row
        self._blocks_from = scheduler.table.blocks.first
        self._fetcher = fetcher
        self._places = fetcher.places
        self._gives_to_movers = {SOURCE, *fetcher.places.shared} if movers is not None else set[int]()
        self._cpu_clock = cpu_clock
        self._kept_at_once_bytes = min(KEPT_AT_ONCE_BYTES, most_kept_bytes)
        self._batches: dict[int, _Batch] = {}
        self._stopped = False

    @property
    def at_work(self) -> int:
        return len(self._batches)

    def stop(self, stop: bool) -> None:
        """Break off what takes long; or go on after all."""
        self._stopped = stop

    def fetch(self, fetch: c.Fetch) -> None:
        """Have a lane of a pool fetch a batch."""
        place = self._places[fetch.pool]
        first = fetch.items[0]
        is_plain = fetch.pool in self._gives_to_movers and first.sample < self._blocks_from and not first.blocks
        batch = self._batches[fetch.fetch] = _Batch(fetch, is_plain)
        pool = "peers" if place.kind is PlaceKind.PEER else place.name
        start(self._runner, pool, exhaust, self._fetch_batch(batch), then=partial(self._batch_over, batch))

    def _fetch_batch(self, batch: _Batch) -> Generator[int, None, _Over]:
        """In a worker: fetch what nobody took back, tell at once of what is waited for, and have tiers keep it.

        Yields each sample as soon as it is begun: for runners that have time pass then (the threads' has none).
        """
        over, keep = _Over(), _Keep(self._fetcher, batch.fetch)
        began_s, cpu_began_s = self._clock(), self._cpu_clock()
        with self._fetcher.ahead(batch.items):
            self._move(batch, over)
            for item in [item for item in batch.items if item.sample in batch.claims]:
                if batch.claims.pop(item.sample, None) is None:
                    continue
                yield item.sample
                if item.blocks:
                    landed = self._fetch_row(batch, item, keep, over)
                elif self._blocks_from <= item.sample < self._first_row:
                    landed = self._fetch_block(batch, item, keep)
                elif self._sizes[item.sample] > LARGEST_WHOLE_BYTES:
                    landed = landed_of(
                        batch.fetch, self._fetcher.fetch_large(item.sample, lambda: not self._stopped)
                    )  # fmt: skip
                else:
                    fetched = self._fetcher.fetch(item.sample, self._place_of(item), item.instead, stage=batch.stage)
                    landed = landed_of(batch.fetch, fetched)
                    if item.keep_in and not landed.error and self._places.kinds[landed.place].is_afar:
                        keep.add(fetched, item.keep_in)  # before anybody can know of it: who asks now gets it from here
                batch.done[item.sample] = landed
                over.landed.append(landed)
                if item.sample in self._waiters:
                    self._runner.post(self._tell_early, batch, item.sample)
                if keep.bytes > self._kept_at_once_bytes:
                    over.keeping_s += keep.write(over.kept, self._clock)
        over.keeping_s += keep.write(over.kept, self._clock)
        over.wall_s = self._clock() - began_s
        over.cpu_s += self._cpu_clock() - cpu_began_s
        return over

    def _move(self, batch: _Batch, over: _Over) -> None:
        """In a worker: have a mover fetch what is plain, if one is free. The lane has what it leaves."""
        mover = self._movers.take() if self._movers is not None and batch.is_plain else None
        if self._movers is None or mover is None:
            return

        def ended(landed: list[e.Landed], kept: list[e.Kept]) -> None:
            batch.done |= {one.sample: one for one in landed}
            over.landed += landed
            over.kept += kept
            waiters = self._waiters
            for one in landed:
                if one.sample in waiters:
                    self._runner.post(self._tell_early, batch, one.sample)

        claims, places_of = batch.claims, self._places_of
        moving = batch.moving = Moving(self._fetcher, mover, batch.fetch, batch.items, batch.stage, places_of)
        try:
            took = moving.run(lambda samples: {one for one in samples if claims.pop(one, None) is not None}, ended)
            over.cpu_s, over.keeping_s = took.busy_s, took.keeping_s
            self._movers.give_back(mover)
        except OSError as error:
            self._movers.lost(mover, error)
        except BaseException as error:
            self._movers.lost(mover, error)
            raise
        batch.moving = None
        batch.claims |= {item.sample: item for item in moving.left}

    def _fetch_block(self, batch: _Batch, item: c.Item, keep: _Keep) -> e.Landed:
        """In a worker: get a block, give it to the READs that wait for it, and push it, as a push waits for them."""
        fetcher, sample = self._fetcher, item.sample
        generation = fetcher.samples.manifest.generation_view[fetcher.samples.file_of(sample)]
        fetched = fetcher.fetch(sample, self._place_of(item), item.instead, stage=False, keep_in=item.keep_in)
        landed = landed_of(batch.fetch, fetched)
        if landed.error or fetched.data is None:
            return landed
        if item.keep_in and self._places.kinds[landed.place].is_afar:
            keep.add(fetched, item.keep_in)
        if not batch.stage or self._stopped:
            return landed
        landed = batch.done[sample] = landed._replace(staged=True)  # as those who wait for it are told
        with fetcher.staging(fetched):
            if sample in self._waiters:
                self._runner.post(self._tell_early, batch, sample)
            return landed._replace(staged=fetcher.push_block(fetched, generation))

    def _fetch_row(self, batch: _Batch, item: c.Item, keep: _Keep, over: _Over) -> e.Landed:
        """In a worker: get the pages that a row lies in, of each block from its own place, and push them."""
        fetcher, samples = self._fetcher, self._fetcher.samples
        file = samples.file_of(item.sample)
        generation, file_bytes = samples.manifest.generation_view[file], samples.sizes[file]
        begin, end = samples.file_blocks.rows.pages_of(item.sample)
        ends: list[e.Landed] = []
        parts: list[Buffer] = []
        try:
            for block in item.blocks:
                first = samples.offset_of(block.sample)
                low, high = max(begin, first), min(end, first + self._sizes[block.sample], file_bytes)
                part, fetched = fetcher.fetch_part(block, self._place_of(block), low - first, high - low, keep.add)
                parts.append(part)
                ends.append(landed_of(batch.fetch, fetched))
                if keep.bytes > self._kept_at_once_bytes:
                    over.keeping_s += keep.write(over.kept, self._clock)
        except OSError as error:
            return e.Landed(batch.fetch, item.sample, error=error.errno or errno.EIO, blocks=tuple(ends))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        whole = len(data) == min(end, file_bytes) - begin
        staged = whole and not self._stopped and fetcher.push_row(item.sample, generation, begin, data)
        return self._landed_in_blocks(batch, item, ends, staged)

    def _landed_in_blocks(self, batch: _Batch, item: c.Item, ends: Sequence[e.Landed], staged: bool) -> e.Landed:
        """The end of what was got by blocks: it counts for the farthest place that gave one of them."""
        place = min((end.place for end in ends), key=self._nearness)
        return e.Landed(
            batch.fetch, item.sample, place, sum(end.size_bytes for end in ends if end.place == place), staged,
            blocks=tuple(ends), read_before_bytes=sum(end.read_before_bytes for end in ends),
        )  # fmt: skip

    def _nearness(self, place: int) -> int:
        """A number that is higher for a place that is nearer: the source is the farthest, then come peers."""
        kind = self._places.kinds[place]
        return 0 if kind is PlaceKind.SOURCE else 1 if kind is PlaceKind.PEER else 2

    def _tell_early(self, batch: _Batch, sample: int) -> None:
        """A reader waits for one sample of a batch that is still under way, and may hang."""
        landed = batch.done.get(sample)
        if landed is not None and batch.fetch in self._batches:
            self._count_landed(batch, (landed,))
            self._step(landed)

    def recall(self, recall: c.Recall) -> None:
        """A reader waits: have the sample back, or its result if it is there."""
        batch = self._batches.get(recall.fetch)
        if batch is None:
            return
        moving = batch.moving
        if batch.claims.pop(recall.sample, None) is not None or (moving and moving.take_back(recall.sample)):
            self._step(e.Recalled(recall.fetch, recall.sample))
        else:
            self._tell_early(batch, recall.sample)

    def _batch_over(self, batch: _Batch, over: _Over | None, error: BaseException | None) -> None:
        if over is None:  # a bug, or no thread to be had: it costs these prefetches
            self._shortages.noticed(error)
            number, over = as_os_error(error).errno or errno.EIO, _Over()
            over.landed = [e.Landed(batch.fetch, item.sample, error=number) for item in batch.items]
        self._count_landed(batch, over.landed)
        if self._movers is not None and batch.is_plain:
            self._movers.saw(over.cpu_s)
        del self._batches[batch.fetch]
        self._step(
            e.FetchEnded(batch.fetch, over.landed, over.wall_s, over.cpu_s, over.keeping_s, over.kept)
        )  # fmt: skip

    def _count_landed(self, batch: _Batch, ends: Sequence[e.Landed]) -> None:
        """Count the ends of samples, each once."""
        came: dict[tuple[int, bool], tuple[int, int]] = {}  # by place, and whether that was chosen: samples and bytes
        ends = [landed for landed in ends if landed.sample not in batch.counted]
        batch.counted |= {landed.sample for landed in ends}
        for landed in ends:
            place = landed.place
            if landed.error:
                self._shortages.noticed(landed.error)
                if not self._counters.errors.get("prefetch_failed"):
                    self._log_first_failure(landed)
            else:
                kind = place, place == SOURCE and bool(batch.item_of[landed.sample].instead)
                count, size_bytes = came.get(kind, (0, 0))
                came[kind] = count + 1, size_bytes + landed.size_bytes - landed.read_before_bytes
            for end in landed.blocks:
                if landed.error or end.place != place:
                    self._counters.gave(self._places.kinds[end.place], end.size_bytes - end.read_before_bytes)
        for (place, by_choice), (count, size_bytes) in came.items():
            self._counters.fetch(self._places.kinds[place], size_bytes, by_choice, count)

    def _log_first_failure(self, landed: e.Landed) -> None:
        samples = self._fetcher.samples
        path, why = samples.manifest.path(samples.file_of(landed.sample)), os.strerror(landed.error)
        log.warning("prefetch of %r failed: %s (left to the reader; further ones are counted)", path, why)


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
            self._fetcher.keep_soon(fetched, keep_in[0])
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
