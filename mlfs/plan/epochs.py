"""The least time that a run takes, epoch by epoch, from sizes and bandwidths alone.

Pure. In: the performance model, the data set's bytes, the time to compute an epoch. Out: seconds, stalls, bytes by
route, and which resource is the bottleneck. Called by `mlfs plan` before a cluster is bought, and by
mlfs.measure.speeds while a mount runs.

It is the bound of docs/model.md in seconds. The first epoch brings every byte from the PFS, each later one what does
not fit in the N * D bytes of the caches, or, where nodes do not share them, what a node has not kept of its own reads
(mlfs.plan.epochs). PFS, network and classes work side by side, so the slowest of them is the bottleneck (Yang and
Cong, Section III: the true cost is the larger of training and loading).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.model import PerformanceModel
from mlfs.plan.placement import pfs_bound_bytes

COMPUTE, PFS, NETWORK = "compute", "pfs", "network"


@dataclass(frozen=True, slots=True)
class Workload:
    """The samples that are read, and the computing of a run.

    Attributes:
        data_bytes: S, the size of all samples, each counted once.
        read_bytes: what all nodes together read in an epoch.
        compute_s: the time to compute an epoch.
        epochs: E, 1 or more.
        shared: whether nodes give each other what they keep; otherwise each node has its own caches alone.
    """

    data_bytes: float
    read_bytes: float
    compute_s: float
    epochs: int
    shared: bool


class EpochCost(NamedTuple):
    """The cost of one epoch. Bytes are those of all nodes together.

    Attributes:
        seconds: how long it takes.
        compute_s: how much of that is computing.
        pfs_bytes: what comes from the PFS.
        peer_bytes: what comes from other nodes.
        class_bytes: what comes from the reader's own node, by name of the class.
        busy_s: how long each resource works: `compute`, `pfs`, `network`, and the classes by their names.
    """

    seconds: float
    compute_s: float
    pfs_bytes: float
    peer_bytes: float
    class_bytes: dict[str, float]
    busy_s: dict[str, float]

    @property
    def stall_s(self) -> float:
        """How long computing waits for data."""
        return self.seconds - self.compute_s

    @property
    def rules(self) -> str:
        """The resource that is busy longest."""
        return max(self.busy_s, key=lambda name: (self.busy_s[name], name == COMPUTE))


class RunCost(NamedTuple):
    """A whole run: the first epoch, and each of the others."""

    first: EpochCost
    later: EpochCost
    epochs: int

    @property
    def seconds(self) -> float:
        """How long all epochs take."""
        return self.first.seconds + (self.epochs - 1) * self.later.seconds

    @property
    def stall_s(self) -> float:
        return self.first.stall_s + (self.epochs - 1) * self.later.stall_s

    @property
    def pfs_bytes(self) -> float:
        """Bytes from the PFS in all epochs."""
        return self.first.pfs_bytes + (self.epochs - 1) * self.later.pfs_bytes


def held_bytes(model: PerformanceModel, work: Workload) -> dict[str, float]:
    """Distinct bytes that each class can keep, fastest class first; the rest stays on the PFS.

    The sum over all nodes where they share their caches; else that of one node.
    """
    left, held = work.data_bytes, {}
    for storage in model.classes:
        nodes = model.nodes if work.shared else 1
        held[storage.name] = min(left, nodes * storage.capacity_bytes)
        left -= held[storage.name]
    return held


def _first(model: PerformanceModel, work: Workload) -> EpochCost:
    """The first epoch: every sample comes from the PFS once. Read again in it, a sample is kept if there was room."""
    again = max(0.0, work.read_bytes - work.data_bytes)
    missing = _missing_bytes(model, work) / work.data_bytes
    return _cost(model, work, min(work.data_bytes, work.read_bytes) + again * missing, 0.0, {})


def _missing_bytes(model: PerformanceModel, work: Workload) -> int:
    """How much of the data set the caches have no room for."""
    nodes = model.nodes if work.shared else 1
    return pfs_bound_bytes(round(work.data_bytes), round(model.node_capacity_bytes), nodes)


def _later(model: PerformanceModel, work: Workload) -> EpochCost:
    """Any later epoch: what the caches keep comes from them, from the own node's as far as they reach."""
    if not work.shared and model.nodes > 1:
        return _later_alone(model, work)
    scale = work.read_bytes / work.data_bytes if work.data_bytes else 0.0
    missing = _missing_bytes(model, work) * scale
    left = work.read_bytes - missing
    by_class: dict[str, float] = {}
    for storage in model.classes:
        # A node's class holds this much of the data, and the node's reads are spread over all of the data.
        own = min(left, storage.capacity_bytes * scale) if work.data_bytes else 0.0
        by_class[storage.name] = own
        left -= own
    return _cost(model, work, missing, max(0.0, left), by_class)


