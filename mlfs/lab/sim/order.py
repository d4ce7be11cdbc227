"""The simulated job's order: every epoch all samples in a new random order, or what a real sampler makes of its seed.

In: number of samples, the job's shape, a seed or a registered job's streams. Out: ids by step, node and place in the
batch; who reads what in which epoch. Called by `mlfs.lab.sim.run`. The same seed gives the same order on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlfs.errors import ConfigError
from mlfs.lab.sim.scenario import Scenario
from mlfs.orders.stopping import stop_if_asked
from mlfs.plan.model import Floats, PerformanceModel
from mlfs.plan.node_reads import Ids, Readers
from mlfs.served.partition import Partition

if TYPE_CHECKING:
    from mlfs.orders.streams import JobStreams

KEPT_BYTES = 1 << 30
"""Orders of all epochs are kept up to this size: they fit beside the simulation on a laptop, and are computed once."""


class SimulatedOrder:
    """All epochs of a job. They are kept in memory if they are small, and else computed again when asked for.

    Args:
        parts: only the first of so many parts of each epoch is read here; the rest is read by others.
    """

    def __init__(self, n_samples: int, model: PerformanceModel, seed: int, parts: int = 1) -> None:
        self.n_samples = n_samples
        self.read = -(-n_samples // parts)
        self.model = model
        self.seed = seed
        self.steps = model.steps(self.read)
        self.batch = -(-model.global_batch // model.nodes)
        self.kept: Partition | None = None
        self._kept: dict[int, Ids] = {}

    def repeated_bytes(self, epoch: int, sizes_bytes: Floats) -> float:
        """Bytes of second and further reads of a sample within an epoch: a permutation has none."""
        return 0.0

    def epoch(self, epoch: int) -> Ids:
        """Shape (steps, nodes, batch): what each node reads in each step, -1 where a batch is short."""
        if epoch in self._kept:
            return self._kept[epoch]
        ids = self._make(epoch)
        if self.model.epochs * self.n_samples * 4 <= KEPT_BYTES:
            self._kept[epoch] = ids
        return ids

    def _make(self, epoch: int) -> Ids:
        generator = np.random.default_rng([self.seed, epoch])
        order = np.arange(self.n_samples, dtype=np.int32)
        generator.shuffle(order)
        nodes, width = self.model.nodes, self.model.global_batch
        flat = np.full((self.steps, self.batch * nodes), -1, dtype=np.int32)
        taken = order[: min(self.read, self.steps * width)]
        full = len(taken) // width
        flat[:full, :width] = taken[: full * width].reshape(full, width)
        flat[full:, : len(taken) - full * width] = taken[full * width :]
        # Dealt one by one, so that a short batch is short by one at most on each node.
        return np.ascontiguousarray(flat.reshape(self.steps, self.batch, nodes).transpose(0, 2, 1))

    def readers(self) -> Readers:
        """The node that reads each sample in each epoch, shape (E, F).

        It is the last one where several do, and the dtype's largest value where none does.
        """
        dtype = np.uint8 if self.model.nodes < 255 else np.uint16
        table = np.full((self.model.epochs, self.n_samples), np.iinfo(dtype).max, dtype=dtype)
        for epoch in range(self.model.epochs):
            stop_if_asked()
            ids = self.epoch(epoch)
            for node in range(self.model.nodes):
                mine = ids[:, node, :]
                table[epoch, mine[mine >= 0]] = node
        return table


class RegisteredOrder(SimulatedOrder):
    """The streams of a registered job, a rank for each GPU: rank r is GPU r mod M of node r div M, as with torchrun.

    Attributes:
        streams: over sample numbers 0 .. F - 1. kept: which node keeps what, by an order that mlfs serves.
    """

    def __init__(
        self, n_samples: int, model: PerformanceModel, gpus: int, streams: JobStreams, kept: Partition | None = None
    ) -> None:
        super().__init__(n_samples, model, 0)
        self.gpus, self.streams, self.kept = gpus, streams, kept
        self.steps = self._steps(0)

    def _steps(self, epoch: int) -> int:
        return -(-self.streams.length(epoch) // self.streams.spec.batch_size)

    def _make(self, epoch: int) -> Ids:
        nodes, steps, batch = self.model.nodes, self._steps(epoch), self.streams.spec.batch_size
        ids = np.full((nodes, self.gpus, steps * batch), -1, dtype=np.int32)
        for rank in range(nodes * self.gpus):
            stream = self.streams.epoch_ids(epoch, rank)
            ids[rank // self.gpus, rank % self.gpus, : len(stream)] = np.maximum(stream, -1)
        dealt = ids.reshape(nodes, self.gpus, steps, batch).transpose(2, 0, 3, 1)  # a GPU takes every M-th of its node
        return np.ascontiguousarray(dealt.reshape(steps, nodes, batch * self.gpus))

    def repeated_bytes(self, epoch: int, sizes_bytes: Floats) -> float:
        """As for `SimulatedOrder`: those that draw with replacement, augment repeatedly or pad read samples again."""
        ids = self.epoch(epoch)
        times = np.bincount(ids[ids >= 0], minlength=self.n_samples)
        return float(sizes_bytes @ np.maximum(times - 1, 0))


# -- the order of a scenario's job
#
# In: a `Scenario`, the sizes of its samples. Out: a `SimulatedOrder`. An order that mlfs serves is dealt to the
# scenario's nodes by the function by which mounts deal it.


def order_of(scenario: Scenario, sizes_bytes: Floats) -> SimulatedOrder:
    """The order of a scenario's job.

    Args:
        sizes_bytes: of the samples, shape (F,).

    Raises:
        ConfigError: the batch cannot be shared evenly by the GPUs, or is never full.
        JobError: a field of the job is wrong.
    """
    fields, model = scenario.job.order, scenario.model
    n_samples = len(sizes_bytes)
    if fields is None:
        order = SimulatedOrder(n_samples, model, scenario.seed, scenario.job.of_nodes)
    else:
        order = _registered(scenario, sizes_bytes)
    if order.steps == 0:
        raise ConfigError(
            f"{n_samples} samples make no step of {model.global_batch}", "a smaller job.batch, or drop_last = false"
        )
    return order


def _registered(scenario: Scenario, sizes_bytes: Floats) -> SimulatedOrder:
    from mlfs.job import parse_job
    from mlfs.job.names import readers_of
    from mlfs.orders.order import build_order
    from mlfs.orders.served import ServedOrder
    from mlfs.orders.streams import JobStreams

    job, gpus = scenario.job, scenario.cluster.gpus
    if job.batch % gpus:
        raise ConfigError(f"job.batch: {job.batch} is not the same for each of {gpus} GPUs", "give a multiple")
    follows = {
        "epochs": job.epochs,
        "batch_size": job.batch // gpus,
        "world_size": scenario.cluster.nodes * gpus,
        "loader_drop_last": job.drop_last,
    }
    fields = dict(job.order or {})
    if fields.get("sampler", "torch-distributed") in readers_of("seed") and "preset" not in fields:
        fields.setdefault("seed", scenario.seed)
    if fields.get("serve") is not None:
        fields.setdefault("nodes", _nodes(scenario))
    spec = parse_job(fields | follows)
    entries = np.arange(len(sizes_bytes), dtype=np.int64)
    order, kept = build_order(spec, len(entries)), None
    if spec.serve is not None:
        order = served = ServedOrder(order, spec, sizes_bytes.astype(np.int64), entries)
        kept = served.kept
    return RegisteredOrder(len(entries), scenario.model, gpus, JobStreams(spec, entries, order), kept)


def _nodes(scenario: Scenario) -> list[dict[str, Any]]:
    """The nodes to which a served order deals its reads, as a mount fills them in."""
    gpus, model = scenario.cluster.gpus, scenario.model
    buffer_bytes = int(model.staging.capacity_bytes) // 2
    return [
        {
            "node": node, "ranks": f"{node * gpus}-{(node + 1) * gpus - 1}",
            "keeps_bytes": [int(capacity) for capacity in capacities], "buffer_bytes": buffer_bytes,
        }
        for node, capacities in enumerate(model.node_capacities_bytes().tolist())
    ]  # fmt: skip
