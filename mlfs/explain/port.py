"""The engine, as what explains reads needs it. All calls are made on the loop.

The engine itself calls `mlfs.explain.explainer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

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


ORDERS_POOL = "orders"


async def load_epochs(runner: Workers, job: JobRun, most: int | None = None) -> None:
    """Load the epochs that a job should have loaded before it is installed, at most `most` of them. A million take
    long: so it is not done on the loop.
    """
    await runner.run(ORDERS_POOL, job.epochs.timeline.base, job.spec.epochs)
    for epoch in job.missing_epochs()[:most]:
        job.add_epoch(await runner.run(ORDERS_POOL, job.load_epoch, epoch))
