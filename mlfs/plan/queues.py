"""A node of several GPUs, each with a queue of its own: how its threads are divided (Lobster 2022, Sections 4.1-4.4).

Pure. In: what each GPU's batch has to load by route in each step, what one thread gets, how long preprocessing and
training take. Out: threads for preprocessing and for loading, and the loading threads of each queue. Called by
`mlfs.sim.queues` for policies that declare `Queues.ASSIGNED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mlfs.plan.loading import gap_s, loading_s
from mlfs.plan.model import Curve, Floats
from mlfs.plan.threads import (
    PiecewiseLinear,
    Threads,
    assign,
    in_proportion,
    load_s,
    nearest_model,
    preprocessing_threads,
    rates_by_threads,
    topped_up,
)

TOLERANCE = 0.05  # tau, as a share of the training time; the paper says that it "can be fine-tuned as needed"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """What a node has beyond NoPFS's Table 2, which counts nodes.

    Attributes:
        gpus: M, all alike; each trains c / M bytes per second.
        preprocessing: bytes per second by number of threads, measured with samples of that many bytes; empty where it
        is not known, and then threads are not moved between preprocessing and loading.
        preprocess_threads: threads that preprocess unless a policy decides otherwise.
    """

    gpus: int = 1
    preprocessing: Mapping[float, Curve] = field(default_factory=dict)
    preprocess_threads: int = 0

    def models(self) -> dict[float, PiecewiseLinear]:
        """The portfolio of Section 4.1: seconds for a byte by number of threads, for samples of several sizes."""
        portfolio = {}
        for size_bytes, curve in self.preprocessing.items():
            threads, rates = np.array(curve.points).T
            portfolio[size_bytes] = PiecewiseLinear.fit(threads, 1.0 / rates)
        return portfolio

    def preprocess_bytes_per_s(self, sample_bytes: float, threads: int) -> float:
        """What that many threads preprocess of samples of about that size."""
        nearest = min(self.preprocessing, key=lambda known: (abs(known - sample_bytes), known))
        return float(self.preprocessing[nearest].at(threads))


@dataclass(frozen=True, slots=True)
class Batch:
    """A GPU's usual batch, by which threads are moved: bytes by route (R,), seconds of training."""

    route_bytes: Floats
    train_s: float

    @property
    def size_bytes(self) -> float:
        """All of it."""
        return float(self.route_bytes.sum())


def coordinated(
    node: GpuNode, batch: Batch, sample_bytes: float, loading: int, thread_s: Callable[[int], Floats]
) -> int:
    """Section 4.1: how many of the node's threads preprocess; the others load.

    Step 1: the fewest threads that reach the peak. Step 2: while load + preprocess takes longer than training, one
    thread less, unless preprocessing alone would then be the bottleneck, or the sum would not fall (a PFS that is the
    limit is not helped by threads; the paper leaves this open).

    Args:
        loading: threads that load before any is moved. thread_s: by how many threads load, (R,) seconds a byte for one
        of them.
    """
    every = loading + node.preprocess_threads
    model = nearest_model(node.models(), sample_bytes)

    def preprocess_s(threads: int) -> float:
        return batch.size_bytes * model.at(threads) * node.gpus

    def gap_with(threads: int) -> float:
        rates = linear_rates(thread_s(every - threads), every - threads)
        own = [(every - threads) / node.gpus] * len(rates)
        load = float(loading_s(batch.route_bytes.tolist(), own, rates))
        return gap_s(load, preprocess_s(threads), batch.train_s)

    count = preprocessing_threads(model, every - node.gpus)
    while count > 1 and gap_with(count) > 0:
        if preprocess_s(count - 1) > batch.train_s or gap_with(count - 1) >= gap_with(count):
            break
        count -= 1
    return count


def linear_rates(thread_s: Floats, threads: int) -> list[Curve]:
    """Aggregate bandwidth of each route if each thread takes `thread_s` seconds for a byte."""
    return [Curve(((float(threads), threads / cost),)) for cost in thread_s.tolist()]


def divided(
    queued: Floats, thread_s: Floats, preprocess_s: Floats, train_s: float, threads: int, tolerance: float = TOLERANCE
) -> Threads:
    """Loading threads of each GPU's queue in each step, all of them given out.

    In proportion to the queues where no GPU of the node is predicted to be late (Section 4.2), else by Algorithm 1
    (Section 4.4); what that leaves over goes to whoever has most to load for each thread.

    Args:
        queued: (T, N, M, R) bytes by route. thread_s: (R,) seconds a byte for one thread. preprocess_s: (T, N, M).
        train_s: of a step. threads: of a node, at least M. tolerance: tau / train_s.

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
