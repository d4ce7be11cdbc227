"""The contract between the engine and what explains reads: what each of the two may ask of the other.

`Observer` is what the engine calls, `Jobs` what explaining needs of the engine. All calls are made on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.tree.manifest import Manifest

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Workers(Protocol):
    """Threads in named pools, for what would hold the loop up."""

    async def run(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `call` in a thread of `pool` and return its result. Cancelled, it leaves the thread to finish alone."""

    def post(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """From a thread: run `call` on the loop soon, without waiting."""


class Jobs(Protocol):
    """The jobs of a mount, and what it takes to find a better one."""

    @property
    def manifest(self) -> Manifest:
        """The data set as it lies."""

    @property
    def runner(self) -> Workers:
        """Threads."""

    @property
    def clock(self) -> Callable[[], float]:
        """Tells the time, in seconds since whenever."""

    @property
    def name_of(self) -> Callable[[int], str]:
        """Tells the name of a process's program, "" when it has ended."""

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        """The jobs that run, by name."""

    async def install(self, job: JobRun) -> None:
        """Have the mount follow a job, in place of one of the same name.

        A job whose first epoch is loaded is in its place without a pause in between: what was true before the call
        still is. Else that epoch is computed first.
        """

    def another_leads(self, job: JobRun) -> None:
        """Have the mount go by the rival that leads for a job, if one does."""

    def end(self, name: str) -> bool:
        """End a job; False when there is none of that name."""


class Observer(Protocol):
    """The part that hears of opens and jobs, and may install other jobs."""

    def opened(self, opens: Sequence[Read]) -> None:
        """Opens have been counted by the jobs that they belong to, in this order."""

    def digested(self, job: JobRun) -> None:
        """Opens were counted, perhaps some of this job."""

    def jobs_changed(self) -> None:
        """A job was installed or has ended."""

    def offer(self, fields: dict[str, object]) -> None:
        """The reads of another node have this order: fields of a job, for all ranks."""

    async def run(self, jobs: Jobs) -> None:
        """Search whenever there is a need, for as long as the mount lives. Nothing is observed before this runs."""


ORDERS_POOL = "orders"


async def load_epochs(runner: Workers, job: JobRun, most: int | None = None) -> None:
    """Load the epochs that a job should have loaded before it is installed, at most `most` of them. A million take
    long: so it is not done on the loop.
    """
    await runner.run(ORDERS_POOL, job.epochs.timeline.base, job.spec.epochs)
    for epoch in job.missing_epochs()[:most]:
        job.add_epoch(await runner.run(ORDERS_POOL, job.load_epoch, epoch))
