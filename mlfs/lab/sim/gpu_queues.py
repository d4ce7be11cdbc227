"""Nodes of several GPUs: the work of each GPU's queue, beside the work of the node as a whole.

In: an `EpochBytes`, what one loading thread gets, a policy's traits. Out: how a node's threads are used, and lanes of
each GPU. Called by `mlfs.lab.sim.clock`. Source: Lobster (2022), Sections 4.1 to 4.4; docs/model.md.

A queue with k of the node's P threads gets k / P of what the node gets. The node's own lanes stand beside those of its
queues: however threads are divided, and whichever queue runs ahead, a node never loads faster than all its threads do.
Preprocessing is a node's own only where the same threads serve all GPUs; else each GPU has as many workers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mlfs.lab.policies.policy import Queues, Traits, Writing
from mlfs.lab.sim.coordinated import Batch, GpuNode, coordinated, divided
from mlfs.lab.sim.tally import EpochBytes
from mlfs.plan.model import Floats, PerformanceModel

ThreadCost = Callable[[int], Floats]
"""Given how many threads load, the seconds that one of them takes for a byte by each route, shape (R,)."""


class Stage(NamedTuple):
    """How a node's threads are used in an epoch."""

    loading: int
    preprocess_bytes_per_s: float


class GpuQueues:
    """The queues of one policy on one kind of node."""

    def __init__(self, model: PerformanceModel, node: GpuNode, traits: Traits) -> None:
        self.model, self.node, self.traits = model, node, traits
        self.assigned = traits.queues is Queues.ASSIGNED
        self.preprocess_for_all = self.assigned or node.gpus == 1

    def stage(self, tally: EpochBytes, loading: int, thread_s: ThreadCost) -> Stage:
        """Threads as the scenario has them; a policy that assigns threads may move some to loading."""
        node, usual = self.node, Stage(loading, self.model.preprocess_bytes_per_s)
        if not (self.assigned and node.preprocessing):
            return usual
        shares = len(tally.queued) * self.model.nodes * node.gpus
        batch = Batch(tally.queued.sum(axis=(0, 1, 2)) / shares, self._train_s(tally))
        sample_bytes = batch.size_bytes * shares / max(1, int(tally.counts.sum()))
        if not sample_bytes:
            return usual
        count = coordinated(node, batch, sample_bytes, loading, thread_s)
        return Stage(loading + node.preprocess_threads - count, node.preprocess_bytes_per_s(sample_bytes, count))

    def loading(self, tally: EpochBytes, stage: Stage, thread_s: Floats, pfs_thread_s: Floats | float) -> list[Floats]:
        """Seconds to load each GPU's batch, shape (T, N * M), where each GPU has threads of its own; else nothing.

        Args:
            thread_s: seconds a byte for one thread, shape (R,), by which threads are assigned.
            pfs_thread_s: the same for the PFS, step by step, shape (T, N, 1).
        """
        if self.traits.own_lanes or self.traits.queues is Queues.POOLED:
            return []
        work = tally.queued[..., 0] * pfs_thread_s + tally.queued[..., 1:] @ thread_s[1:]
        if self.traits.writing is Writing.POOL:
            work = work + self.model.write_s(tally.gpu_bytes)
        return [(work / self._threads(tally, stage, thread_s)).reshape(len(work), -1)]

    def preprocessing(self, tally: EpochBytes, stage: Stage) -> list[Floats]:
        """Seconds to preprocess each GPU's batch, (T, N * M), with as many workers each; nothing if all serve all."""
        if self.preprocess_for_all:
            return []
        work = tally.gpu_bytes * self.node.gpus / stage.preprocess_bytes_per_s
        return [work.reshape(len(work), -1)]

    def _threads(self, tally: EpochBytes, stage: Stage, thread_s: Floats) -> Floats | float:
        """Threads of each queue, (T, N, M) or one number for all: whole ones, while those that are left over idle."""
        if not self.assigned:
            return float(stage.loading // self.node.gpus)
        preprocess_s = tally.gpu_bytes * self.node.gpus / stage.preprocess_bytes_per_s
        threads = divided(tally.queued, thread_s, preprocess_s, self._train_s(tally), stage.loading)
        return threads.astype(np.float64)

    def _train_s(self, tally: EpochBytes) -> float:
        """T_train: how long a step trains on average; the paper takes it as constant."""
        steps = len(tally.queued) * self.model.nodes
        return float(tally.queued.sum()) / steps / self.model.compute_bytes_per_s
