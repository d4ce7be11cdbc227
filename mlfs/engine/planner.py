"""Counts how often this node reads each sample of its jobs, beside everything else, and plans what to keep by that.

In: registered jobs. Out: `Planned` for the scheduler. Reads of one job all of whose ranks read through
this mount need not be counted if its sampler gives each sample once an epoch: the first samples that come are kept.
Others are counted: where this node runs some of a job's ranks; where the sampler draws with replacement, repeats
samples or leaves some out of an epoch, reads an order file, or comes with another package; and where several jobs read
different samples. An opportunistic order says itself what is worth keeping. Each epoch is counted in the worker pool
`plan`, which has a thread of its own, so that neither reads nor the orders of the next epochs wait for it. In a
cluster, what this node owns is planned elsewhere (mlfs.engine.shared_plan); its own reads are counted only where there
is room for copies of what others own. How a plan is made stands in mlfs.plan.owners, and whether evicting does better
in mlfs.plan.next_use (both pure).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.runner import Runner
from mlfs.errors import JobError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.job.names import built_in
from mlfs.orders.streams import JobStreams
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.members import OwnShare, warning
from mlfs.plan.next_use import Gathering, Missed, Reads, missed
from mlfs.plan.owners import plan_alone
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler.keeping import Plan

log = logging.getLogger("mlfs.engine")

# A run whose number of epochs nobody knows is registered with a thousand: what lies far ahead is not worth the time.
MOST_EPOCHS = 256
# The lines of order files are looked up one by one: so many take some ten seconds of a core. The epochs that they make
# up stand for all. Files of later epochs need not be there yet.
MOST_LINES = 16_000_000
# Samplers that give a sample several times an epoch, and others not at all.
REPEATING = ("ra-sampler", "timm-repeat-aug", "torch-weighted")
# Counts are kept in two bytes.
MOST_READS = np.iinfo(np.uint16).max

# A round of evicting looks at all samples, on the loop: about 90 ms a million. With more samples than this nothing is
# evicted, and what is read most stays.
MOST_EVICTING = 2_000_000

Counts = npt.NDArray[np.uint16]
Ids = npt.NDArray[np.int64]
NodeNumbers = npt.NDArray[np.int16]


def needs_counting(spec: JobSpec, samples: int) -> bool:
    """Whether a node may read some samples of the job more often than others, or is to keep those that its order says.

    Args:
        samples: how many the job's data set has.
    """
    return spec.epochs - spec.start_epoch > 1 and (not reads_alike(spec, samples) or spec.serve == "opportunistic")


def reads_alike(spec: JobSpec, samples: int) -> bool:
    """Whether this node surely reads all of the job's samples equally often. Args: samples: of its data set."""
    return len(spec.ranks) == spec.world_size and not draws_again(spec, samples)


def draws_again(spec: JobSpec, samples: int) -> bool:
    """Whether the sampler may give some samples more often in an epoch than others. Args: samples: of the data set."""
    if spec.replacement or spec.sampler == "explicit" or spec.sampler in REPEATING or built_in(spec.sampler) is None:
        return True
    return spec.num_samples is not None and samples > 0 and spec.num_samples % samples != 0


Kept = Callable[[JobStreams, int, int], Ids]
"""A call that gives the samples which a rank reads in an epoch, as places keep them."""


def count_epoch(
    reads: Counts, spec: JobSpec, streams: JobStreams, epoch: int, gathering: Gathering, kept: Kept
) -> None:
    """Add an epoch's reads by the ranks of this node."""
    ranks = [kept(streams, epoch, rank) for rank in spec.ranks]
    for ids in ranks:
        counts = np.bincount(ids[ids >= 0], minlength=len(reads))
        np.minimum(reads + counts, MOST_READS, out=reads, casting="unsafe")
    gathering.add(ranks)


def gather(spec: JobSpec, streams: JobStreams, kept: Kept) -> Reads:
    """The reads of this node's ranks, of some samples, in the first epochs of a job that was not counted."""
    gathering = Gathering(streams.sample_ids.size)
    for epoch in epochs_worth_counting(spec):
        if gathering.enough:
            break
        gathering.add([kept(streams, epoch, rank) for rank in spec.ranks])
    return gathering.gathered()


