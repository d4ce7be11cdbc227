"""The fast estimate: runs policies on a simulated cluster, epoch by epoch.

In: a `Scenario`, policies, the rule of sharing. Out: a `PolicyResult` for each policy. Called by `mlfs simulate` and
the tests. It is deterministic: a scenario's seed fixes sizes, order and whatever a policy draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mlfs.lab.policies.policy import EpochReads, Policy, View
from mlfs.lab.sim.clock import Clock, Loading, Sharing
from mlfs.lab.sim.order import order_of
from mlfs.lab.sim.scenario import Scenario
from mlfs.lab.sim.tally import EpochBytes, tally
from mlfs.plan.model import Floats, StorageClass
from mlfs.plan.rank_load import Imbalance, imbalance


@dataclass(frozen=True, slots=True)
class EpochResult:
    """One epoch: how long it takes, how long computing alone takes, its PFS bytes, and the least possible."""

    seconds: float
    compute_s: float
    pfs_bytes: float
    bound_bytes: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy.

    Attributes:
        seconds: the simulated run time.
        preload_s: the part of it before the first step.
        compute_s: the run time without stalls.
        stall_s: seconds - compute_s.
        bytes_share, seconds_share: by route, the share of all loaded bytes and of all loading time.
        hit_ratio: by route, local:CLASS or peer:CLASS, the share of all reads; the rest comes from the PFS.
        imbalance: the mean over steps of (slowest - fastest) / slowest loading time, over all GPUs of all nodes.
        imbalanced_steps: the share of steps in which loading takes longer than computing on some GPUs and not on
            others (Lobster, Section 5.3).
        pfs_bytes, bound_bytes: for all epochs; the bound is S in epoch 0, and later S less what all
            nodes together can keep, or 0 (docs/model.md).
    """

    policy: str
    seconds: float
    preload_s: float
    compute_s: float
    stall_s: float
    bytes_share: dict[str, float]
    seconds_share: dict[str, float]
    hit_ratio: dict[str, float]
    imbalance: float
    imbalanced_steps: float
    pfs_bytes: float
    bound_bytes: float
    epochs: tuple[EpochResult, ...]

    @property
    def local(self) -> float:
        """Share of reads from the node's own classes."""
        return sum(share for route, share in self.hit_ratio.items() if route.startswith("local"))

    @property
    def peer(self) -> float:
        """Share of reads from other nodes' classes."""
        return sum(share for route, share in self.hit_ratio.items() if route.startswith("peer"))

    def plain(self) -> dict[str, Any]:
        """The values for JSON, without the policy's name."""
        values = asdict(self)
        values.pop("policy")
        return values


Progress = Callable[[int], None]


