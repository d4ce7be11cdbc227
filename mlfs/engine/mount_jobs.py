"""The jobs of one mount: how they come and go, and what is done of what the scheduler says of them.

In: specifications from the control file, jobs from mlfs.explain, the scheduler's commands about jobs. Out: events for
the scheduler; orders computed in a worker thread; words for the log. Those who observe reads and jobs are told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, Unpack

from mlfs.engine.context import Context
from mlfs.engine.digest import Uncounted
from mlfs.engine.planner import Planner
from mlfs.errors import MlfsError
from mlfs.explain.explainer import Explainer
from mlfs.follow.agreement import SharesByRank, agreement_in_words, epoch_line
from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.evidence import Read
from mlfs.follow.hypothesis import SAME_JOB
from mlfs.follow.job import GAVE_UP, JobRun
from mlfs.follow.job_statistics import JobStatistics
from mlfs.follow.sentences import in_words
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.places.place import FileChange
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.tree.manifest import Manifest

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Listener(Protocol):
    """One that hears of reads and jobs, on the loop, and changes nothing (a recording, the priming of inodes)."""

    def opened(self, opens: Sequence[Read]) -> None:
        """Files were opened, in this order, a moment ago."""

    def installed(self, job: JobRun) -> None:
        """A job was installed."""


class Observers(NamedTuple):
    """Those who hear of reads and jobs: the one that explains reads and has jobs installed, and all others.

    Attributes:
        changed: hears of each change of a file or directory at the source, on the loop, before it is taken over.
        left: what another process has noted of a job that begins here (`JobRun.noted`); nothing where none has.
        uncounted: the reads that another process has noted and not counted; None: there is none.
    """

    explainer: Explainer
    listeners: Sequence[Listener] = ()
    changed: Callable[[int, FileChange], None] = lambda _, __: None
    left: Callable[[JobRun], Sequence[Mapping[str, Any]]] = lambda _: ()
    uncounted: Uncounted | None = None


class MountJobs:
    """Begins, ends and replaces the jobs of one mount. mlfs.explain installs jobs in it (`mlfs.explain.port.Jobs`).

    Args:
        measure: have the scheduler know what places give by now.
        name_of: the name of a process's program, asked once a process that is new to a job.
    """

    def __init__(
        self,
        context: Context,
        manifest: Manifest,
        scheduler: Scheduler,
        planner: Planner,
        observers: Observers,
        measure: Callable[[], None],
        name_of: Callable[[int], str],
    ) -> None:
        self.manifest = manifest
        self.name_of = name_of
        self.runner = context.runner
        self.clock = context.clock
        self._step = context.step
        self._counters = context.counters
        self._scheduler = scheduler
        self._planner = planner
        self._measure = measure
        self._explainer, self._listeners = observers.explainer, observers.listeners
        self._left = observers.left
        self._broken: list[object] = []  # what observers failed in
        self._orders_under_way = 0
        self._logged: dict[str, dict[int, SharesByRank]] = {}  # by job and epoch, what the log says of its agreement

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        return self._scheduler.jobs

    @property
    def most_untold(self) -> int:
        """See `Scheduler.most_untold`. Each read that nobody knows may show the order."""
        return self._scheduler.most_untold(self.manifest.used) if self.jobs or not self._explainer.infers else 0

    @property
    def orders_under_way(self) -> int:
        """Epochs whose order is being computed."""
        return self._orders_under_way

    # -- those who observe

    async def explain(self) -> None:
        """Have reads explained that fit no job, for as long as the mount lives."""
        await self._explainer.run(self)

    def opened(self, opens: Sequence[Read]) -> None:
        """Files were opened: observers hear of it."""
        self._shield(self._explainer.opened, opens)
        for listener in self._listeners:
            self._shield(listener.opened, opens)

    def offer(self, fields: dict[str, object]) -> None:
        """The reads of another node have this order: perhaps those of this one do."""
        self._shield(self._explainer.offer, fields)

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
        job = JobRun(spec, streams, self.manifest.sample_sizes, name_of=self.name_of)
        await self.install(job)
        return job

    async def install(self, job: JobRun) -> None:
        """Follow a job, in place of one of the same name: see `mlfs.explain.port.Jobs`."""
        if not job.epochs.at_hand:
            # Not on the loop: a million epochs take seconds, and explicit orders have their files counted.
            await self.runner.run("orders", job.epochs.timeline.base, job.spec.epochs)
            for epoch in job.wanted_epochs():
                job.add_epoch(await self.runner.run("orders", job.load_epoch, epoch))
        job.late.comes_into_force(self.clock(), job.score.cells)
        how = f"inferred from the reads: {in_words(job.hypothesis.spec)}" if job.inferred else "registered"
        log.info("job %s: %s: %d samples, %d epochs", job.name, how, len(job.streams.sample_ids), job.spec.epochs)
        self._logged.pop(job.name, None)
        if noted := self._left(job):
            for epoch in job.epochs_noted(noted) - job.epochs.at_hand.keys():
                job.add_epoch(await self.runner.run("orders", job.load_epoch, epoch))
            job.go_on(noted)
        self._install(job)

    def _install(self, job: JobRun) -> None:
        self._step(e.JobInstalled(job))
        for listener in self._listeners:
            self._shield(listener.installed, job)
        self._shield(self._explainer.jobs_changed)

    def end(self, name: str) -> bool:
        job = self.jobs.get(name)
        if job is None:
            return False
        self._log_counted_anew(job.statistics())
        self._logged.pop(name, None)
        self._step(e.JobEnded(name))
        log.info("job %s: %s", name, "its reads no longer come in the inferred order" if job.is_refuted else "ended")
        self._shield(self._explainer.jobs_changed)
        return True

    # -- what the scheduler says of jobs

    def carry_out(self) -> dict[type, Callable[[Any], None]]:
        """The one that carries out the commands about jobs, orders and plans, by the command's class."""
        return {
            c.LoadEpoch: self._load_epoch,
            c.CountReads: lambda command: self._planner.count(command.job),
            c.ForgetReads: lambda command: self._planner.forget(command.name),
            c.EpochBegan: self._epoch_began,
            c.EpochLeft: self._epoch_left,
            c.AnotherLeads: lambda command: self.another_leads(command.job),
            c.JobFailed: self._job_failed,
            c.Digested: self._digested,
        }

    def _load_epoch(self, command: c.LoadEpoch) -> None:
        """Compute an epoch's order: in the pool `orders`, which has one thread, so one after the other."""
        self._orders_under_way += 1
        job = command.job
        self.runner.start("orders", job.load_epoch, command.epoch, then=partial(self._epoch_loaded, job, command.epoch))

    def _epoch_loaded(self, job: JobRun, epoch: int, index: EpochIndex | None, error: BaseException | None) -> None:
        self._orders_under_way -= 1
        if index is not None:
            self._step(e.EpochKnown(job, index))
        elif isinstance(error, MlfsError | OSError):  # an order file that is gone
            log.warning("job %s: the order of epoch %d is not known: %s", job.name, epoch, error)
            self._step(e.EpochUnknown(job, epoch))
        elif isinstance(error, Exception):  # an order of another package, perhaps
            self._step(e.JobBroken(job, error))

    def _epoch_began(self, _: c.EpochBegan) -> None:
        self._counters.begin_epoch()
        self._measure()
        self._planner.plan_again()

    def _epoch_left(self, command: c.EpochLeft) -> None:
        figures = command.job.statistics()
        self._log_counted_anew(figures)
        shares, pfs_bytes = figures.shares.get(command.epoch, {}), figures.pfs_bytes_by_epoch.get(command.epoch, 0)
        self._logged.setdefault(figures.name, {})[command.epoch] = shares
        log.info("job %s: %s", figures.name, epoch_line(command.epoch, shares, pfs_bytes))

    def _log_counted_anew(self, figures: JobStatistics) -> None:
        """Opens of epochs that ended before may have come late or been counted anew: the log says so, too."""
        logged = self._logged.get(figures.name, {})
        for epoch, before in logged.items():
            now = figures.shares.get(epoch, before)  # an epoch long ago is not counted any more
            if now != before:
                logged[epoch] = now
                log.info("job %s: epoch %d counted anew: %s", figures.name, epoch, agreement_in_words(now))

    def another_leads(self, job: JobRun) -> None:
        """Put the hypothesis in force that fits the job's reads better than the one by which it is followed."""
        leading = job.rivals.leading
        if leading is None or self.jobs.get(job.name) is not job:
            return  # dealt with: several reads of a batch may say it
        followed, said = job.follow_leading(self.clock()), leading.hypothesis.sentence
        if leading.origin in SAME_JOB:
            log.info("job %s: %s", job.name, said)
            self._counters.begin_epoch()
        else:
            log.warning("job %s: %s", job.name, said)
            log.info("job %s: the last %d opens were counted anew", job.name, followed.findings.counted_anew)
        self._install(followed)
        if leading.origin not in SAME_JOB and followed.findings.way_out:
            log.info("job %s: to say so from the start: mlfs register MOUNT %s", job.name, followed.register_flags)

    def _job_failed(self, command: c.JobFailed) -> None:
        log.error("job %s: %s", command.job.name, GAVE_UP, exc_info=command.error)

    def _digested(self, _: c.Digested) -> None:
        for job in list(self.jobs.values()):
            if not job.given_up:
                self._shield(self._explainer.digested, job)
