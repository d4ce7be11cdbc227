"""Runs the schedulers of all nodes of a scenario's cluster in detail.

In: a `Simulation`, which the fast estimate uses too. Out: a `DetailedResult` to hold beside the estimate's. Called by
`mlfs simulate --detailed` and the tests. Deterministic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mlfs.errors import ConfigError
from mlfs.lab.policies.clairvoyant import placement
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.detailed.cluster import Pipe, SimulatedCluster, SimulatedLedger
from mlfs.lab.sim.detailed.heap import Heap, seldom_collecting
from mlfs.lab.sim.detailed.node import Node
from mlfs.lab.sim.detailed.training import LOADER_STEPS, OrderStreams, Rank, Steps, job_of
from mlfs.lab.sim.run import Simulation
from mlfs.plan.circuit_breaker import Pace
from mlfs.plan.members import Holders, Members
from mlfs.plan.model import PerformanceModel
from mlfs.plan.owners import node_plan
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import DISK, MEMORY, slower_groups
from mlfs.plan.rank_load import imbalance
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.events import HeldBy, JobInstalled, PlacesMeasured, Planned
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.units import format_size

# A node's scheduler, its job and the epochs at hand hold about so many bytes for each sample, and for each peer.
SAMPLE_BYTES = 40
PEER_BYTES = 1000
MOST_BYTES = 8 << 30
LOOK_EVERY_S = 1.0  # as the daemon does
PATIENT_S = 1e9  # nothing fails in this cluster: nobody is to ask twice, however slow it is
Progress = Callable[[int], None]


class NothingMeasured:
    """Measured rates of places (mlfs.plan.scheduler.routing.MeasuredRates): none are, so that no place is ever left."""

    def batch(
        self, pool: int, lanes: int, size_bytes: int, wall_s: float, samples: int = 1, pace_lanes: int = 0
    ) -> None:
        """Not used."""

    def paces(self, pool: int) -> dict[int, Pace]:
        """None."""
        return {}

    def sample(self, pool: int) -> tuple[float, float] | None:
        """None."""
        return None

    def forget_pace(self, pool: int) -> None:
        """Not used."""


@dataclass(frozen=True, slots=True)
class DetailedResult:
    """The result of a run in detail.

    Attributes:
        seconds: simulated run time. epochs_s: by epoch. compute_s: what no stalls would take.
        pfs_bytes: read from the PFS. carried_bytes: of reads that the estimate counts there, and that found the pages
            of an earlier read still in the window.
        pfs_epochs_bytes: the same by the epoch that the bytes were fetched for, which may be one that the run did not
            come to any more. load: by epoch, what the busiest node gave to others over the mean (`SimulatedLedger`).
        imbalance, imbalanced_steps: over all GPUs, as of `mlfs.lab.sim.run.PolicyResult`.
        local, peer: shares of the bytes read that the node's own classes had, or other nodes gave.
        reads, wall_s: reads of samples, and the real seconds that they took.
    """

    seconds: float
    epochs_s: tuple[float, ...]
    pfs_bytes: int
    carried_bytes: int
    pfs_epochs_bytes: tuple[int, ...]
    load: tuple[float, ...]
    imbalance: float
    imbalanced_steps: float
    local: float
    peer: float
    reads: int
    wall_s: float

    def plain(self) -> dict[str, Any]:
        """For JSON: what is the same in every run."""
        values = asdict(self)
        values.pop("wall_s")
        return values


def places_of(model: PerformanceModel, node: int, as_peers: Sequence[PlaceInfo]) -> list[PlaceInfo]:
    """The places of a node: the source, its classes, the other nodes of `as_peers`, which has all of them."""
    threads, capacities = model.staging.threads, model.node_capacities_bytes()[node].tolist()
    return [
        PlaceInfo(PlaceKind.SOURCE, "pfs", threads),
        *(
            PlaceInfo(PlaceKind.SSD if index else PlaceKind.RAM, kind.name, kind.threads, int(capacity))
            for index, (kind, capacity) in enumerate(zip(model.classes, capacities, strict=True))
        ),
        *as_peers[:node],
        *as_peers[node + 1 :],
    ]


class Detailed:
    """A cluster, ready to run. Raises ConfigError for one that would take more memory than `MOST_BYTES`.

    Args:
        epochs: run so many epochs of the job, and leave the others; None for all. The nodes plan for all of them, and
            fetch ahead beyond the last one that is run.
        holder: by sample, the node that holds a copy from an earlier run, -1 for none, shape (F,). Then nodes plan as
            those of a running cluster do (`mlfs.plan.members`).

    Attributes:
        taken_bytes: of samples that nodes have taken over from others, to have even shares.
    """

    def __init__(self, simulation: Simulation, epochs: int | None = None, holder: Holders | None = None) -> None:
        model, gpus = simulation.model, simulation.scenario.node.gpus
        needed = model.nodes * (len(simulation.sizes) * SAMPLE_BYTES + model.nodes * PEER_BYTES)
        if needed > MOST_BYTES:
            raise ConfigError(
                f"the schedulers of {model.nodes} nodes with {len(simulation.sizes):,} samples need about "
                f"{format_size(needed)} of memory in one process",
                f"--shrink {math.ceil(needed / MOST_BYTES)}, or more, makes fewer samples",
            )
        self._model = model
        self._epochs = model.epochs if epochs is None else epochs
        self._sizes = simulation.sizes.astype(np.int64)
        self._streams = OrderStreams(simulation.order, gpus)
        self._heap = Heap()
        self.taken_bytes = 0
        self._fresh = [bytearray(len(self._sizes)) for _ in range(model.nodes)]
        self._reads = self._read_bytes = self._carried_bytes = 0
        rates = [float(kind.read.at(kind.threads)) for kind in model.classes]
        kinds = [PlaceKind.SSD if index else PlaceKind.RAM for index in range(len(rates))]
        slower = slower_groups(kinds, rates)
        levels = [DISK + slower[index] if index else MEMORY for index in range(len(rates))]
        threads = model.staging.threads
        as_peers = [PlaceInfo(PlaceKind.PEER, f"node {node}", threads, node=node) for node in range(model.nodes)]
        places = [places_of(model, node, as_peers) for node in range(model.nodes)]
        self._store_of = {level: 1 + index for index, level in reversed([*enumerate(levels)])}  # its first place
        if holder is None:
            planned = placement(simulation.view(Sharing.CONSERVING))
            owner, plans = planned.owner, [node_plan(planned, node, levels) for node in range(model.nodes)]
        else:
            owner, plans = self._planned(simulation, levels, holder)
        self._unowned = (owner < 0).tolist()
        self._ledger = SimulatedLedger(self._sizes, owner, simulation.readers, model.nodes)
        self.cluster = SimulatedCluster(self._heap, model, places, plans, self._landed)
        limits = Limits(int(model.staging.capacity_bytes), model.staging.threads, PATIENT_S, PATIENT_S, 1 << 62)
        for number in range(model.nodes):
            scheduler = Scheduler(self._sizes.data, places[number], limits, NothingMeasured())
            self.cluster.nodes.append(Node(number, self._heap, scheduler, places[number], self.cluster))
        self._steps = Steps(self._heap, model.nodes * gpus, self._streams.first_step(self._epochs), self._over)
        preprocess_s = model.preprocess_bytes_per_s / gpus
        compute_s_per_byte = gpus / model.compute_bytes_per_s
        self._ranks = [
            Rank(
                self.cluster.nodes[rank // gpus], rank, self._heap, self._batches(rank), self._steps,
                Pipe(preprocess_s), compute_s_per_byte, self._read,
            )
            for rank in range(model.nodes * gpus)
        ]  # fmt: skip
        measured = PlacesMeasured([0.0, *rates, *[0.0] * (model.nodes - 1)])
        for node, plan in zip(self.cluster.nodes, plans, strict=True):  # a node may be asked before its own job begins
            node.tell(measured, Planned(plan))
        if holder is not None:
            self._hold(holder, plans)
            self._look()
        for number, node in enumerate(self.cluster.nodes):
            job = job_of(self._streams, number, gpus, model.nodes, model.epochs, self._sizes)
            node.tell(JobInstalled(job))

    def _planned(self, simulation: Simulation, levels: Sequence[int], holder: Holders) -> tuple[Holders, list[Plan]]:
        """The owner of each sample and each node's plan, as nodes make them that have joined with what they hold."""
        capacities = np.zeros((self._model.nodes, max(DISK, *levels) + 1), dtype=np.int64)
        for index, level in enumerate(levels):
            capacities[:, level] += self._model.node_capacities_bytes()[:, index].astype(np.int64)
        members = Members(tuple(range(self._model.nodes)), 0, tuple(map(tuple, capacities.tolist())))
        shares = members.share(self._sizes, [simulation.readers], holder=holder)
        of_nodes = [replace(members, own=node) for node in members.nodes]
        return shares.owner, [node.own_share(shares, self._sizes, "by who reads").plan for node in of_nodes]

    def _hold(self, holder: Holders, plans: Sequence[Plan]) -> None:
        """Nodes begin with the copies that they have."""
        for node, plan in zip(self.cluster.nodes, plans, strict=True):
            for level, place in self._store_of.items():
                node.finds(place, np.flatnonzero((holder == node.number) & (plan.classes == level)).tolist())

    def _look(self) -> None:
        """Once a second each node tells the others what it has taken over: see `mlfs.engine.shared_plan`."""
        for own, node in enumerate(self.cluster.nodes):
            taken = node.scheduler.keeping.take_over()
            self.taken_bytes += int(self._sizes[taken].sum())
            for other in self.cluster.nodes if len(taken) else ():
                other.tell(HeldBy(-1 if other is node else own, taken))
        if self._steps.done < self._streams.first_step(self._epochs):
            self._heap.at(self._heap.now_s + LOOK_EVERY_S, self._look)

    def _batches(self, rank: int) -> Callable[[int], Sequence[int]]:
        return lambda step: self._streams.batch(rank, step)

    def _over(self, steps: int) -> None:
        for rank in self._ranks:
            rank.may_read(min(steps + LOADER_STEPS, self._streams.first_step(self._epochs)))

    def _landed(self, node: int, sample: int, origin: int) -> None:
        self._fresh[node][sample] = 1
        self._ledger.landed(node, sample, origin)

    def _read(self, node: Node, sample: int) -> None:
        """A sample is read. The owner reads its sample from a class; a sample that nobody owns the estimate reads from
        the PFS."""
        self._reads += 1
        self._read_bytes += int(self._sizes[sample])
        if self._unowned[sample]:
            fresh = self._fresh[node.number]
            if not fresh[sample]:
                self._carried_bytes += int(self._sizes[sample])
            fresh[sample] = 0

    def run(self, progress: Progress | None = None) -> DetailedResult:
        """Run it all; `progress` hears of each finished epoch."""
        began_s = time.perf_counter()
        with seldom_collecting():
            self._run_all(progress)
        assert self._steps.done == self._streams.first_step(self._epochs), "all readers are through"
        ends = [self._steps.ends_s[self._streams.first_step(epoch)] for epoch in range(self._epochs + 1)]
        local, peer = self._shares()
        times = np.array([rank.times_s for rank in self._ranks])  # (GPUs, T, 2)
        uneven = imbalance(times[:, :, 0].T, times[:, :, 1].T)
        return DetailedResult(
            seconds=ends[-1],
            epochs_s=tuple(after - before for before, after in pairwise(ends)),
            pfs_bytes=self.cluster.pfs_bytes,
            carried_bytes=self._carried_bytes,
            pfs_epochs_bytes=tuple(self._ledger.pfs_bytes),
            load=tuple(self._ledger.load(epoch) for epoch in range(self._epochs)),
            imbalance=uneven.apart,
            imbalanced_steps=uneven.steps,
            local=local,
            peer=peer,
            reads=self._reads,
            wall_s=time.perf_counter() - began_s,
        )

    def _run_all(self, progress: Progress | None) -> None:
        self._over(0)
        shown = 0
        while self._heap.step():
            if progress and self._steps.done < self._streams.first_step(self._epochs):
                epoch = self._streams.epoch_of_step(self._steps.done)
                while shown < epoch:
                    progress(shown)
                    shown += 1

    def _shares(self) -> tuple[float, float]:
        """Bytes of own classes and of peers among all that were read.

        A sample in memory is read where it lies. No fetch shows that, so the classes have what no other place gave.
        """
        total, peers = self._read_bytes or 1, 1 + len(self._model.classes)
        peer = sum(sum(of[peers:]) for of in self.cluster.fetched_bytes)
        local = max(0, self._read_bytes - peer - self.cluster.pfs_bytes - self._carried_bytes)
        return local / total, peer / total