class RuleTrial:
    """Both rules, as they were tried last: each epoch begins with a new plan, and mostly of the same jobs as before."""

    def __init__(self) -> None:
        self._of: tuple[list[Reads], int] = [], -1
        self._missed: Missed | None = None

    def missed(
        self,
        jobs: Sequence[Reads],
        sizes: npt.NDArray[Any],
        room_bytes: int,
        kept: npt.NDArray[np.bool_],
        read: npt.NDArray[np.bool_],
    ) -> Missed:
        """As `mlfs.plan.next_use.missed`. Args: kept, read: what follows from the jobs, the sizes and the room."""
        before, room_before = self._of
        same = room_before == room_bytes and len(before) == len(jobs) and all(map(operator.is_, before, jobs))
        if self._missed is None or not same:
            self._of, self._missed = (list(jobs), room_bytes), missed(jobs, sizes, room_bytes, kept, read)
        return self._missed


def plan_for_all(
    sizes: npt.NDArray[Any],
    counted: Sequence[Counts],
    even: Sequence[tuple[bytearray, JobSpec]],
    capacities: Sequence[int],
    to_come: Sequence[Reads] = (),
    rests: bool = False,
    trial: RuleTrial | None = None,
) -> Plan | None:
    """The samples that a node without peers keeps for all its jobs; None where no sample is read more often than
    another.

    Args:
        counted: of each job whose reads were counted, how often it reads each sample.
        even: of each other job, its members, which it all reads equally often.
        to_come: what each job reads of some samples; empty where copies must not make room for others.
        rests: whether some job's order rests on what is kept: then that is kept, whatever comes first.
        trial: knows what was tried before.
    """
    reads = np.zeros(len(sizes), dtype=np.uint32)
    for counts in counted:
        reads += counts
    for member, spec in even:
        of_job = np.frombuffer(bytes(member), np.uint8)[: len(reads)]
        reads[: len(of_job)] += of_job * np.uint32(len(epochs_worth_counting(spec)))
    read = reads[reads > 0]
    if not rests and (not len(read) or read.min() == read.max()):
        return None
    plan = plan_alone(sizes, reads, capacities)
    if not to_come or len(sizes) > MOST_EVICTING or any(capacities[1:]) or plan.about["samples"] == len(read):
        return plan
    trial = trial if trial is not None else RuleTrial()
    shares = trial.missed(to_come, sizes, capacities[0], plan.classes != NOWHERE, reads > 0)
    if not shares.evicting_wins:
        return plan
    nowhere = np.full(len(sizes), NOWHERE, dtype=np.int8)
    about = {
        "evicts": True,
        "reads": int(reads.sum()),
        "source_share": round(shares.evicting / shares.reads, 3),
        "source_share_keeping": round(shares.kept / shares.reads, 3),
    }
    return Plan(nowhere, None, about, evicts_by=reads)


class Counted(NamedTuple):
    """How often this node reads each sample of a job.

    Attributes:
        to_come: what it reads of some samples, in order; None where the order rests on what is kept.
    """

    reads: Counts
    to_come: Reads | None


@dataclass(frozen=True, slots=True, eq=False)
class _ToCount:
    """A job whose reads are to be counted. Whoever wants them counted anew makes another of these."""

    job: JobRun


@dataclass(frozen=True, slots=True)
class PlannerStatistics:
    """The planner's work at this moment.

    Attributes:
        being_counted: names of jobs whose reads are not all counted. under_way: plans and counts to come.
    """

    being_counted: tuple[str, ...]
    under_way: int


def epochs_worth_counting(spec: JobSpec, most: int = MOST_EPOCHS) -> range:
    """The epochs that a plan is made for."""
    return range(spec.start_epoch, min(spec.epochs, spec.start_epoch + min(most, MOST_EPOCHS)))


