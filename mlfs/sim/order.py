"""The simulated job's order: every epoch all samples in a new random order, dealt to the nodes batch by batch.

In: number of samples, the job's shape, a seed. Out: ids by step, node and place in the batch; who reads what in which
epoch. Called by `mlfs.sim.run`. The same seed gives the same order on every machine (numpy's PCG64).
"""

from __future__ import annotations

import numpy as np

from mlfs.plan.model import PerformanceModel
from mlfs.plan.policies.contract import Ids, Readers

KEPT_BYTES = 1 << 30


class Order:
    """All epochs of a job; epochs are kept in memory while they are small, else made again when asked for."""

    def __init__(self, n_samples: int, model: PerformanceModel, seed: int) -> None:
        self.n_samples = n_samples
        self.model = model
        self.seed = seed
        self.steps = model.steps(n_samples)
        self.batch = -(-model.global_batch // model.nodes)
        self._kept: dict[int, Ids] = {}

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
        taken = order[: self.steps * width]
        full = len(taken) // width
        flat[:full, :width] = taken[: full * width].reshape(full, width)
        flat[full:, : len(taken) - full * width] = taken[full * width :]
        # Dealt one by one, so that a short batch is short by one at most on each node.
        return np.ascontiguousarray(flat.reshape(self.steps, self.batch, nodes).transpose(0, 2, 1))

    def readers(self) -> Readers:
        """Shape (E, F): the node that reads each sample in each epoch; the dtype's largest value for none."""
        dtype = np.uint8 if self.model.nodes < 255 else np.uint16
        table = np.full((self.model.epochs, self.n_samples), np.iinfo(dtype).max, dtype=dtype)
        for epoch in range(self.model.epochs):
            ids = self.epoch(epoch)
            for node in range(self.model.nodes):
                mine = ids[:, node, :]
                table[epoch, mine[mine >= 0]] = node
        return table
