"""Counts how often this node reads each sample of its jobs, beside everything else, and plans what to keep by that.

In: registered jobs. Out: `Planned` for the scheduler. A job all of whose ranks read through this mount reads every
sample equally often: then what comes first is kept, and nothing is to be counted. A job of which this node runs some
ranks reads some samples more often. Each epoch is counted in the worker pool `plan`, which has a thread of its own, so
that neither reads nor the orders of the next epochs wait for it. How a plan is made stands in
mlfs.plan.owners (pure).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.runner import Runner
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.plan.owners import plan_alone
from mlfs.plan.scheduler.keeping import Plan

log = logging.getLogger("mlfs.engine")

# A run whose number of epochs nobody knows is registered with a thousand: what lies far ahead is not worth the time.
MOST_EPOCHS = 256
# Counts are kept in two bytes.
MOST_READS = np.iinfo(np.uint16).max

Counts = npt.NDArray[np.uint16]


def needs_counting(spec: JobSpec) -> bool:
    """Whether a node reads some samples of the job more often than others."""
    return len(spec.ranks) < spec.world_size and spec.epochs - spec.start_epoch > 1


def count_epoch(reads: Counts, spec: JobSpec, streams: JobStreams, epoch: int) -> None:
    """Add an epoch's reads by the ranks of this node."""
    for rank in spec.ranks:
        ids = streams.epoch_ids(epoch, rank)
        counts = np.bincount(ids[ids >= 0], minlength=len(reads))
        np.minimum(reads + counts, MOST_READS, out=reads, casting="unsafe")


@dataclass(frozen=True, slots=True)
class PlannerStatistics:
    """What the planner is at.

    Attributes:
        being_counted: names of jobs whose reads are not all counted. under_way: plans and counts to come.
    """

    being_counted: tuple[str, ...]
    under_way: int


class Planner:
    """See the module.

    Args:
        sizes: bytes by sample. capacities: what a plan fills now (`Keeping.capacities_bytes`); empty for no places.
        planned: told of each new plan, on the loop; None: keep what comes first.
    """

    def __init__(
        self,
        sizes: memoryview,
        capacities: Callable[[], Sequence[int]],
        runner: Runner,
        planned: Callable[[Plan | None], None],
    ) -> None:
        self._sizes = sizes
        self._capacities = capacities
        self._runner = runner
        self._planned = planned
        self._waiting: dict[str, JobRun] = {}  # jobs whose reads are not all counted
        self._counted: dict[str, Counts] = {}
        self._plan_again = False
        self._wanted = trio.Event()

    def statistics(self) -> PlannerStatistics:
        """Frozen figures."""
        return PlannerStatistics(tuple(sorted(self._waiting)), len(self._waiting) + self._plan_again)

    def count(self, job: JobRun) -> None:
        """A job was installed: count its reads from now on, if a plan can keep more of them than what comes first."""
        if sum(self._capacities()) and needs_counting(job.spec):
            self._waiting[job.name] = job
            self._wanted.set()

    def forget(self, name: str) -> None:
        """The job has ended."""
        self._waiting.pop(name, None)
        if self._counted.pop(name, None) is not None:
            self.plan_again()

    def plan_again(self) -> None:
        """A job has ended, or the places give something else by now."""
        if not self._counted:
            self._planned(None)
            return
        self._plan_again = True
        self._wanted.set()

    async def run(self) -> None:
        """For as long as the mount lives."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting or self._plan_again:
                if self._plan_again:
                    await self._plan()
                    continue
                name, job = next(iter(self._waiting.items()))
                try:
                    await self._count(name, job)
                except Exception as error:  # an order file that is gone: the job goes on without a plan
                    log.warning("job %s: not planned: %s", name, error)
                if self._waiting.get(name) is job:
                    del self._waiting[name]

    async def _count(self, name: str, job: JobRun) -> None:
        reads = np.zeros(len(self._sizes), dtype=np.uint16)
        for epoch in range(job.spec.start_epoch, min(job.spec.epochs, job.spec.start_epoch + MOST_EPOCHS)):
            await self._runner.run("plan", count_epoch, reads, job.spec, job.streams, epoch)
            if self._waiting.get(name) is not job:
                return  # unregistered, or registered anew
        self._counted[name] = reads
        await self._plan()
        log.info("job %s: planned", name)

    async def _plan(self) -> None:
        """Plan for the jobs that are counted now."""
        self._plan_again = False
        counted = list(self._counted.values())
        reads: npt.NDArray[np.uint32] = np.sum(np.stack(counted), axis=0, dtype=np.uint32)
        sizes, capacities = np.asarray(self._sizes), self._capacities()
        plan = await self._runner.run("plan", plan_alone, sizes, reads, capacities)
        if counted and len(counted) == len(self._counted) and not self._plan_again:
            self._planned(plan)
