"""The training job of a simulated cluster: each rank's loader reads its batches, all ranks compute step by step.

In: what each rank reads in each step, nodes that serve it. Out: when each step ended. A loader opens the samples of a
batch one after the other, without a pause while they are in place; the batch is then preprocessed, and computed when
all ranks are through with the step before (bulk-synchronous, as in the fast estimate's clock). A loader is at most
`LOADER_STEPS` steps ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.lab.sim.detailed.cluster import Pipe
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import IN_PLACE, Node
from mlfs.lab.sim.order import RegisteredOrder, SimulatedOrder
from mlfs.orders.streams import JobStreams
from mlfs.plan.scheduler.events import Opened, Released
from mlfs.served.refill import Refill

# Batches that a loader has read and that are not computed: torch's DataLoader keeps two for each of its workers.
LOADER_STEPS = 2
# A parent's process number for the readers of a node: no rank has it.
PARENT = 1_000_000


class Steps:
    """The barrier after each step."""

    def __init__(self, heap: Heap, ranks: int, steps: int, over: Callable[[int], None]) -> None:
        self._heap, self._ranks, self._over = heap, ranks, over
        self.ends_s = [0.0] * (steps + 1)
        self._ready: list[list[tuple[float, float]]] = [[] for _ in range(steps)]
        self.done = 0

    def ready(self, step: int, compute_s: float) -> None:
        """A rank has its batch of a step."""
        self._ready[step].append((self._heap.now_s, compute_s))
        while self.done < len(self._ready) and len(self._ready[self.done]) == self._ranks:
            before = self.ends_s[self.done]
            end = max(max(before, ready_s) + compute_s for ready_s, compute_s in self._ready[self.done])
            self._ready[self.done] = []
            self.done += 1
            self.ends_s[self.done] = end
            self._heap.at(end, self._over, self.done)


class Rank:
    """One rank's loader.

    Args:
        batches: the samples of a step, by step. steps: the barrier. compute_s_per_byte, preprocess: of this rank.
        read: told of each read.

    Attributes:
        times_s: by step, how long its batch took to load and preprocess, and how long it computes.
    """

    def __init__(
        self,
        node: Node,
        process: int,
        heap: Heap,
        batches: Callable[[int], Sequence[int]],
        steps: Steps,
        preprocess: Pipe,
        compute_s_per_byte: float,
        read: Callable[[Node, int], None],
    ) -> None:
        self._node, self._process, self._heap, self._batches, self._steps = node, process, heap, batches, steps
        self._preprocess, self._compute_s_per_byte, self._read = preprocess, compute_s_per_byte, read
        self._step, self._at = 0, 0
        self._batch = batches(0)
        self._allowed = 0
        self._began_s = 0.0
        self.times_s: list[tuple[float, float]] = []

    def may_read(self, steps: int) -> None:
        """Batches before this step may be read."""
        paused = self._step >= self._allowed
        self._allowed = steps
        if paused and self._step < steps:
            self._began_s = self._heap.now_s
            self._go_on()

    def _opened(self, how: int) -> None:
        assert how == IN_PLACE, "in a cluster without failures nobody is refused"
        self._node.soon(Opened(self._batch[self._at], self._process, self._heap.now_s))
        self._take()
        self._go_on()

    def _take(self) -> None:
        sample = self._batch[self._at]
        self._at += 1
        self._read(self._node, sample)
        self._node.soon(Released(sample))

    def _go_on(self) -> None:
        """Read until a sample is not in place, or no batch may be read."""
        while self._step < self._allowed:
            while self._at < len(self._batch):
                if not self._node.open(self._batch[self._at], self._process, PARENT, self._opened):
                    return
                self._take()
            size = sum(map(self._node.sizes.__getitem__, self._batch))
            through = self._preprocess.through_at(self._heap.now_s, size)
            compute_s = size * self._compute_s_per_byte
            self._heap.at(through, self._steps.ready, self._step, compute_s)
            self.times_s.append((through - self._began_s, compute_s))
            self._began_s = self._heap.now_s
            self._step, self._at = self._step + 1, 0
            self._batch = self._batches(self._step)


# -- the job as one node's scheduler follows it: the streams of the node's own ranks
#
# In: the cluster's `SimulatedOrder`. Out: streams as `mlfs.follow.job.JobRun` takes them, and batches for the loaders.
# A node's batch is dealt to its GPUs one by one, each GPU is a rank.

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
    fields = {"name": JOB, "epochs": epochs, "batch_size": streams.batch_size, "world_size": nodes * gpus}
    order = {"sampler": "explicit", "order_file": "/the/streams/are/the/simulators"}
    spec = parse_job(fields | order | {"ranks": list(range(node * gpus, (node + 1) * gpus))})
    return JobRun(spec, cast(JobStreams, streams), sizes)
