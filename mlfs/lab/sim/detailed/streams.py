"""The simulated job as one node's scheduler follows it: the streams of the node's own ranks.

In: the cluster's `SimulatedOrder`. Out: streams as `mlfs.follow.job.JobRun` takes them, and batches for the loaders. A
node's batch is dealt to its GPUs one by one, each GPU is a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.lab.sim.order import RegisteredOrder, SimulatedOrder
from mlfs.orders.streams import JobStreams
from mlfs.served.refill import Refill

JOB = "training"
NOTHING = -1


class OrderStreams:
    """A `SimulatedOrder` in the shape of `mlfs.orders.streams.JobStreams`: rank r is GPU r mod M of node r div M.

    Attributes:
        batch_files: samples of a rank's batch; where a batch is shorter, its last places are empty.
    """

    files_per_sample = 1

    def __init__(self, order: SimulatedOrder, gpus: int) -> None:
        self._order, self._gpus = order, gpus
        self._starts = np.cumsum([0, *(len(order.epoch(epoch)) for epoch in range(order.model.epochs))])
        self.batch_size = self.batch_files = -(-int(order.epoch(0).shape[2]) // gpus)
        self.sample_ids = np.arange(order.n_samples, dtype=np.int64)

    @property
    def steps(self) -> int:
        """The number over all epochs."""
        return int(self._starts[-1])

    def first_step(self, epoch: int) -> int:
        """The first step of an epoch, counted from the job's begin; for the number of epochs, the job's end."""
        return int(self._starts[epoch])

    def epoch_of_step(self, step: int) -> int:
        """The epoch that a step, counted from the job's begin, lies in."""
        return int(np.searchsorted(self._starts, step, side="right")) - 1

    def length(self, epoch: int) -> int:
        """Places of a rank's stream in an epoch."""
        return int(self._starts[epoch + 1] - self._starts[epoch]) * self.batch_files

    def epoch_ids(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        """A rank's samples of an epoch, `NOTHING` where a batch is short."""
        ids = self._order.epoch(epoch)[:, rank // self._gpus, rank % self._gpus :: self._gpus]
        padded = np.full((len(ids), self.batch_files), NOTHING, dtype=np.int64)
        padded[:, : ids.shape[1]] = ids
        return padded.ravel()

    def refill(self, epoch: int, ranks: Sequence[int]) -> Refill | None:
        """A node's fetches in the order of the tree, as of the registered job."""
        return self._order.streams.refill(epoch, ranks) if isinstance(self._order, RegisteredOrder) else None

    def batch(self, rank: int, step: int) -> list[int]:
        """A rank's samples of a step, counted from the job's begin; nothing after its end."""
        if step >= self.steps:
            return []
        epoch = self.epoch_of_step(step)
        ids = self._order.epoch(epoch)[step - self._starts[epoch], rank // self._gpus, rank % self._gpus :: self._gpus]
        return [sample for sample in ids.tolist() if sample >= 0]


def job_of(
    streams: OrderStreams, node: int, gpus: int, nodes: int, epochs: int, sizes: npt.NDArray[np.int64]
) -> JobRun:
    """The job as a node follows it."""
    fields = {"name": JOB, "epochs": epochs, "batch_size": streams.batch_size, "world_size": nodes * gpus}
    order = {"sampler": "explicit", "order_file": "/the/streams/are/the/simulators"}
    spec = parse_job(fields | order | {"ranks": list(range(node * gpus, (node + 1) * gpus))})
    return JobRun(spec, cast(JobStreams, streams), sizes)
