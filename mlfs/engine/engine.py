"""The engine of one mount: the trio driver of a scheduler, and all that it needs.

In: opens, reads and releases from the request handlers; jobs from the control file and from mlfs.explain. Out: bytes,
pages in the kernel's page cache ahead of the reader, counters. Runs on the loop of the daemon; knows no FUSE.

Who decides is the scheduler; who carries out is mlfs.engine.driver. What is here ties them to the jobs: reads are
digested in batches, a moment after they were seen and off the readers' path; orders are computed in a worker thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

import trio

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.driver import Driver
from mlfs.engine.fetch import Fetcher
from mlfs.engine.opens import Opens
from mlfs.engine.pagecache import PageCache
from mlfs.engine.planner import Planner
from mlfs.engine.ranges import Ranges
from mlfs.engine.runner import Runner
from mlfs.engine.write_behind import WriteBehind
from mlfs.errors import MlfsError
from mlfs.explain.port import Observer
from mlfs.follow.agreement import epoch_line
from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import GAVE_UP, JobRun
from mlfs.follow.matching import Open
from mlfs.job import JobSpec
from mlfs.measure.measured_place import MeasuredPlace
from mlfs.measure.rates import Rates
from mlfs.measure.refine import best
from mlfs.measure.speeds import Speeds
from mlfs.orders.streams import JobStreams
from mlfs.places.place import FileChange, Places
from mlfs.places.source import Source
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import config
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.routing import known_source
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.stats import Counters
from mlfs.tree.samples import Samples

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Opens and releases are taken in together, so late: a scheduler's pass a request would cost every reader.
EVENTS_DELAY_S = 0.01
# Most of them in one step: the loop has requests to answer in between.
EVENTS_A_TURN = 512
FIND_CHUNK = 4096
MOST_READERS = 4096


def kin_of(pid: int) -> tuple[int, int]:
    """The process of a thread of this machine, and its parent; (pid, 0) when there is none of that number."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            fields = dict(line.split(b":", 1) for line in status.read().splitlines() if b":" in line)
        return int(fields[b"Tgid"]), int(fields[b"PPid"])
    except (OSError, KeyError, ValueError):
        return pid, 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets and threads of a mount.

    Attributes:
        staging_bytes: the window. pfs_threads, tier_threads: most prefetch lanes of the PFS, and of each tier.
        hedge_s, timeout_s: see mlfs.plan.scheduler.config.Limits.
        calibrated: (lanes, bytes a second of all together) by a place's name, as measured before.
        refined: the same as an earlier mount refined it, where that is newer.
        calibrated_sample_bytes: of a sample that the source was calibrated with, 0 when nothing is known.
        pfs_lanes_at_first: how many prefetch lanes the PFS is tried with first, 0 when nothing is known.
    """

    staging_bytes: int
    pfs_threads: int = 16
    tier_threads: int = 4
    hedge_s: float = 10.0
    timeout_s: float = 30.0
    calibrated: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    refined: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    calibrated_sample_bytes: float = 0.0
    pfs_lanes_at_first: int = 0


class Listener(Protocol):
    """Who hears of reads and jobs, on the loop, and changes nothing (a recording, the priming of inodes)."""

    def opened(self, entry: int, process: int, parent: int) -> None:
        """A file was opened; told a moment later, in order."""

    def installed(self, job: JobRun) -> None:
        """A job was installed."""


class Engine:
    """See the module. `run` must be running for anything to move.

    Attributes:
        scheduler: for those who ask it (`status`), not for those who tell it.
        opens, ranges: what the request handlers call. counters: of this mount.
    """

    def __init__(
        self,
        samples: Samples,
        source: Source,
        places: Places,
        pages: PageCache,
        runner: Runner,
        limits: Limits,
        clock: Callable[[], float],
        explainer: Observer,
        listeners: Sequence[Listener] = (),
        kin_of: Callable[[int], tuple[int, int]] = kin_of,
    ) -> None:
        self.samples = samples
        self.manifest = samples.manifest
        self.source = source
        self.places = places
        self.limits = limits
        self.clock = clock
        self.runner = runner
        self.counters = Counters()
        self.rates = Rates()
        self._explainer = explainer
        self._listeners = tuple(listeners)
        self._kin_of = kin_of
        infos = tuple(_place_infos(places, limits))
        bounds = config.Limits(limits.staging_bytes, limits.pfs_lanes_at_first, limits.hedge_s, limits.timeout_s)
        points = limits.refined.get(infos[0].name) or limits.calibrated.get(infos[0].name, ())
        known = known_source(best(points), limits.calibrated_sample_bytes)
        self.scheduler = Scheduler(samples.sizes, infos, bounds, self.rates, known)
        measured = {n: MeasuredPlace(info.kind, info.name, info.capacity_bytes) for n, info in enumerate(infos)}
        self.speeds = Speeds({**limits.calibrated, **limits.refined}, self.rates, measured)
        self._fetcher = Fetcher(samples, source, places, pages, self._announce)
        self._write_behind = WriteBehind(self._fetcher, runner, lambda kept: self._driver.step(*kept))
        self.planner = Planner(
            samples.sizes, lambda: self.scheduler.keeping.capacities_bytes, runner,
            lambda plan: self._driver.step(e.Planned(plan)),
        )  # fmt: skip
        self._driver = Driver(
            self.scheduler, infos, self._fetcher, self._write_behind, self.counters, runner, clock,
            limits.timeout_s, self._prefetch_failed, self._about_jobs(),
        )  # fmt: skip
        self.ranges = Ranges(
            samples, self.scheduler, self._driver, infos, self._fetcher, self.counters, runner, clock, bounds
        )
        self.opens = Opens(samples, self.scheduler, self._driver, self.ranges, self.counters, clock)
        self._broken: list[object] = []  # what observers failed in
        self._changed_files = 0
        self._known_kin: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._events: deque[tuple[int, int, float, int]] = deque()
        self._digesting = False
        self._orders_under_way = 0
        self._events_soon = Coalesced(EVENTS_DELAY_S)
        self._measure_places()

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        """The jobs of the mount by name."""
        return cast("Mapping[str, JobRun]", self.scheduler.jobs)

    @property
    def changed_files(self) -> int:
        """Files that were found to have changed at the source."""
        return self._changed_files

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_events)
            nursery.start_soon(self._driver.run)
            nursery.start_soon(self._explainer.run, self)
            nursery.start_soon(self.planner.run)
            nursery.start_soon(self._write_behind.run)
            if any(place.used_bytes for place in self.places.storing):
                self._fetcher.finding = True  # before the first read is served
                nursery.start_soon(self._find_again)

    # -- the read path

    def opened(self, entry: int, pid: int, source_bytes: int = 0) -> None:
        """A reader holds the file open from now on. `source_bytes`: what the source gave for it."""
        self._events_soon.call()
        self._events.append((entry, pid, self.clock(), source_bytes))

    def opened_in_worker(self, entry: int, pid: int, source_bytes: int) -> None:
        """The same from a worker, before the reader can know: its next open counts later. `digest` has to follow."""
        self._events.append((entry, pid, self.clock(), source_bytes))

    def digest(self) -> None:
        """On the loop: look at what was opened and closed, a moment later."""
        self._events_soon.call()

    def released(self, entry: int) -> None:
        """A reader closed the file."""
        self._events_soon.call()
        self._events.append((entry, -1, 0.0, 0))

    async def _run_events(self) -> None:
        """Take opens and releases in, in batches: off the readers' path."""
        while True:
            await self._events_soon.wait()
            self._digesting, left = True, len(self._events)
            while left:
                turn = min(left, EVENTS_A_TURN)
                left -= turn
                self._driver.step(*[self._event(*self._events.popleft()) for _ in range(turn)])
                await trio.lowlevel.checkpoint()
            self._digesting = False

    def _event(self, entry: int, pid: int, at_s: float, source_bytes: int) -> e.Event:
        """What an open or a release is to the scheduler; observers hear of opens."""
        if pid < 0:
            return e.Released(entry)
        process, parent = self._kin(pid)
        self._shield(self._explainer.opened, entry, process, parent)
        for listener in self._listeners:
            self._shield(listener.opened, entry, process, parent)
        return e.ReadSeen(entry, process, parent, at_s, source_bytes)

    def _kin(self, pid: int) -> tuple[int, int]:
        """The process of a reader (a thread, maybe), and that one's parent. Looked up once a reader."""
        kin = self._known_kin.get(pid)
        if kin is None:
            kin = self._known_kin[pid] = self._kin_of(pid)
            if len(self._known_kin) > MOST_READERS:
                self._known_kin.popitem(last=False)
        return kin

    def _shield(self, tell: Callable[[Unpack[Ts]], T], *args: *Ts) -> T | None:
        """Tell somebody who observes; a bug there costs what it observes for, never the mount."""
        if tell in self._broken:
            return None
        try:
            return tell(*args)
        except Exception:
            log.exception("%r is not told any more", tell)
            self._broken.append(tell)
            return None

    # -- jobs

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """Start a job, in place of one of the same name."""
        job = JobRun(spec, streams, self.manifest.size)
        await self.install(job)
        return job

    async def install(self, job: JobRun, opens: Sequence[Open] = (), said: str = "", way_out: str = "") -> None:
        """Follow a job, in place of one of the same name: see `mlfs.explain.port.Jobs`."""
        if not job.epochs_at_hand:
            # Not on the loop: a million epochs take seconds, and explicit orders have their files counted.
            await self.runner.run("orders", job.timeline.base, job.spec.epochs)
            for epoch in job.wanted_epochs():
                job.add_epoch(await self.runner.run("orders", job.load_epoch, epoch))
        replaced = self.jobs.get(job.name)
        if said and replaced is not None:
            job.take_counts(replaced, opens, said, way_out)
            log.warning("job %s: %s", job.name, said)
            log.info("job %s: the last %d opens were counted anew", job.name, len(opens))
        else:
            samples, epochs = len(job.streams.sample_ids), job.spec.epochs
            log.info("registered job %s: %d samples, %d epochs", job.name, samples, epochs)
        self._install(job)

    def _install(self, job: JobRun) -> None:
        self._driver.step(e.JobInstalled(job))
        for listener in self._listeners:
            self._shield(listener.installed, job)
        self._shield(self._explainer.jobs_changed)

    def end(self, name: str) -> bool:
        """End a job; False when there is none of that name."""
        if name not in self.jobs:
            return False
        self._driver.step(e.JobEnded(name))
        log.info("unregistered job %s", name)
        self._shield(self._explainer.jobs_changed)
        return True

    def stop_prefetching(self, stop: bool) -> None:
        """Before an unmount: fetch nothing ahead any more; or go on after all."""
        self._driver.stop(stop)

    # -- what the scheduler says of jobs

    def _about_jobs(self) -> dict[type, Callable[[Any], None]]:
        return {
            c.LoadEpoch: self._load_epoch,
            c.CountReads: lambda command: self.planner.count(command.job),
            c.ForgetReads: lambda command: self.planner.forget(command.name),
            c.EpochBegan: self._epoch_began,
            c.EpochLeft: self._epoch_left,
            c.StartedAgain: self._started_again,
            c.JobFailed: self._job_failed,
            c.Digested: self._digested,
        }

    def _load_epoch(self, command: c.LoadEpoch) -> None:
        """Compute an epoch's order: in the pool `orders`, which has one thread, so one after the other."""
        self._orders_under_way += 1
        job = cast(JobRun, command.job)
        self.runner.start("orders", job.load_epoch, command.epoch, then=partial(self._epoch_loaded, job, command.epoch))

    def _epoch_loaded(self, job: JobRun, epoch: int, index: EpochIndex | None, error: BaseException | None) -> None:
        self._orders_under_way -= 1
        if index is not None:
            self._driver.step(e.EpochKnown(job, index))
        elif isinstance(error, MlfsError | OSError):  # an order file that is gone
            log.warning("job %s: the order of epoch %d is not known: %s", job.name, epoch, error)
            self._driver.step(e.EpochUnknown(job, epoch))
        elif isinstance(error, Exception):  # an order of another package, perhaps
            self._driver.step(e.JobBroken(job, error))

    def _epoch_began(self, _: c.EpochBegan) -> None:
        self.counters.begin_epoch()
        self._measure_places()
        self.planner.plan_again()

    def _measure_places(self) -> None:
        """The classes that are the fastest by now are filled first."""
        gives = [self.speeds.gives(place.name) for place in self.places]
        self._driver.step(e.PlacesMeasured(gives))

    def _epoch_left(self, command: c.EpochLeft) -> None:
        log.info("job %s: %s", command.job.name, epoch_line(cast(JobRun, command.job), command.epoch))

    def _started_again(self, command: c.StartedAgain) -> None:
        job = cast(JobRun, command.job)
        if job.shadow is None:
            return  # dealt with: several reads of a batch may say it
        if self._shield(self._explainer.explains_restart, job):
            job.forget_restart()
            return
        log.info("job %s: the script was started again from its first epoch", job.name)
        job.restart()
        self.counters.begin_epoch()
        self._install(job)

    def _job_failed(self, command: c.JobFailed) -> None:
        log.error("job %s: %s", command.job.name, GAVE_UP, exc_info=command.error)

    def _digested(self, _: c.Digested) -> None:
        for job in list(self.jobs.values()):
            if not job.given_up:
                self._shield(self._explainer.digested, job)

    # -- copies of an earlier mount

    async def _find_again(self) -> None:
        """Learn which samples the places hold from an earlier mount."""
        ids, found = self.samples.ids, 0
        for start in range(0, len(ids), FIND_CHUNK):
            chunk = ids[start : start + FIND_CHUNK].tolist()
            for place, samples in (await self.runner.run("keep", self._find_chunk, chunk)).items():
                found += len(samples)
                self._driver.step(e.CopiesFound(place, samples))
        self._fetcher.finding = False
        log.info("found %d samples in the tiers again", found)

    def _find_chunk(self, chunk: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for sample in chunk:
            if place := self._fetcher.holder(sample):
                found.setdefault(place, []).append(sample)
        return found

    # -- what others may know

    def under_way(self) -> dict[str, int]:
        """What is not settled yet. All zero: nobody waits, and what was fetched is kept."""
        now = self.scheduler.statistics()
        return {
            "opens_and_releases": self._digesting + len(self._events),
            "fetches": now.fetches + now.looking + self._driver.lanes_at_work,
            "drops": now.dropping,
            "copies_to_keep": len(self._fetcher.to_keep),
            "copies_to_keep_bytes": self._write_behind.waiting_bytes,
            "orders": self._orders_under_way,
            "jobs_to_plan": self.planner.under_way,
            "copies_to_find": int(self._fetcher.finding),
        }

    # -- what goes wrong

    def _announce(self, entry: int, change: FileChange) -> None:
        """From a worker: the source file is not what the manifest says."""
        self.runner.on_loop(self._adopt_change, entry, change)

    def _adopt_change(self, entry: int, change: FileChange) -> None:
        manifest = self.manifest
        if (manifest.size_view[entry], manifest.mtime_ns_view[entry]) == (change.size_bytes, change.mtime_ns):
            return
        samples = list(self.samples.of_file(entry))
        before = [self.samples.sizes[sample] for sample in samples]
        manifest.update(entry, change.size_bytes, change.mtime_ns, change.ctime_ns)
        for sample, old_bytes in zip(samples, before, strict=True):
            self._driver.step(e.Resized(sample, old_bytes, self.samples.sizes[sample]), e.CopyLost(sample))
        self._changed_files += 1
        log.info("changed at the source: %r", manifest.path(entry))

    def _prefetch_failed(self, sample: int, error: OSError) -> None:
        if not self.counters.errors.get("prefetch_failed"):
            path = self.manifest.path(self.samples.file_of(sample))
            log.warning("prefetch of %r failed: %s (left to the reader; further ones are counted)", path, error)


def _place_infos(places: Places, limits: Limits) -> Iterable[config.PlaceInfo]:
    """The places as decisions see them."""
    yield config.PlaceInfo(PlaceKind.SOURCE, places.source.name, limits.pfs_threads)
    for place in places.storing:
        yield config.PlaceInfo(
            place.kind, place.name, limits.tier_threads, place.capacity_bytes, place.used_bytes, place.largest_bytes,
            place.footprint_bytes,
        )  # fmt: skip
