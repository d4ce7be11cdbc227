"""The engine of one mount: ties table, staging, demand path, prefetcher and jobs together.

In: opens, reads and releases from the request handlers; jobs from the control file. Out: bytes, pages in the kernel's
page cache ahead of the reader, counters. Runs on the loop of the daemon; knows no FUSE.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.demand import Demand
from mlfs.engine.fetch import ClassTier, Fetcher
from mlfs.engine.pagecache import PageCache
from mlfs.engine.planner import Planner
from mlfs.engine.prefetch import PFS_QUEUE, Prefetcher
from mlfs.engine.routes import Routes, known_source
from mlfs.engine.runner import Runner
from mlfs.engine.staging import Staging
from mlfs.engine.table import SampleTable, State
from mlfs.engine.write_behind import WriteBehind
from mlfs.errors import MlfsError
from mlfs.explain.port import Observer
from mlfs.follow.agreement import epoch_line
from mlfs.follow.job import GAVE_UP, JobRun, Outcome
from mlfs.follow.matching import Open
from mlfs.job import JobSpec
from mlfs.measure.rates import Rates
from mlfs.measure.refine import best
from mlfs.measure.speeds import Speeds
from mlfs.orders.streams import JobStreams
from mlfs.places.source import Source
from mlfs.stats import Counters
from mlfs.tree.manifest import Manifest

log = logging.getLogger("mlfs.engine")

EVENTS_DELAY_S = 0.01
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
        hedge_s, timeout_s: see Demand.
        calibrated: (lanes, bytes a second of all together) by place, `pfs` or a tier's name, as measured before.
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


class Engine:
    """See the module. `run` must be running for anything to move.

    Attributes:
        watchers: told of each open once it is digested: entry, process, parent.
        on_registered: told of each new job. directories_to_list: for `under_way`; the daemon sets it.
    """

    watchers: list[Callable[[int, int, int], None]]
    on_registered: list[Callable[[JobRun], None]]
    directories_to_list: Callable[[], int]

    def __init__(
        self,
        manifest: Manifest,
        source: Source,
        tiers: Sequence[ClassTier],
        pages: PageCache,
        runner: Runner,
        limits: Limits,
        clock: Callable[[], float],
        explain: Observer,
        kin_of: Callable[[int], tuple[int, int]] = kin_of,
    ) -> None:
        self.kin_of = kin_of
        self.manifest = manifest
        self.source = source
        self.tiers = list(tiers)
        self.limits = limits
        self.clock = clock
        self.runner = runner
        self.counters = Counters()
        self.jobs: dict[str, JobRun] = {}
        self.changed_files = 0
        self.explain = explain
        self.watchers, self.on_registered = [explain.opened], []
        self.directories_to_list = lambda: 0
        self.table = SampleTable(len(manifest), manifest.size_view, limits.staging_bytes)
        self.staging = Staging(self.table, pages, self.counters, runner)
        self.rates = Rates()
        self.routes = self._make_routes()
        self.fetcher = Fetcher(manifest, source, self.tiers, self.table, pages, self._announce, self.routes)
        self.write_behind = WriteBehind(self.fetcher, runner)
        self.speeds = Speeds({**limits.calibrated, **limits.refined}, self.rates, self.tiers)
        self.planner = self._make_planner()
        self.prefetcher = self._make_prefetcher()
        self.demand = self._make_demand()
        self._known_kin: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._events: deque[tuple[int, int, float]] = deque()
        self._digesting = False
        self._events_soon, self._epochs_wanted = Coalesced(EVENTS_DELAY_S), trio.Event()

    def _make_routes(self) -> Routes:
        names, kinds = [tier.name for _, tier, _ in self.tiers], [kind for kind, _, _ in self.tiers]
        points = self.limits.refined.get(PFS_QUEUE) or self.limits.calibrated.get(PFS_QUEUE, ())
        known = known_source(best(points), self.limits.calibrated_sample_bytes)
        return Routes(names, kinds, self.rates, PFS_QUEUE, known)

    def _make_planner(self) -> Planner:
        planner = Planner(self.fetcher.placing, self.tiers, self.table, self.runner, self.speeds.gives)
        planner.epoch_begun()
        return planner

    def _make_prefetcher(self) -> Prefetcher:
        limits = self.limits
        lanes = {PFS_QUEUE: limits.pfs_threads} | {f"tier{i}": limits.tier_threads for i in range(len(self.tiers))}
        prefetcher = Prefetcher(
            self.table, self.staging, self.fetcher, self.runner, self.jobs, lanes, self._prefetch_failed, self.clock,
            self.rates,
        )  # fmt: skip
        prefetcher.queues[PFS_QUEUE].governor.begin_with(limits.pfs_lanes_at_first)
        return prefetcher

    def _make_demand(self) -> Demand:
        limits = self.limits
        return Demand(
            self.table, self.staging, self.fetcher, self.prefetcher, self.counters, self.runner, self.clock,
            limits.hedge_s, limits.timeout_s, self.write_behind.keep,
        )  # fmt: skip

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_events)
            nursery.start_soon(self._run_epochs)
            nursery.start_soon(self.explain.run, self)
            nursery.start_soon(self.planner.run)
            nursery.start_soon(self.write_behind.run)
            nursery.start_soon(self.staging.run_dropper)
            nursery.start_soon(self.demand.run)
            nursery.start_soon(self.prefetcher.run)
            if any(tier.used_bytes for _, tier, _ in self.tiers):
                self.fetcher.finding = True  # before the first read is served
                nursery.start_soon(self._find_again)

    # -- the read path

    def opened(self, entry: int, pid: int) -> None:
        """A reader holds the entry open from now on."""
        self._events_soon.call()
        self._events.append((entry, pid, self.clock()))

    def opened_in_worker(self, entry: int, pid: int) -> None:
        """The same from a worker, before the reader can know: its next open counts later. `digest` has to follow."""
        self._events.append((entry, pid, self.clock()))

    def digest(self) -> None:
        """On the loop: look at what was opened and closed, a moment later."""
        self._events_soon.call()

    def released(self, entry: int) -> None:
        """A reader closed the entry."""
        self._events_soon.call()
        self._events.append((entry, -1, 0.0))

    async def _run_events(self) -> None:
        """Digest opens and releases in batches: off the readers' path."""
        while True:
            await self._events_soon.wait()
            self._digesting, left = True, len(self._events)
            while left:
                turn = min(left, EVENTS_A_TURN)
                left -= turn
                for _ in range(turn):
                    entry, pid, at_s = self._events.popleft()
                    if pid >= 0:
                        self._digest_open(entry, pid, at_s)
                    else:
                        self._digest_release(entry)
                await trio.lowlevel.checkpoint()
            self._judge_jobs()
            self._digesting = False
            if self.jobs:
                self.prefetcher.kick()

    def _digest_open(self, entry: int, pid: int, at_s: float) -> None:
        counts = self.table.open_count
        counts[entry] = counts.get(entry, 0) + 1
        demanded_bytes = self.demand.from_pfs.pop(entry, 0)
        for job in self.jobs.values():
            if not job.member[entry]:
                continue
            try:
                self._came(job, job.observe(entry, *self._kin(pid), at_s), demanded_bytes)
            except Exception:
                self._give_up(job)
        for watcher in self.watchers:
            try:
                watcher(entry, *self._kin(pid))
            except Exception:  # a fault there costs what is watched for, never the mount
                log.exception("opens are not watched any more by %r", watcher)
                self.watchers = [other for other in self.watchers if other is not watcher]

    def _give_up(self, job: JobRun) -> None:
        """A fault in the thinking about a job: it costs this job its prediction, never the mount."""
        log.exception("job %s: %s", job.spec.name, GAVE_UP)
        self._uses_over(job.give_up())
        self._set_linger()

    def _came(self, job: JobRun, outcome: Outcome, demanded_bytes: int = 0) -> None:
        """Act on what an open of a job's sample came to."""
        if demanded_bytes:
            position = outcome.match.position if outcome.match else max(p.frontier for p in job.matcher.ranks)
            job.count_pfs(job.epoch_of(position), demanded_bytes)
        if outcome.restarted and self.explain.explains_restart(job):
            job.forget_restart()
        elif outcome.restarted:
            self._restart(job)
        elif outcome.over:
            self._uses_over(outcome.over)

    def _kin(self, pid: int) -> tuple[int, int]:
        """The process of a reader (a thread, maybe), and that one's parent. Looked up once a reader."""
        kin = self._known_kin.get(pid)
        if kin is None:
            kin = self._known_kin[pid] = self.kin_of(pid)
            if len(self._known_kin) > MOST_READERS:
                self._known_kin.popitem(last=False)
        return kin

    def _uses_over(self, entries: Iterable[int]) -> None:
        """Uses that were counted ahead came, or were given up; -1 stands for one that had not been counted."""
        for entry in entries:
            if entry >= 0 and not self.table.fulfil(entry):
                self.staging.retire(entry)

    def _digest_release(self, entry: int) -> None:
        counts = self.table.open_count
        left = counts.get(entry, 0) - 1
        if left > 0:
            counts[entry] = left
            return
        counts.pop(entry, None)
        self.staging.retire(entry)

    # -- jobs

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """Start a job, in place of one of the same name."""
        job = JobRun(spec, streams, self.manifest.size)
        await self.install(job)
        return job

    async def install(self, job: JobRun, opens: Sequence[Open] = (), said: str = "", way_out: str = "") -> None:
        """Follow a job, in place of one of the same name: see `mlfs.explain.port.Jobs`."""
        spec = job.spec
        if not job.matcher.epochs:
            # Not on the loop: a million epochs take seconds, and explicit orders have their files counted.
            await self.runner.run("orders", job.timeline.base, spec.epochs)
            for epoch in job.missing_epochs()[:1]:
                job.add_epoch(await self.runner.run("orders", job.load_epoch, epoch))
        replaced = self.jobs.get(spec.name)
        if said and replaced is not None:
            job.take_counts(replaced, opens, said, way_out)
            log.warning("job %s: %s", spec.name, said)
            log.info("job %s: the last %d opens were counted anew", spec.name, len(opens))
        self._drop(spec.name)
        self.jobs[spec.name], job.beside = job, self.jobs
        self._set_linger()
        self._epochs_wanted.set()
        if self.planner.wants(job):
            self.planner.plan(job)
        self.prefetcher.kick()
        if not said:
            log.info("registered job %s: %d samples, %d epochs", spec.name, len(job.streams.sample_ids), spec.epochs)
        for told in self.on_registered:
            told(job)
        self.explain.jobs_changed()

    def end(self, name: str) -> bool:
        """End a job; False when there is none of that name."""
        if not self._drop(name):
            return False
        self._set_linger()
        self.prefetcher.kick()
        log.info("unregistered job %s", name)
        self.explain.jobs_changed()
        return True

    def _drop(self, name: str) -> bool:
        job = self.jobs.pop(name, None)
        if job is not None:
            self._uses_over(job.release_ahead())
            self.planner.forget(name)
        return job is not None

    def stop_prefetching(self, stop: bool) -> None:
        """Before an unmount: fetch nothing ahead any more; or go on after all."""
        self.prefetcher.stopped = stop
        self.prefetcher.kick()

    def _set_linger(self) -> None:
        predicted = any(job.predicting and not job.finished for job in self.jobs.values())
        self.staging.linger = not predicted
        if predicted:
            self.staging.drop_lingering()

    def _restart(self, job: JobRun) -> None:
        log.info("job %s: the script was started again from its first epoch", job.spec.name)
        self._uses_over(job.release_ahead())
        job.restart()
        self.counters.begin_epoch()
        self._epochs_wanted.set()

    def _judge_jobs(self) -> None:
        try:
            self.routes.judge(self.clock(), self.counters.all.stalls.total_s)
        except Exception:  # as with a job: it costs the choice of routes, never the mount
            log.exception("routes stay as they are")
        for job in self.jobs.values():
            try:
                if not job.given_up:
                    self._judge(job)
            except Exception:
                self._give_up(job)
        self._set_linger()

    def _judge(self, job: JobRun) -> None:
        job.rate(self.clock())
        stall_s = self.counters.all.stalls.total_s
        self.rates.job_read(job.spec.name, job.matcher.observed, self.clock(), stall_s)
        if job.judge():
            log.warning("job %s: %s", job.spec.name, job.state)
            if not job.predicting:
                self._uses_over(job.release_ahead())
        self._uses_over(job.find_elsewhere())
        if said := job.began_elsewhere():
            log.warning("job %s: %s", job.spec.name, said)
        for _ in job.epochs_begun():
            self.counters.begin_epoch()
            self.planner.epoch_begun()
        for epoch in job.epochs_ended():
            log.info("job %s: %s", job.spec.name, epoch_line(job, epoch))
        if job.missing_epochs():
            self._epochs_wanted.set()
        self.explain.digested(job)

    async def _run_epochs(self) -> None:
        """Compute the orders of the epochs to come before they are needed."""
        while True:
            await self._epochs_wanted.wait()
            self._epochs_wanted = trio.Event()
            for job in list(self.jobs.values()):
                for epoch in job.missing_epochs():
                    await self._load_epoch(job, epoch)

    async def _load_epoch(self, job: JobRun, epoch: int) -> None:
        """Compute an epoch's order and match the opens that waited for it."""
        job.loading.add(epoch)
        try:
            self._uses_over(job.add_epoch(await self.runner.run("orders", job.load_epoch, epoch)))
        except (MlfsError, OSError) as error:  # an order file that is gone
            job.unknown.add(epoch)
            log.warning("job %s: the order of epoch %d is not known: %s", job.spec.name, epoch, error)
        except Exception:  # an order of another package, perhaps
            self._give_up(job)
        finally:
            job.loading.discard(epoch)
        try:
            for outcome in job.release_held():
                self._came(job, outcome)
        except Exception:
            self._give_up(job)
        self.prefetcher.kick()

    # -- copies in tiers

    async def _find_again(self) -> None:
        """Learn which samples the tiers hold from an earlier mount."""
        files = self.manifest.files
        for start in range(0, len(files), FIND_CHUNK):
            await self.runner.run("keep", self._find_chunk, files[start : start + FIND_CHUNK].tolist())
        self.fetcher.finding = False
        log.info("found %d samples in the tiers again", len(self.table.held_by) - self.table.held_by.count(0))

    def _find_chunk(self, chunk: Sequence[int]) -> None:
        for entry, path in zip(chunk, self.manifest.paths(chunk), strict=True):
            self.fetcher.find(entry, path)

    def under_way(self) -> dict[str, int]:
        """What is not settled yet. All zero: nobody waits, and what was fetched is kept."""
        return {
            "opens_and_releases": self._digesting + len(self._events),
            "fetches": self.prefetcher.under_way(),
            "drops": self.table.state.count(State.DROPPING),
            "copies_to_keep": len(self.fetcher.to_keep),
            "copies_to_keep_bytes": self.write_behind.waiting_bytes,
            "orders": sum(len(job.loading) for job in self.jobs.values()) + self._epochs_wanted.is_set(),
            "jobs_to_plan": len(self.planner.waiting) + self.planner.plan_again,
            "copies_to_find": int(self.fetcher.finding),
            "directories_to_list": self.directories_to_list(),
        }

    # -- what goes wrong

    def _announce(self, entry: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> None:
        """From a worker: the source file is not what the manifest says."""
        self.runner.on_loop(self._adopt_change, entry, size_bytes, mtime_ns, ctime_ns)

    def _adopt_change(self, entry: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> None:
        manifest = self.manifest
        if (manifest.size_view[entry], manifest.mtime_ns_view[entry]) == (size_bytes, mtime_ns):
            return
        for job in self.jobs.values():
            job.resized(entry, size_bytes - manifest.size_view[entry])
        with self.table.resized(entry):
            manifest.update(entry, size_bytes, mtime_ns, ctime_ns)
        self.changed_files += 1
        log.info("changed at the source: %r", manifest.path(entry))

    def _prefetch_failed(self, entry: int, error: OSError) -> None:
        if self.counters.error("prefetch_failed") == 1:
            log.warning("prefetch of %r failed: %s (left to the demand path; further ones are counted)",
                        self.manifest.path(entry), error)  # fmt: skip
