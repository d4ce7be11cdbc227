"""Counts how often this node reads each sample of its jobs, beside everything else, and has the plan adopted.

In: registered jobs. Out: a plan in `Placing`. A task on the loop; each epoch is counted in the worker pool `plan`,
which has a thread of its own, so that neither reads nor the orders of the next epochs wait for it: what comes first is
fetched while the rest is still being planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from mlfs.engine.fetch import ClassTier
from mlfs.engine.placing import Placing
from mlfs.engine.runner import Runner
from mlfs.engine.table import SampleTable
from mlfs.follow.job import JobRun
from mlfs.plan.placement import DISK, MEMORY, slower_groups

log = logging.getLogger("mlfs.engine")

# A run whose number of epochs nobody knows is registered with a thousand: what lies far ahead is not worth the time.
MOST_EPOCHS = 256


class Planner:
    """See the module.

    Args:
        gives: what a tier is known to give, bytes a second, by its name; 0 for not known.

    Attributes:
        waiting: jobs whose reads are not all counted.
        plan_again: a job has ended, or an epoch begun, since the plan was made.
    """

    def __init__(
        self, placing: Placing, tiers: Sequence[ClassTier], table: SampleTable, runner: Runner,
        gives: Callable[[str], float],
    ) -> None:  # fmt: skip
        self.gives = gives
        self.plan_again = False
        self.placing = placing
        self.tiers = tiers
        self.table = table
        self.runner = runner
        self.waiting: dict[str, JobRun] = {}
        self._wanted = trio.Event()

    @property
    def capacities_bytes(self) -> list[int]:
        """Of memory and of all disks, those that are clearly slower apart."""
        capacities = [0] * (DISK + 1 + max(self.placing.slower, default=0))
        for (kind, tier, _), slower in zip(self.tiers, self.placing.slower, strict=True):
            capacities[MEMORY if kind == "ram" else DISK + slower] += tier.capacity_bytes
        return capacities

    def epoch_begun(self) -> None:
        """What is placed from now on goes to the classes that are the fastest by now, and the plan is made anew."""
        kinds = [kind for kind, _, _ in self.tiers]
        self.placing.slower = slower_groups(kinds, [self.gives(tier.name) for _, tier, _ in self.tiers])
        if self.placing.classes is not None:
            self.plan_again = True
            self._wanted.set()

    def wants(self, job: JobRun) -> bool:
        """Whether a plan can keep more of the job's reads than keeping what comes first does."""
        return bool(self.tiers) and self.placing.needs_counting(job.spec)

    def plan(self, job: JobRun) -> None:
        """Count the job's reads from now on."""
        self.waiting[job.spec.name] = job
        self._wanted.set()

    def forget(self, name: str) -> None:
        """The job has ended."""
        self.waiting.pop(name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        if self.placing.forget(name):
            self.plan_again = True
            self._wanted.set()

    async def run(self) -> None:
        """For as long as the mount lives."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self.waiting or self.plan_again:
                if self.plan_again:
                    self.plan_again = False
                    await self.runner.run("plan", self.placing.plan, self.table.held_by, self.capacities_bytes)
                    continue
                name, job = next(iter(self.waiting.items()))
                try:
                    await self._count(name, job)
                except Exception as error:  # an order file that is gone: the job goes on without a plan
                    log.warning("job %s: not planned: %s", name, error)
                if self.waiting.get(name) is job:
                    del self.waiting[name]

    async def _count(self, name: str, job: JobRun) -> None:
        counting = self.placing.begin(job.spec, job.streams)
        last = min(job.spec.epochs, job.spec.start_epoch + MOST_EPOCHS)
        for epoch in range(job.spec.start_epoch, last):
            await self.runner.run("plan", counting.add, epoch)
            if self.waiting.get(name) is not job:
                return  # unregistered, or registered anew
        await self.runner.run("plan", self.placing.adopt, counting, self.table.held_by, self.capacities_bytes)
        if self.waiting.get(name) is not job:
            self._forget(name)
        log.info("job %s: planned %s", name, self.placing.planned)