class Simulation:
    """A scenario with its sizes and order, made once for all policies."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check_extent()
        self.scenario = scenario
        self.model = scenario.model
        self.sizes: Floats = scenario.sizes_bytes()
        self.order = order_of(scenario, self.sizes)
        self.readers = self.order.readers()

    def run(self, policy: Policy, sharing: Sharing, progress: Progress | None = None) -> PolicyResult:
        """Simulate one policy; `progress` hears of each finished epoch. Raises Unfit where the policy cannot run."""
        view = self.view(sharing)
        account = _Account(self, policy, sharing)
        run = policy.begin(view)
        if run.preload is not None:
            account.preload(run.preload.class_bytes, run.preload.readers)
        for epoch in range(self.model.epochs):
            account.epoch(epoch, run.epoch(epoch, self.order.epoch(epoch)))
            if progress:
                progress(epoch)
        return account.result()

    def view(self, sharing: Sharing) -> View:
        """Everything of this run that a policy may know."""
        return View(
            self.model,
            self.sizes,
            self.readers,
            self._thread_rate(sharing),
            np.random.default_rng([self.scenario.seed, 1 << 32]),
            self.order.kept,
        )

    def _thread_rate(self, sharing: Sharing) -> float:
        """The rate of one prefetch thread at the PFS while all nodes read."""
        share = self.model.pfs_share_bytes_per_s(self.model.nodes)
        if sharing is Sharing.PAPER:
            return share
        return share / (self.model.staging.threads + sum(storage.threads for storage in self.model.classes))


class _Account:
    """Adds up what one policy does, epoch by epoch."""

    def __init__(self, simulation: Simulation, policy: Policy, sharing: Sharing) -> None:
        self.model, self.policy = simulation.model, policy
        self.order = simulation.order
        self.gpus = simulation.scenario.node.gpus
        self.loading = Loading(self.model, policy.traits, sharing, simulation.scenario.node)
        self.padded = np.append(simulation.sizes, 0.0)
        step_bytes = simulation.sizes.mean() * self.model.global_batch / self.model.nodes
        window = int(min(self.model.staging.capacity_bytes / max(step_bytes, 1e-9), simulation.order.steps))
        # Double buffering needs two batches as well, whatever the staging buffer is said to hold.
        self.clock = Clock(policy.traits.overlap, max(2, window))
        self.preload_s, self.preload_bytes = 0.0, 0.0
        routes = 1 + 2 * len(self.model.classes)
        self.bytes, self.seconds, self.counts = np.zeros(routes), np.zeros(routes), np.zeros(routes)
        self.uneven: list[Imbalance] = []
        self.epochs: list[EpochResult] = []

    def preload(self, class_bytes: Floats, readers: int) -> None:
        self.preload_s = self.loading.preload_s(class_bytes, readers)
        self.preload_bytes = float(class_bytes.sum()) * readers
        self.clock.preload(self.preload_s)

    def epoch(self, epoch: int, reads: EpochReads) -> None:
        counted = tally(reads, self.padded, self.model, self.gpus)
        gpu_rate = self.model.compute_bytes_per_s / self.gpus
        compute_s = counted.gpu_bytes.reshape(len(counted.queued), -1) / gpu_rate
        if self.policy.traits.free:
            lanes = np.zeros((len(compute_s), 1, compute_s.shape[1]))
        else:
            lanes = self.loading.lanes(counted)
            # The lanes of a GPU work side by side, so it loads as long as its slowest one.
            self._add(counted, imbalance(lanes.max(axis=1), compute_s))
        before = self.clock.now
        after = self.clock.advance(lanes, compute_s)
        total = float(counted.queued.sum()) - self.order.repeated_bytes(epoch, self.padded[:-1])
        bound = total if epoch == 0 else max(0.0, total - self.model.capacity_bytes)
        pfs = 0.0 if self.policy.traits.free else counted.pfs_bytes
        self.epochs.append(EpochResult(after - before, float(compute_s.max(axis=1).sum()), pfs, bound))

    def _add(self, counted: EpochBytes, uneven: Imbalance) -> None:
        by_route = counted.queued.sum(axis=(0, 1, 2))
        self.bytes += by_route
        self.seconds += by_route * self.loading.cost(counted)
        self.counts += counted.counts
        self.uneven.append(uneven)

    def result(self) -> PolicyResult:
        """The sums, as a record."""
        names = route_names(self.model.classes)
        compute_s = sum(epoch.compute_s for epoch in self.epochs)
        hits = dict(zip(names, (self.counts / max(1.0, self.counts.sum())).tolist(), strict=True))
        return PolicyResult(
            policy=self.policy.name,
            seconds=_rounded(self.clock.now),
            preload_s=_rounded(self.preload_s),
            compute_s=_rounded(compute_s),
            stall_s=_rounded(max(0.0, self.clock.now - compute_s)),
            bytes_share=_shares(names, self.bytes),
            seconds_share=_shares(names, self.seconds),
            hit_ratio={name: share for name, share in hits.items() if name != "pfs"},
            imbalance=float(np.mean([epoch.apart for epoch in self.uneven] or [0.0])),
            imbalanced_steps=float(np.mean([epoch.steps for epoch in self.uneven] or [0.0])),
            pfs_bytes=self.preload_bytes + sum(epoch.pfs_bytes for epoch in self.epochs),
            bound_bytes=sum(epoch.bound_bytes for epoch in self.epochs),
            epochs=tuple(self.epochs),
        )


def route_names(classes: tuple[StorageClass, ...]) -> list[str]:
    """The names of the routes, in the order of a `EpochBytes`."""
    return ["pfs", *(f"peer:{storage.name}" for storage in classes), *(f"local:{storage.name}" for storage in classes)]


def _rounded(seconds: float) -> float:
    """The seconds in ten digits: policies that do the same may add up in another order and differ in the sixteenth."""
    return float(f"{seconds:.10g}")


def _shares(names: list[str], values: Floats) -> dict[str, float]:
    total = float(values.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(names, values, strict=True)}
