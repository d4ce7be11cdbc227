"""Makes the plan of a cluster, on the node that plans for all: counts which node reads what, and shares the samples.

In: the jobs that all nodes follow, the members, what each holds. Out: `mlfs.plan.members.Shares`. Each epoch is counted
in the worker pool `plan`, which has a thread of its own. A job is counted once, as long as this node plans for all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.engine.nodes_of_job import node_of_rank
from mlfs.engine.planner import epochs_worth_counting
from mlfs.engine.runner import Runner
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.plan.epoch_readers import Readers
from mlfs.plan.kept_by_orders import kept_by_all, warning
from mlfs.plan.members import Holders, Members, Shares

log = logging.getLogger("mlfs.peers")

# What is known of who reads what takes at most so much memory for a job: else fewer epochs are looked at.
MOST_READERS_BYTES = 256 << 20


class _Counted(NamedTuple):
    """A job, the node that reads each sample in each epoch, and on whose keeping its order rests, if mlfs serves it."""

    job: JobRun
    readers: npt.NDArray[np.unsignedinteger[Any]]
    kept_at: Holders | None


def is_counted(spec: JobSpec, members: Members) -> bool:
    """Whether it is known which node reads what of a job, and whether that lasts for more than an epoch."""
    return spec.epochs - spec.start_epoch > 1 and (members.divides(spec.world_size) or spec.nodes is not None)


class Sharing:
    """The counts of all jobs that are planned with, and the shares that are made of them."""

    def __init__(self, sizes: memoryview, runner: Runner) -> None:
        self._sizes = sizes
        self._runner = runner
        self._counted: dict[str, _Counted] = {}
        self._warned: set[str] = set()

    def forget(self) -> None:
        """Another node plans."""
        self._counted.clear()

    async def count(self, members: Members, jobs: Mapping[str, JobRun]) -> None:
        """Count what is new of the jobs that the next plan is for, and forget all others."""
        self._counted = {name: one for name, one in self._counted.items() if jobs.get(name) is one.job}
        for name, job in jobs.items():
            if name in self._counted:
                continue
            try:
                readers = await self._who_reads(job, members)
                kept_at = None
                if job.spec.serve is not None:
                    kept_at = await self._runner.run("plan", job.streams.kept_at, len(self._sizes))
                self._counted[name] = _Counted(job, readers, kept_at)
            except Exception as error:  # an order file that is gone: the job goes on without a plan
                log.warning("job %s: not planned: %s", name, error)
        await self._warn_of_room(members)

    async def _who_reads(self, job: JobRun, members: Members) -> npt.NDArray[np.unsignedinteger[Any]]:
        epochs = epochs_worth_counting(job.spec, max(2, MOST_READERS_BYTES // max(1, len(self._sizes))))
        readers = Readers(len(self._sizes), len(members.nodes), len(epochs))
        node_of = {rank: members.nodes.index(node) for rank, node in node_of_rank(job.spec, members).items()}
        for epoch in epochs:
            streams = [
                (at, await self._runner.run("plan", job.streams.epoch_ids, epoch, rank)) for rank, at in node_of.items()
            ]
            await self._runner.run("plan", readers.add, streams)
        return readers.by_epoch

    async def _warn_of_room(self, members: Members) -> None:
        """Say so where nodes have no room for what the orders of several jobs rest on."""
        rooms = dict(zip(members.nodes, map(sum, members.capacities_bytes), strict=True))
        said = await self._runner.run("plan", warning, self._kept_at(), np.asarray(self._sizes), rooms)
        if said and said not in self._warned:
            self._warned.add(said)
            log.warning(said)

    def _kept_at(self) -> dict[str, Holders]:
        return {name: one.kept_at for name, one in self._counted.items() if one.kept_at is not None}

    async def share(self, members: Members, holder: Holders | None) -> tuple[Shares, str]:
        """The shares for what was counted, and by what they are made. Args: holder: see `Members.share`."""
        readers = [one.readers for _, one in sorted(self._counted.items())]
        kept_at, sizes = kept_by_all(self._kept_at()), np.asarray(self._sizes)
        shares = await self._runner.run("plan", members.share, sizes, readers, kept_at, holder)
        return shares, "by who reads" if readers else "by hash"
