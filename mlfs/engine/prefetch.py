"""The prefetcher: looks ahead along the predicted streams and has workers fetch what is not in the page cache.

In: jobs with cursors, room in the staging window. Out: fetches, in the order of need, each through the lanes (worker
threads) of the storage class the sample lies in. One dispatcher fills one queue a class; lanes empty them in batches,
because a hop to a thread costs as much as a fetch from a fast source. Nothing polls: the dispatcher sleeps until
`kick`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from mlfs.engine.fetch import LARGEST_WHOLE_BYTES, Fetched, Fetcher
from mlfs.engine.runner import Runner
from mlfs.engine.staging import Staging
from mlfs.engine.table import SampleTable, State
from mlfs.follow.job import JobRun
from mlfs.measure.rates import Rates
from mlfs.plan.lane_governor import LaneGovernor
from mlfs.plan.sequence import next_rank

log = logging.getLogger("mlfs.engine")

PFS_QUEUE = "pfs"
BATCH_SECONDS = 0.002
MOST_IN_BATCH = 32
LOOK_SAMPLES = 256
KEPT_AT_ONCE_BYTES = 2 << 20  # in one write of a tier; a lane's batch holds at most one sample more


class Item(NamedTuple):
    """A sample to fetch, and whose, to attribute the bytes."""

    entry: int
    job: JobRun
    epoch: int


class Spent(NamedTuple):
    """What a batch took a thread: seconds in all, of these computing, of these giving copies to tiers."""

    wall_s: float
    cpu_s: float
    keeping_s: float


@dataclass(eq=False)
class Running:
    """A batch that a lane fetches now. One that hangs does not count as working: other lanes may take its place."""

    batch: list[Item]
    hangs: bool = False


@dataclass
class ClassQueue:
    """Samples to fetch from one storage class, and the lanes that do it.

    Attributes:
        urgent: taken before `items`: they were to be there already.
        sample_s: smoothed seconds a sample takes a lane; decides how many go into a batch.
        governor: decides how many lanes help.
    """

    pool: str
    lanes: int
    items: deque[Item] = field(default_factory=deque)
    parked: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    sample_s: float = 0.001
    working: int = 0
    running: set[Running] = field(default_factory=set)
    governor: LaneGovernor = field(init=False)

    def __post_init__(self) -> None:
        self.governor = LaneGovernor(self.lanes)

    def call_lanes(self) -> None:
        """Wake lanes that may work; one that works looks for more by itself."""
        if self.working < self.governor.allowed:
            self.parked.unpark(count=self.governor.allowed - self.working)

    def batch_size(self) -> int:
        """Samples that take about BATCH_SECONDS, so that a slow source is spread over all lanes."""
        return max(1, min(MOST_IN_BATCH, int(BATCH_SECONDS / self.sample_s)))


class Prefetcher:
    """Dispatcher and lanes.

    Args:
        jobs: the live collection of running jobs.
        failed: called on the loop for a fetch that failed: (entry, error).
        clock: seconds, monotone; also called by workers.
        rates: what the lanes are measured to give: told of each batch.
    """

    def __init__(
        self,
        table: SampleTable,
        staging: Staging,
        fetcher: Fetcher,
        runner: Runner,
        jobs: dict[str, JobRun],
        lanes: dict[str, int],
        failed: Callable[[int, OSError], None],
        clock: Callable[[], float],
        rates: Rates,
    ) -> None:
        self.table = table
        self.staging = staging
        self.fetcher = fetcher
        self.runner = runner
        self.jobs = jobs
        self.rates = rates
        self.queues = {pool: ClassQueue(pool, count) for pool, count in lanes.items()}
        self.claims: dict[int, bool] = {}
        # Fetched by a worker whose batch is still under way: the loop takes them out, one at a time or with the batch.
        self.done: dict[int, Fetched] = {}
        self.stopped = False
        self._failed = failed
        self._clock = clock
        self._kicked = trio.Event()
        self._looking = False
        staging.on_room = self.kick

    def kick(self) -> None:
        """Something changed that may allow fetching ahead."""
        self._kicked.set()

    def claim(self, entry: int) -> bool:
        """Take a queued fetch away from the lanes; False when a worker has begun it."""
        return self.claims.pop(entry, None) is not None

    def collect(self, entry: int) -> None:
        """Finish the entry if its fetch is done, without waiting for the rest of its batch, which may hang."""
        fetched = self.done.pop(entry, None)
        if fetched is not None:
            self.staging.finish(entry, fetched)

    def hangs(self, entry: int) -> None:
        """A reader has waited too long for this entry's fetch: have another lane go on in place of its own."""
        for queue in self.queues.values():
            for running in queue.running:
                if not running.hangs and any(item.entry == entry for item in running.batch):
                    running.hangs = True
                    queue.working -= 1
                    queue.call_lanes()

    def under_way(self) -> int:
        """Fetches that are queued or that lanes are at, their copies for the tiers included."""
        batches = sum(len(running.batch) for queue in self.queues.values() for running in queue.running)
        return batches + len(self.claims) + (self._looking or self._kicked.is_set())

    async def run(self) -> None:
        """Fetch ahead for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatch_forever)
            for queue in self.queues.values():
                for _ in range(queue.lanes):
                    nursery.start_soon(self._run_lane, queue)

    # -- looking ahead

    async def _dispatch_forever(self) -> None:
        while True:
            await self._kicked.wait()
            self._kicked, self._looking = trio.Event(), True
            while not self.stopped:
                nearest = self._nearest()
                if nearest is None:
                    break
                if not self._look(*nearest):
                    break
                await trio.lowlevel.checkpoint()
            self._looking = False

    def _nearest(self) -> tuple[JobRun, int] | None:
        """The job and rank whose next unseen sample is needed soonest, in steps."""
        best: tuple[JobRun, int] | None = None
        least = float("inf")
        for job in self.jobs.values():
            if not job.predicting or job.finished:
                continue
            frontiers = [progress.frontier for progress in job.matcher.ranks]
            limit = max(1, job.streams.length(job.spec.start_epoch))
            open_ends = [
                cursor if rank not in job.elsewhere and self._can_look(job, cursor) else frontier + limit
                for rank, (frontier, cursor) in enumerate(zip(frontiers, job.cursors, strict=True))
            ]
            rank = next_rank(frontiers, open_ends, limit)
            if rank < 0:
                continue
            steps = (job.cursors[rank] - frontiers[rank]) / job.streams.batch_files
            if steps < least:
                best, least = (job, rank), steps
        return best

    def _can_look(self, job: JobRun, cursor: int) -> bool:
        return cursor < job.end and job.index_at(cursor) is not None

    def _look(self, job: JobRun, rank: int) -> bool:
        """Look at the rank's next batch; False when the window is full."""
        index = job.index_at(job.cursors[rank])
        if index is None:
            return False
        offset = job.cursors[rank] - index.base
        ids = index.ids[rank][offset : offset + max(1, min(job.streams.batch_files, LOOK_SAMPLES))]
        progress, looked = job.matcher.ranks[rank], index.looked[rank]
        for entry in ids.tolist():
            position = job.cursors[rank]
            if entry >= 0 and not progress.is_done(position):
                if self._is_over() or not self._want(entry, job, index.epoch):
                    return False
                self.table.expect(entry)
                looked[position - index.base] = 1
            job.cursors[rank] = position + 1
        return True

    def _is_over(self) -> bool:
        """Whether readers who waited went over the window: until it is in its bounds again nothing stays for later."""
        over = self.table.window_bytes > self.table.window_capacity_bytes
        if over:
            self.staging.make_room(0)
        return over

    def _want(self, entry: int, job: JobRun, epoch: int) -> bool:
        """Have the entry staged; False when that has to wait for room."""
        table = self.table
        state = table.state[entry]
        if state in (State.STAGED, State.FETCHING):
            return True
        if state == State.RECENT:
            table.move(entry, State.STAGED)
            return True
        if state == State.DROPPING:
            return self.staging.rescue(entry, State.STAGED)
        if table.footprint(entry) > table.window_capacity_bytes:
            return True  # never fits: left to the demand path
        if not table.fits_window(entry):
            self.staging.make_room(table.footprint(entry))
            return False
        table.move(entry, State.FETCHING)
        self._enqueue(Item(entry, job, epoch))
        return True

    def _enqueue(self, item: Item) -> None:
        held_by = self.table.held_by[item.entry]
        from_tier = held_by and self.fetcher.routes.from_tier(item.entry, held_by - 1, self._clock())
        queue = self.queues[f"tier{held_by - 1}" if from_tier else PFS_QUEUE]
        self.claims[item.entry] = True
        queue.items.append(item)
        queue.call_lanes()

    # -- lanes

    async def _run_lane(self, queue: ClassQueue) -> None:
        while True:
            batch = self._take(queue) if queue.working < queue.governor.allowed else []
            if not batch:
                await queue.parked.park()
                continue
            running = Running(batch)
            queue.running.add(running)
            queue.working += 1
            lanes = queue.working
            done, spent = await self.runner.run(queue.pool, self._fetch_batch, batch)
            queue.running.discard(running)
            self._measure(queue, lanes, done, spent.wall_s - spent.keeping_s)
            for item, fetched in done:
                self._finish(item, fetched)
            if running.hangs:
                continue
            queue.working -= 1
            if done:
                queue.sample_s += 0.2 * (spent.wall_s / len(done) - queue.sample_s)
            if queue.items:
                queue.governor.done(len(done), spent.wall_s, spent.cpu_s, self._clock())
                queue.call_lanes()
            else:
                queue.governor.idle()

    def _measure(self, queue: ClassQueue, lanes: int, done: list[tuple[Item, Fetched]], wall_s: float) -> None:
        """What a batch tells of its route; nothing if some of it went by another."""
        source = queue.pool == PFS_QUEUE
        if done and all((fetched.route == "pfs") == source and fetched.error is None for _, fetched in done):
            size = sum(fetched.size_bytes for _, fetched in done)
            pace_lanes = lanes if queue.items else 0
            if self.fetcher.routes.tries(queue.pool):  # a few samples, one by one: as if all lanes worked like this
                pace_lanes = queue.governor.allowed
            self.rates.batch(queue.pool, lanes, size, wall_s, len(done), pace_lanes)

    def _take(self, queue: ClassQueue) -> list[Item]:
        batch: list[Item] = []
        while queue.items and len(batch) < queue.batch_size():
            item = queue.items.popleft()
            if item.entry not in self.claims:
                continue  # a demand fetch took it over
            if self.stopped or not self.table.pending[item.entry]:
                self.claim(item.entry)
                self.staging.cancel(item.entry)
                continue
            batch.append(item)
        return batch

    def _finish(self, item: Item, fetched: Fetched) -> None:
        if fetched.error is not None:
            self._failed(item.entry, fetched.error)
        elif fetched.route == "pfs":
            item.job.count_pfs(item.epoch, fetched.size_bytes)
        if self.done.get(item.entry) is fetched:  # else finished before: the entry may be in another fetch by now
            self.collect(item.entry)

    def _fetch_batch(self, batch: list[Item]) -> tuple[list[tuple[Item, Fetched]], Spent]:
        """In a worker thread: fetch what nobody took over; tell at once those who wait, then have a tier keep it."""
        done: list[tuple[Item, Fetched]] = []
        keep: list[Fetched] = []
        keeping_s = 0.0
        began, cpu_began = self._clock(), time.thread_time()
        for item in batch:
            if not self.claim(item.entry):
                continue
            if self.table.sizes[item.entry] > LARGEST_WHOLE_BYTES:
                fetched = self.fetcher.fetch_large(item.entry, lambda: not self.stopped)
            else:
                fetched = self.fetcher.fetch(item.entry)
            light = fetched._replace(data=None)
            if fetched.route == "pfs" and fetched.data is not None:
                # Before anybody can know of it: whoever asks for it from now on is answered from here.
                self.fetcher.to_keep[item.entry] = fetched
                keep.append(fetched)
            self.done[item.entry] = light
            if item.entry in self.staging.waiters:
                self.runner.post(self.collect, item.entry)
            done.append((item, light))
            if sum(one.size_bytes for one in keep) > KEPT_AT_ONCE_BYTES:
                keeping_s += self._keep(keep)
                keep = []
        keeping_s += self._keep(keep)
        return done, Spent(self._clock() - began, time.thread_time() - cpu_began, keeping_s)

    def _keep(self, batch: list[Fetched]) -> float:
        """In a worker thread: have tiers keep what was fetched; returns the seconds it took."""
        began = self._clock()
        self.fetcher.keep_waiting(batch)
        return self._clock() - began
