"""The engine of one mount: the trio driver of a scheduler, and all that it needs.

In: opens, reads and releases from the request handlers; jobs from the control file and from mlfs.explain. Out: bytes,
pages in the kernel's page cache ahead of the reader, counters. Runs on the loop of the daemon; knows no FUSE.

The scheduler decides; mlfs.engine.driver has its commands carried out, by the parts that are made and wired here. Reads
are digested in batches, a moment after they were seen and off the readers' path; a worker thread computes orders.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.background import Background
from mlfs.engine.context import Cluster, Context, MountLimits
from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.demand import Demand
from mlfs.engine.digest import Digest, Uncounted, kin_of, name_of
from mlfs.engine.driver import Driver
from mlfs.engine.fetch import Fetcher
from mlfs.engine.giving import Giving
from mlfs.engine.holes import Holes
from mlfs.engine.lanes import Lanes
from mlfs.engine.looked_up import Groups
from mlfs.engine.looks import Looks
from mlfs.engine.mount_jobs import MountJobs, Observers
from mlfs.engine.movers import MoverKind, Movers
from mlfs.engine.opens import Opens
from mlfs.engine.page_watch import PageWatch
from mlfs.engine.pagecache import PageCache
from mlfs.engine.peering import Peering
from mlfs.engine.planner import Planner
from mlfs.engine.ranges import Ranges
from mlfs.engine.read_trail import ReadTrail
from mlfs.engine.roll_call import Figures, RollCall
from mlfs.engine.row_reads import RowReads
from mlfs.engine.runner import Runner, start
from mlfs.engine.shared_jobs import SharedJobs
from mlfs.engine.shared_plan import SharedPlan
from mlfs.engine.shortages import Shortages
from mlfs.engine.statistics import EngineStatistics, TreeStatistics
from mlfs.engine.warm_up import SampleIds
from mlfs.engine.whole_reads import WholeReads
from mlfs.engine.write_behind import WriteBehind
from mlfs.follow.job import JobRun
from mlfs.measure.rates import Rates
from mlfs.measure.refine import best
from mlfs.measure.speeds import MeasuredPlace, Speeds
from mlfs.places.on_disk import OnDisk
from mlfs.places.place import FileChange, Places, TierPlace
from mlfs.places.posix import PosixSource
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import config
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.routing import known_source
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.stats import Counters
from mlfs.tree.manifest import clamp_ns
from mlfs.tree.samples import Samples

log = logging.getLogger("mlfs.engine")

FIND_CHUNK = 4096


class MountedData(NamedTuple):
    """The data set that is served.

    Attributes:
        samples: its samples, which lie in the files of `source`. places: where their bytes can be got and kept.
        pages: the page cache of the mount. seen: a byte an entry, 1 for those that were looked at before the mount
            (mlfs.engine.looks); None: nobody else reads, and nothing need be looked at.
    """

    samples: Samples
    source: PosixSource
    places: Places
    pages: PageCache
    seen: npt.NDArray[np.uint8] | None = None


class MountMachine(NamedTuple):
    """The machine's threads, its time, and who its processes are.

    Attributes:
        runner: has calls that block run in threads. clock: seconds, monotone. cpu_clock: seconds that the calling
            thread has computed. shortages: hear of what the process lacks.
        kin_of: the process of a thread, and its parent. name_of: the name of a process's program.
        movers: processes that fetch beside this one; None: there are none.
    """

    runner: Runner
    clock: Callable[[], float]
    shortages: Shortages
    cpu_clock: Callable[[], float] = time.thread_time
    kin_of: Callable[[int], tuple[int, int]] = kin_of
    name_of: Callable[[int], str] = name_of
    movers: MoverKind | None = None


def _name_forgotten(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.warning("a name that leads to another content could not be forgotten: %s", error)


class Engine:
    """All parts of one mount below the requests, wired together. `run` must be running for anything to move.

    Attributes:
        opens, ranges, whole_reads, row_reads, holes, digest: what the request handlers call.
        shared: where jobs are registered, and end.
        background: runs what goes on beside the readers' way. movers: None where there are none.
        counters: the next server of this mount counts on from them.
        scheduler: for tests; others ask for `statistics`.
    """

    def __init__(
        self, data: MountedData, machine: MountMachine, limits: MountLimits, observers: Observers, cluster: Cluster
    ) -> None:
        samples, places = data.samples, data.places
        runner, clock = machine.runner, machine.clock
        self.samples = samples
        self.manifest = samples.manifest
        self.source = data.source
        self.places = places
        self.limits = limits
        self.clock = clock
        self.runner = runner
        self.counters = Counters()
        self._pages = data.pages
        self._shortages = machine.shortages
        self._changed_files = 0
        self._note_change = observers.changed
        self.background = Background(machine.shortages)

        # The parts that decide, and those that fetch.
        rates, infos = Rates(), list(_place_infos(places, limits))
        points = limits.refined.get(infos[0].name) or limits.calibrated.get(infos[0].name, ())
        known = known_source(best(points), limits.calibrated_sample_bytes)
        self.scheduler = Scheduler(
            samples.sizes, infos, limits.of_scheduler(), rates, known, goes_on=True, blocks=samples.file_blocks
        )  # fmt: skip
        measured = {n: MeasuredPlace(info.kind, info.name, info.capacity_bytes) for n, info in enumerate(infos)}
        self._speeds = Speeds(limits.calibrated, limits.refined, rates, measured, peers=len(infos))
        self.looks = Looks(samples.manifest, data.source, self._adopt, clock, data.seen)
        self.fetcher = Fetcher(
            samples,
            data.source,
            places,
            data.pages,
            self._announce,
            self._regroup,
            self._forget_name,
            self.looks,
            self._copies_went,
            self.known,
            self.scheduler.waiters if limits.opens_untold else None,
        )
        self.driver = Driver(self.scheduler, self.fetcher, self.counters, runner, clock, self._carry_out)
        context = Context(self.driver.step, clock, runner, self.counters, machine.shortages)

        # Fetches, and what becomes of what they bring.
        self._write_behind = WriteBehind(context, self.fetcher, limits.buffer_bytes // 2)
        self._demand = Demand(context, self.scheduler, self.fetcher, self._write_behind, limits.timeout_s)
        most_kept_bytes = limits.buffer_bytes // 4 // max(1, limits.pfs_threads)
        self.movers = Movers(context, data.source, machine.movers) if machine.movers is not None else None
        self._lanes = Lanes(
            context, self.scheduler, self.fetcher, machine.cpu_clock, most_kept_bytes, self.movers
        )  # fmt: skip

        # Jobs.
        kept_sizes = samples.sizes[: samples.file_blocks.rows.first]
        self._planner = Planner(
            kept_sizes, lambda: self.scheduler.capacities_bytes, runner, self._planned, samples.file_blocks
        )
        self._jobs = MountJobs(
            context, self.manifest, self.scheduler, self._planner, observers, self._measure_places, machine.name_of
        )

        # Reads.
        counted = CountedOpens(samples.manifest.size_view, self.counters)
        uncounted = observers.uncounted or Uncounted(ReadTrail())
        self.digest = Digest(context.step, self._jobs.opened, clock, machine.kin_of, uncounted)
        self.ranges = Ranges(
            context, limits, self.scheduler, self.fetcher, self._write_behind, self.digest, counted
        )  # fmt: skip
        self.whole_reads = WholeReads(context, self.scheduler, self.fetcher, self.ranges, self.digest, counted)
        self.row_reads = RowReads(context, self.scheduler, self.fetcher, self.digest)
        self.holes = Holes(self.fetcher, runner, limits.hedge_s)
        self.opens = Opens(context, self.scheduler, places, self.ranges, counted)
        self._page_watch = PageWatch(context, self.scheduler, data.pages, samples)

        # Other nodes.
        self._shared_plan = SharedPlan(
            self._planner, runner, clock, context.step, self.scheduler.keeping, samples.file_blocks, self._jobs
        )
        self.shared = SharedJobs(
            self._jobs, self._shared_plan, runner, cluster.build, lambda: self.scheduler.capacities_bytes,
            limits.staging_bytes // 2,
        )  # fmt: skip
        giving = Giving(context, self.fetcher, cluster.showcase)
        self.peering = Peering(
            context, cluster, self.scheduler, self.fetcher, giving, self.shared, self._shared_plan,
            RollCall(self._figures),
        )  # fmt: skip

        # By command of the scheduler: the part that carries it out.
        self._hands: dict[type, Callable[[Any], None]] = {
            c.Fetch: self._fetch,
            c.Recall: self._lanes.recall,
            c.KeepCopy: self._write_behind.keep_aside,
            c.Drop: self.driver.drop,
            c.LayTripwires: lambda lay: self.row_reads.lay_tripwires(lay.rows),
            c.Evict: self.driver.evict,
            c.Answer: self._demand.answer,
            c.OpenDirect: self._demand.open_direct,
            c.Refuse: self._demand.refuse,
            c.Abandon: self._demand.abandon,
            c.Fault: self._demand.fault,
            c.WakeAt: self.driver.wake_at,
            c.Warn: self.driver.warn,
            c.Count: self.driver.count,
            **self._jobs.carry_out(),
        }
        self._measure_places()

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        """The jobs of the mount by name."""
        return self._jobs.jobs

    @property
    def most_untold(self) -> int:
        """How many reads may be told of together as nothing hinges on one of them; 0: each as soon as may be."""
        return self._jobs.most_untold

    async def run(self) -> None:
        """Serve until cancelled. No task of these ends the mount by failing."""
        tasks = {
            "counting reads": self.digest.run,
            "the scheduler's clock": self.driver.run,
            "explaining reads": self._jobs.explain,
            "planning": self._planner.run,
            "keeping copies": self._write_behind.run,
            "the door for peers": self.peering.run,
            "watching pages": self._page_watch.run,
        }
        if self.movers is not None:
            tasks["starting movers"] = self.movers.run
        async with trio.open_nursery() as nursery:
            for name, task in tasks.items():
                nursery.start_soon(self.background.keep_going, name, task)
            if any(place.used_bytes for place in self.places.storing):
                self.fetcher.begin_finding()  # before the first read is served
                nursery.start_soon(self.background.keep_going, "finding copies again", self._find_again)

    def _carry_out(self, command: c.Command) -> None:
        """Have a command of the scheduler carried out by whoever does that kind."""
        try:
            self._hands[type(command)](command)
        except Exception:  # a bug: it costs what the command is about, not the others
            log.exception("a command of the scheduler could not be carried out: %r", command)
            self.counters.error("driver_fault")

    def _planned(self, plan: Plan | None) -> None:
        """The planner has made a plan of what this node keeps."""
        self._shared_plan.plan_made(plan)

    def _fetch(self, fetch: c.Fetch) -> None:
        (self._demand if fetch.waited_for else self._lanes).fetch(fetch)

    # -- jobs

    def warm_up(self, samples: SampleIds | None) -> int:
        """Have the tiers keep these samples, in this order; with None, no more of them. Returns the warm-up's number.

        It takes the place of the warm-up before.
        """
        self.driver.step(e.WarmUp(None if samples is None else self._by_block(samples)))
        return self.scheduler.statistics().warming.run

    def _by_block(self, samples: SampleIds) -> SampleIds:
        """The same samples, with the blocks of a large file or of a row in its place, each once. A row that
        its file has become too short for has none."""
        blocks = self.scheduler.table.blocks
        are_rows = samples >= blocks.rows.first
        if not len(blocks) or not (are_rows | np.isin(samples, blocks.files_now())).any():
            return samples
        of_each = (blocks.of(sample) or (sample,) * (sample < blocks.rows.first) for sample in samples.tolist())
        found = np.concatenate([np.asarray(of_one, np.int64) for of_one in of_each])
        return found[np.sort(np.unique(found, return_index=True)[1])] if are_rows.any() else found

    def offer(self, fields: dict[str, object]) -> None:
        """Nobody has registered this job, and the reads before had its order: perhaps those to come have."""
        self._jobs.offer(fields)

    def stop_prefetching(self, stop: bool) -> None:
        """Before an unmount: fetch nothing ahead any more; or go on after all."""
        self._page_watch.pause(stop)
        self._lanes.stop(stop)
        self.driver.step(e.Stopped(stop))

    def _measure_places(self) -> None:
        """The classes that are the fastest by now are filled first."""
        own = (self.places.source, *self.places.storing)
        gives = [self._speeds.gives(place.name) for place in own]
        self.driver.step(e.PlacesMeasured(gives))

    # -- copies of an earlier mount

    async def _find_again(self) -> None:
        """Learn which samples the places hold from an earlier mount."""
        ids, found = self.samples.ids, Counter[int]()
        for first in range(0, len(ids), FIND_CHUNK):
            chunk = ids[first : first + FIND_CHUNK].tolist()
            for place, samples in (await self.runner.run("keep", self._find_chunk, chunk)).items():
                found[place] += len(samples)
                self.driver.step(e.CopiesFound(place, samples))
        self.fetcher.end_finding()
        log.info("found %d samples in the tiers again", found.total())
        for number, of in enumerate(self.places.storing, 1):
            if isinstance(of, TierPlace) and isinstance(of.tier, OnDisk) and of.tier.copies > found[number]:
                await self.runner.run("find", self._drop_outdated, of.tier)

    def _drop_outdated(self, tier: OnDisk) -> None:
        """In a worker: remove copies of files that went while nothing was mounted, and of blocks that files had then.

        Files of a directory that could not be read may be there still.
        """
        if len(self.manifest.unreadable) or not self.manifest.n_files or tier.read_only:
            return
        if count := tier.drop_others(lambda: map(self.samples.key, self.samples.ids.tolist())):
            log.info("%s: removed %d copies of what is not in the source any more", tier.name, count)
            self._copies_went()

    def _find_chunk(self, chunk: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for sample in chunk:
            if place := self.fetcher.holder(sample):
                found.setdefault(place, []).append(sample)
        return found

    # -- what others may know

    def statistics(self) -> EngineStatistics:
        scheduler, planner = self.scheduler.statistics(), self._planner.statistics()
        jobs = tuple(job.statistics() for job in self.jobs.values())
        stream_bytes = sum(job.stream_bytes for job in jobs)
        return EngineStatistics(
            tree=TreeStatistics(self.manifest.n_files, self.manifest.total_bytes, self._changed_files),
            jobs=jobs,
            ahead={job.name: self.scheduler.ahead(job.name) for job in jobs},
            loads=self.scheduler.loads(self.clock()),
            scheduler=scheduler,
            planner=planner,
            ranges=self.ranges.statistics(),
            page_watch=self._page_watch.statistics(),
            places=self.places.statistics(),
            speeds=self._speeds.statistics(
                stream_bytes, self.manifest.total_bytes, scheduler.routing.passed_over[1 : 1 + len(self.places.storing)]
            ),
            counters=self.counters.statistics(),
            peering=self.peering.statistics(),
            shortages=self._shortages.statistics(),
            faults=self.background.statistics(),
            nameless_opens=self.digest.nameless,
            under_way={
                "opens_and_releases": self.digest.under_way,
                "fetches": scheduler.fetches + scheduler.looking + self._lanes.at_work,
                "drops": scheduler.dropping,
                "copies_to_keep": len(self.fetcher.to_keep),
                "copies_to_keep_bytes": self._write_behind.waiting_bytes,
                "orders": self._jobs.orders_under_way,
                "jobs_to_plan": planner.under_way + self._shared_plan.under_way,
                "copies_to_find": int(self.fetcher.finding),
            },
        )

    def _figures(self) -> Figures:
        """The figures of this node that the others' status shows."""
        keeping, got = self.scheduler.statistics().keeping, self.counters.all.fetches["peer"]
        held_bytes = sum(place.used_bytes for place in self.places.storing)
        planning = self._planner.statistics().under_way or self._shared_plan.under_way or not self._shared_plan.planned
        words = "planning" if planning else str(keeping.about.get("shared", "alone"))
        return Figures(sum(keeping.held[1:]), held_bytes, got.count, got.bytes, words)

    # -- a refresh of the tree

    def replaced(self, entry: int, change: FileChange) -> None:
        """In a worker: a scan has found other attributes of a file or directory than the manifest's."""
        self.fetcher.replaced(entry, change)

    def back(self, entry: int, change: FileChange) -> None:
        """On the loop: a file that was gone is there again; nothing of what was known of it is served from now on."""
        self._adopt_change(entry, change)

    def changed_before(self, entry: int, change: FileChange) -> None:
        """On the loop, before any request: a change that another process has noticed, which served this mount. It may
        have died before it told the kernel, which else shows the attributes of before."""
        self._adopt_change(entry, change)
        if self.manifest.is_file(entry):
            self._forget_name(entry)

    def known(self, entry: int) -> Sequence[int]:
        """The file's own sample, and those of which this node has a copy, or something under way: it may have many more
        blocks."""
        blocks, table = self.samples.file_blocks, self.scheduler.table
        ever = blocks.ever_of(entry)
        if not ever:
            return self.samples.of_file(entry)
        # Copies of the columns, as these may become longer.
        columns = (np.frombuffer(column[ever.start : ever.stop], np.uint8) for column in (table.held_by, table.state))
        rows = [row for row in self._known(blocks.rows.of_file(entry)) if table.state[row] != State.ABSENT]
        return [entry, *(ever.start + np.flatnonzero(np.logical_or(*columns))).tolist(), *rows]

    def gone(self, samples: Sequence[int]) -> Callable[[], None]:
        """The files of these samples were taken out of the tree. Returns what is left to do in a worker."""
        for sample in self._known(samples):
            self.driver.step(e.CopyLost(sample))
        return partial(self.fetcher.forget, samples)

    def _known(self, samples: Iterable[int]) -> Iterable[int]:
        """The samples that the scheduler knows: not the rows of a job that is being registered."""
        known = len(self.scheduler.table.state)
        return (sample for sample in samples if sample < known)

    # -- what goes wrong

    def _announce(self, entry: int, change: FileChange) -> None:
        """From a worker: the source file is not what the manifest says."""
        self.runner.on_loop(self._adopt_change, entry, change)

    def _adopt(self, entry: int, change: FileChange) -> None:
        """From a worker: a look has found something else."""
        self.fetcher.adopt(entry, change)

    def _copies_went(self) -> None:
        """From a worker: places hold less than the scheduler knows. It would keep nothing more in one that was full."""
        self.runner.post(self._tell_used_bytes)

    def _tell_used_bytes(self) -> None:
        used = enumerate((place.used_bytes for place in self.places.storing), 1)
        self.driver.step(*(e.Holds(*one) for one in used))

    def _forget_name(self, entry: int) -> None:
        """From a worker: have the kernel look a name up anew, once it has the answers that it waits for."""
        self.runner.post(partial(start, self.runner, "drop", self._pages.replace, entry, then=_name_forgotten))

    def _regroup(self, files: Groups) -> None:
        """From a worker: these entries are names of one file each."""
        self.runner.on_loop(self.manifest.hard_links.regroup, files)

    def _adopt_change(self, entry: int, change: FileChange) -> None:
        manifest, rights = self.manifest, change.rights or self.manifest.rights(entry)
        self._note_change(entry, change)
        if manifest.is_gone(entry):  # whatever has its name now is no content of this entry
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.looks.adopted(entry)
        if not manifest.is_file(entry):
            manifest.set_rights(entry, rights)
            return
        known = manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
        if known == (change.size_bytes, clamp_ns(change.mtime_ns), clamp_ns(change.ctime_ns)):
            if rights != manifest.rights(entry):
                manifest.set_rights(entry, rights)
                for sample in self._known(self.samples.of_file(entry)):
                    self.driver.step(e.CopyLost(sample))
                log.info("others may read it than before, at the source: %r", manifest.path(entry))
            return
        table, samples = self.scheduler.table, self.known(entry)
        before = [self.samples.sizes[sample] for sample in samples]
        manifest.update(
            entry, change.size_bytes, change.mtime_ns, change.ctime_ns, blocks=change.blocks, **rights._asdict()
        )
        self.samples.resized(entry)
        for sample, old_bytes in zip(samples, before, strict=True):
            self.driver.step(e.Resized(sample, old_bytes, self.samples.sizes[sample]), e.CopyLost(sample))
            if table.state[sample] in (State.STAGED, State.RECENT):  # noticed past its own fetch
                self.driver.step(e.Outdated(sample))
        self._changed_files += 1
        log.info("changed at the source: %r", manifest.path(entry))


def _place_infos(places: Places, limits: MountLimits) -> Iterable[config.PlaceInfo]:
    """The places as decisions see them."""
    yield config.PlaceInfo(PlaceKind.SOURCE, places.source.name, limits.pfs_threads)
    for place in places.storing:
        yield config.PlaceInfo(
            place.kind, place.name, limits.tier_threads, place.capacity_bytes, place.used_bytes, place.largest_bytes,
            place.footprint_bytes,
        )  # fmt: skip