class Planner:
    """Makes the plan of this node's jobs, from how often they read each sample.

    Args:
        sizes: bytes by sample. capacities: what a plan fills now (`Keeping.capacities_bytes`); empty for no places.
        planned: told of each new plan, on the loop; None: keep what comes first.
        blocks: those that places keep of files of which jobs read rows.
    """

    def __init__(
        self,
        sizes: memoryview,
        capacities: Callable[[], Sequence[int]],
        runner: Runner,
        planned: Callable[[Plan | None], None],
        blocks: FileBlocks | None = None,
    ) -> None:
        self._sizes = sizes
        self._blocks = blocks or FileBlocks.none(sizes)
        self._capacities = capacities
        self._runner = runner
        self._planned = planned
        self._waiting: dict[str, _ToCount] = {}  # jobs whose reads are not all counted
        self._counted: dict[str, Counted] = {}
        self._even: dict[str, JobRun] = {}  # jobs that need no counting: each sample of theirs once an epoch
        self._trial = RuleTrial()
        self._gathered: dict[str, tuple[JobRun, Reads]] = {}  # of those: kept, as each epoch begins with a new plan
        self._kept_at: dict[str, NodeNumbers] = {}  # of jobs whose order mlfs serves: on whose keeping it rests
        self._share: OwnShare | None = None  # of the samples of a cluster
        self._plan_again = False
        self._wanted = trio.Event()

    def statistics(self) -> PlannerStatistics:
        return PlannerStatistics(tuple(sorted(self._waiting)), len(self._waiting) + self._plan_again)

    def kept(self, streams: JobStreams, epoch: int, rank: int) -> Ids:
        """The samples that a rank of a job reads in an epoch, as places keep them: blocks for rows. In a worker."""
        return self._blocks.keeping(streams.epoch_ids(epoch, rank))

    def count(self, job: JobRun) -> None:
        """A job was installed: count its reads from now on, if a plan can keep more of them than what comes first."""
        if sum(self._capacities()) <= 0 or (self._share is not None and not self._share.spare):
            return
        if needs_counting(job.spec, len(job.streams.sample_ids)):
            self._waiting[job.name] = _ToCount(job)
            self._wanted.set()
            return
        self._even[job.name] = job
        if self._share is None and (len(self._even) > 1 or self._counted):
            self.plan_again()

    def share(self, share: OwnShare | None, jobs: Iterable[JobRun]) -> None:
        """Plan from now on with this node's share of the cluster's samples, or without one where it is alone."""
        before, self._share = self._share, share
        if before is None or share is None or not share.spare:
            for known in (self._counted, self._even, self._gathered, self._kept_at, self._waiting):
                known.clear()
        for job in jobs:
            if job.name not in self._counted and job.name not in self._waiting:
                self.count(job)
        if share is None or self._counted:
            self.plan_again()

    def forget(self, name: str) -> None:
        """The job has ended, on this node."""
        self._waiting.pop(name, None)
        self._kept_at.pop(name, None)
        self._gathered.pop(name, None)
        was_even = self._even.pop(name, None) is not None
        if self._counted.pop(name, None) is not None or (was_even and (self._even or self._counted)):
            self.plan_again()

    def plan_again(self) -> None:
        """A job has ended, or the places give something else by now."""
        if self._share is not None and not self._counted:
            self._planned(self._share.plan)
            return
        if not self._counted and len(self._even) < 2:
            self._planned(None)
            return
        self._plan_again = True
        self._wanted.set()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._plan_all()
            finally:
                if self._waiting:
                    self._wanted.set()

    async def _plan_all(self) -> None:
        while self._waiting or self._plan_again:
            if self._plan_again:
                await self._plan()
                continue
            name, waiting = next(iter(self._waiting.items()))
            try:
                await self._count(name, waiting)
            except Exception as error:  # an order file that is gone: the job goes on without a plan
                log.warning("job %s: not planned: %s", name, error)
            if self._waiting.get(name) is waiting:
                del self._waiting[name]

    async def _count(self, name: str, waiting: _ToCount) -> None:
        """Count how often this node reads each sample of a job."""
        job, kept_at = waiting.job, None
        if job.spec.serve == "opportunistic" and self._share is None:
            kept_at = await self._runner.run("plan", job.streams.kept_at, len(self._sizes))
        counted = await self._reads(name, waiting, kept_at)
        if self._waiting.get(name) is not waiting:
            return  # unregistered, registered anew, or to be counted for other members
        self._counted[name] = counted
        if kept_at is None:
            self._kept_at.pop(name, None)
        else:
            self._kept_at[name] = kept_at
        await self._plan()
        log.info("job %s: planned", name)
        if len(self._kept_at) > 1:
            rooms = {0: sum(self._capacities())}
            if said := await self._runner.run("plan", warning, dict(self._kept_at), np.asarray(self._sizes), rooms):
                log.warning(said)

    async def _reads(self, name: str, waiting: _ToCount, kept_at: NodeNumbers | None) -> Counted:
        """How often this node reads each sample, as far as it is worth keeping; half counted if nobody wants it.

        Args:
            kept_at: by sample, on whose keeping an opportunistic order rests. Samples that no node keeps are read from
            the source in large pieces.
        """
        job, epochs = waiting.job, epochs_worth_counting(waiting.job.spec)
        if kept_at is not None and reads_alike(job.spec, len(job.streams.sample_ids)):  # then there is nothing to count
            return Counted(np.where(kept_at >= 0, len(epochs), 0).astype(np.uint16), None)
        reads, gathering = np.zeros(len(self._sizes), dtype=np.uint16), Gathering(job.streams.sample_ids.size)
        from_file, looked_at = job.spec.sampler == "explicit", 0
        for epoch in epochs:
            if self._waiting.get(name) is not waiting or (from_file and int(reads.sum()) > MOST_LINES):
                break
            try:
                await self._runner.run("plan", count_epoch, reads, job.spec, job.streams, epoch, gathering, self.kept)
            except JobError:
                if not from_file or not looked_at:
                    raise
                break  # the file of that epoch is still to come
            looked_at += 1
        if 0 < looked_at < len(epochs):  # the other epochs are taken to be like those
            np.minimum(reads * np.float64(len(epochs) / looked_at), MOST_READS, out=reads, casting="unsafe")
        if kept_at is not None:
            return Counted(np.where(kept_at >= 0, reads, 0).astype(np.uint16), None)
        return Counted(reads, gathering.gathered())

    async def _plan(self) -> None:
        """Plan for the jobs that are counted now."""
        self._plan_again = False
        sizes, share = np.asarray(self._sizes), self._share
        counted, even = list(self._counted.values()), list(self._even.values())
        if share is not None and not counted:  # this node has joined others since a plan was asked for
            self._planned(share.plan)
            return
        reads = [one.reads for one in counted]
        plan: Plan | None
        if share is not None:
            together: npt.NDArray[np.uint32] = np.sum(reads, axis=0, dtype=np.uint32)
            plan = await self._runner.run("plan", share.with_copies, sizes, together)
        else:
            members_of = [(self._blocks.members(job.member), job.spec) for job in even]
            to_come = await self._to_come(counted, even)
            rests = any(one.to_come is None for one in counted)
            plan = await self._runner.run(
                "plan", plan_for_all, sizes, reads, members_of, self._capacities(), to_come, rests, self._trial
            )
        still = (len(counted), len(even)) == (len(self._counted), len(self._even))
        if still and share is self._share and not self._plan_again:
            self._planned(plan)

    async def _to_come(self, counted: Sequence[Counted], even: Sequence[JobRun]) -> list[Reads]:
        """Each job's reads of some samples; empty where copies must not make room, or it cannot be told."""
        to_come = [one.to_come for one in counted if one.to_come is not None]
        if len(to_come) < len(counted) or (not counted and len(even) < 2):
            return []  # an order rests on what is kept, or there is nothing to plan
        for job in even:
            known = self._gathered.get(job.name)
            if known is None or known[0] is not job:
                try:
                    reads = await self._runner.run("plan", gather, job.spec, job.streams, self.kept)
                except Exception as error:  # the job has ended meanwhile, or an order file is gone
                    log.warning("job %s: whether evicting helps is not known: %s", job.name, error)
                    return []
                known = job, reads
                if self._even.get(job.name) is job:
                    self._gathered[job.name] = known
            to_come.append(known[1])
        return to_come