def _later_alone(model: PerformanceModel, work: Workload) -> EpochCost:
    """The mean of the later epochs where each node has its own caches alone, and keeps what it reads most."""
    by_class: dict[str, float] = {}
    kept = hits = 0.0
    for storage in model.classes:  # the fastest first: it holds what is read most
        kept += storage.capacity_bytes / work.data_bytes
        before, hits = hits, hit_share(work.epochs, model.nodes, kept)
        by_class[storage.name] = (hits - before) * work.read_bytes
    return _cost(model, work, (1.0 - hits) * work.read_bytes, 0.0, by_class)


def _cost(
    model: PerformanceModel, work: Workload, pfs_bytes: float, peer_bytes: float, by_class: dict[str, float]
) -> EpochCost:
    nodes = model.nodes
    busy = {COMPUTE: work.compute_s, PFS: pfs_bytes / nodes / model.pfs_share_bytes_per_s(nodes)}
    if peer_bytes:
        busy[NETWORK] = peer_bytes / nodes / model.network_bytes_per_s
    for storage in model.classes:
        # Samples that other nodes ask for are read from the same classes, in proportion to what each holds.
        share = storage.capacity_bytes / model.node_capacity_bytes if model.node_capacity_bytes else 0.0
        read = by_class.get(storage.name, 0.0) + share * peer_bytes
        if read:
            busy[storage.name] = read / nodes / float(storage.read.at(storage.threads))
    return EpochCost(max(busy.values()), work.compute_s, pfs_bytes, peer_bytes, by_class, busy)


def run_cost(model: PerformanceModel, work: Workload) -> RunCost:
    """The first epoch and the others.

    Raises:
        ValueError: no epochs, no bytes, or times below 0.
    """
    if work.epochs < 1 or not work.data_bytes > 0 or work.read_bytes < 0 or work.compute_s < 0:
        raise ValueError(f"nothing to plan: {work}")
    return RunCost(_first(model, work), _later(model, work), work.epochs)


# -- how often a node reads a sample over a whole run, and how many of its reads its own caches answer
#
# In: how many epochs and nodes there are, what share of the samples a node keeps. Out: probabilities, and a share of
# reads. The policies place by the true frequencies, of which these are the expectation.
#
# Every epoch is taken to deal all F samples to the N nodes at random. Source: NoPFS (Dryden et al., SC'21), Section
# 3.1: a node reads a sample X ~ Binomial(E, 1/N) times in E epochs, and F * P(X > m) samples more than m times:
# 31,634.69 for N = 16, E = 90, F = 1,281,167 and m = 10 (published: 31,635). Dealing without replacement changes no
# expectation.
#
# Lemma: if one node reads a sample ceil((1+d) E/N) times, some other one reads it at most ceil((N-1-d)/(N-1) E/N)
# times. With r reads here E - r are left for N - 1 nodes, so one of them has at most floor((E-r)/(N-1)); as r >= (1+d)
# E/N, that is at most (E/N) (N-1-d)/(N-1). So what one node reads often, others read seldom.


@lru_cache(maxsize=8)
def chances_above(epochs: int, nodes: int) -> npt.NDArray[np.float64]:
    """P(X > m) for m = 0 .. epochs, X ~ Binomial(epochs, 1/nodes): a node reads a sample more than m times.

    Raises:
        ValueError: no epochs or no nodes.
    """
    if epochs < 1 or nodes < 1:
        raise ValueError(f"{epochs} epochs on {nodes} nodes: at least one of each is needed")
    if nodes == 1:
        return np.append(np.ones(epochs), 0.0)
    k = np.arange(epochs + 1)
    log_factorial = np.append(0.0, np.cumsum(np.log(k[1:])))
    log_chosen = log_factorial[-1] - log_factorial - log_factorial[::-1]
    chances = np.exp(log_chosen - k * np.log(nodes) + (epochs - k) * np.log1p(-1.0 / nodes))
    above: npt.NDArray[np.float64] = np.append(np.cumsum(chances[:0:-1])[::-1], 0.0)
    return above.clip(0.0, 1.0)


def hit_share(epochs: int, nodes: int, kept_share: float) -> float:
    """The share of a node's reads after the first epoch for which it has kept the sample itself.

    The node keeps the samples that it reads most, each from its own first read on. A sample that is read X times is
    then found X - 1 times: once for each m >= 1 with X > m. The share of all samples that are kept and read more than m
    times is at most min(kept_share, P(X > m)), and whoever keeps the most-read ones reaches that for every m at once.

    Args:
        epochs: 1 or more; with a single one nothing is read after it, and the answer is 0.
        kept_share: of all samples, what the node has room for; 1 and more: for all.
    """
    if epochs == 1:
        return 0.0
    hits = np.minimum(kept_share, chances_above(epochs, nodes)[1:]).sum()
    return float(hits) * nodes / (epochs - 1)
