"""Nodes of several GPUs: the work of each GPU's queue, beside the work of the node as a whole.

In: an `EpochBytes`, what one loading thread gets, a policy's traits. Out: how a node's threads are used, and lanes of
each GPU. Called by `mlfs.lab.sim.clock`. Source: Lobster (2022), Sections 4.1 to 4.4.

A queue with k of the node's P threads gets k / P of what the node gets. The node's own lanes stand beside those of its
queues: however threads are divided, and whichever queue runs ahead, a node never loads faster than all its threads do.
Preprocessing is a node's own only where the same threads serve all GPUs; else each GPU has as many workers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mlfs.lab.policies.policy import Queues, Traits, Writing
from mlfs.lab.sim.tally import EpochBytes
from mlfs.plan.model import Curve, Floats, PerformanceModel
from mlfs.plan.threads import (
    TOLERANCE,
    PiecewiseLinear,
    Threads,
    assign,
    in_proportion,
    load_s,
    preprocessing_threads,
    rates_by_threads,
    topped_up,
)

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


# -- how the threads of a node are divided among the queues of its GPUs (Lobster 2022, 4.1 to 4.4)
#
# In: what each GPU's batch has to load by route in each step, what one thread gets, how long preprocessing and training
# take. Out: threads for preprocessing and for loading, and the loading threads of each queue. For policies that declare
# `Queues.ASSIGNED`.


@dataclass(frozen=True, slots=True)
class GpuNode:
    """Values of a node of several GPUs besides those of NoPFS's Table 2, which knows nodes only.

    Attributes:
        gpus: M, all alike; each trains c / M bytes per second.
        preprocessing: by size of the samples in bytes, how many bytes per second some threads preprocess. It is empty
            where that was not measured; then no threads are moved between preprocessing and loading.
        preprocess_threads: how many threads preprocess, unless a policy decides otherwise.
    """

    gpus: int = 1
    preprocessing: Mapping[float, Curve] = field(default_factory=dict)
    preprocess_threads: int = 0

    def preprocessing_model(self, sample_bytes: float) -> PiecewiseLinear:
        """Seconds for a byte by number of threads: of the portfolio of Section 4.1 the model of the nearest size."""
        threads, rates = np.array(self._of_size(sample_bytes).points).T
        return PiecewiseLinear.fit(threads, 1.0 / rates)

    def preprocess_bytes_per_s(self, sample_bytes: float, threads: int) -> float:
        """How much that many threads preprocess of samples of about that size."""
        return float(self._of_size(sample_bytes).at(threads))

    def _of_size(self, sample_bytes: float) -> Curve:
        nearest = min(self.preprocessing, key=lambda known: (abs(known - sample_bytes), known))
        return self.preprocessing[nearest]


@dataclass(frozen=True, slots=True)
class Batch:
    """The usual batch of a GPU, by which it is decided how many threads preprocess.

    Attributes:
        route_bytes: what it loads by each route, shape (R,).
        train_s: how long it trains.
    """

    route_bytes: Floats
    train_s: float

    @property
    def size_bytes(self) -> float:
        """Bytes that it loads by all routes."""
        return float(self.route_bytes.sum())


def coordinated(
    node: GpuNode, batch: Batch, sample_bytes: float, loading: int, thread_s: Callable[[int], Floats]
) -> int:
    """Section 4.1: how many of the node's threads preprocess; the others load.

    It begins with the fewest threads that reach the peak of preprocessing. While loading and preprocessing together
    take longer than training, it moves one thread to loading. It stops when preprocessing alone would become the
    bottleneck, or when the sum does not fall any more: more threads do not help a PFS that is the limit. The paper
    leaves this last case open.

    Args:
        loading: how many threads load before any is moved.
        thread_s: given how many threads load, the seconds that one of them takes for a byte of each route, shape (R,).
    """
    every = loading + node.preprocess_threads
    model = node.preprocessing_model(sample_bytes)

    def preprocess_s(threads: int) -> float:
        return batch.size_bytes * model.at(threads) * node.gpus

    def gap_with(threads: int) -> float:
        rates = linear_rates(thread_s(every - threads), every - threads)
        own = [(every - threads) / node.gpus] * len(rates)
        load = float(loading_s(batch.route_bytes.tolist(), own, rates))
        return gap_s(load, preprocess_s(threads), batch.train_s)

    count = preprocessing_threads(model.at, every - node.gpus)
    while count > 1 and gap_with(count) > 0:
        if preprocess_s(count - 1) > batch.train_s or gap_with(count - 1) >= gap_with(count):
            break
        count -= 1
    return count


def linear_rates(thread_s: Floats, threads: int) -> list[Curve]:
    """The aggregate bandwidth of each route, if each thread takes `thread_s` seconds for a byte."""
    return [Curve(((float(threads), threads / cost),)) for cost in thread_s.tolist()]


def divided(
    queued: Floats, thread_s: Floats, preprocess_s: Floats, train_s: float, threads: int, tolerance: float = TOLERANCE
) -> Threads:
    """How many threads load for each GPU's queue in each step; all of them are given out.

    Threads are divided in proportion to the queues where no GPU of the node is predicted to be late (Section 4.2).
    Otherwise Algorithm 1 divides them (Section 4.4), and threads that it leaves over go to the GPU that has most to
    load for each thread.

    Args:
        queued: (T, N, M, R) bytes by route.
        thread_s: (R,) seconds that one thread takes for a byte.
        preprocess_s: (T, N, M).
        train_s: the training time of a step.
        threads: those of a node, at least M.
        tolerance: tau / train_s.

    Returns:
        (T, N, M).
    """
    rates = linear_rates(thread_s, threads)
    table = rates_by_threads(rates, threads)
    dealt = in_proportion(queued.sum(axis=-1), threads)
    late = load_s(queued, table, dealt) + preprocess_s - train_s
    straggling = (late >= tolerance * train_s).any(axis=-1)
    if straggling.any():
        late_ones = queued[straggling]
        chosen = assign(late_ones, rates, preprocess_s[straggling], train_s, threads, tolerance * train_s)
        dealt[straggling] = topped_up(chosen, late_ones @ thread_s, threads)
    return dealt


# -- how long a GPU's mini-batch takes to load with some number of threads on each route, and how far that is from ideal
#
# In: bytes by route, threads, throughput curves. Out: seconds.
#
# Source: Lobster (Liu et al., ICPP'22), Section 4.3, equations 1 and 2. T_l, T_r and T_PFS are throughputs of one
# thread while that many work. The curves of mlfs.plan.model are those of all threads together, so alpha T_l(alpha) is
# one call.


def loading_s(size_bytes: Iterable[float], threads: Iterable[float], throughput: Iterable[Curve]) -> float:
    """T_L = B_HL / (alpha T_l(alpha)) + B_HR / (beta T_r(beta)) + B_M / (gamma T_PFS(gamma)) (eq. 1).

    All arguments are by route: the node's cache, other nodes', the PFS. The time is infinite when bytes have to come by
    a route that has no thread.

    Args:
        throughput: of all threads of the route together: alpha T_l(alpha), beta T_r(beta), gamma T_PFS(gamma).
    """
    total = 0.0
    for size, count, curve in zip(size_bytes, threads, throughput, strict=True):
        if size > 0:
            rate = float(curve.at(count)) if count > 0 else 0.0
            total += size / rate if rate > 0 else float("inf")
    return total


def gap_s(load_s: float, preprocess_s: float, train_s: float) -> float:
    """T_L + T_P - T_train, whose absolute value eq. 2 minimises for each GPU. Above 0 the GPU waits."""
    return load_s + preprocess_s - train_s
