"""Computes the epochs that a job needs before it can be installed.

In: a job that nobody follows yet. Out: the same with its epochs loaded. Used by both cases of `mlfs.explain`.
"""

from __future__ import annotations

from mlfs.explain.port import Workers
from mlfs.follow.job import JobRun

ORDERS_POOL = "orders"


async def prepare(runner: Workers, job: JobRun, most: int | None = None) -> None:
    """Load the epochs that the job should have loaded, at most `most` of them. Not on the loop: a million take long."""
    await runner.run(ORDERS_POOL, job.epochs.timeline.base, job.spec.epochs)
    for epoch in job.missing_epochs()[:most]:
        job.add_epoch(await runner.run(ORDERS_POOL, job.load_epoch, epoch))
