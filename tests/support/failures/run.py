"""Runs a case: builds its nodes, starts its readers, lets its faults strike, and checks that all holds.

In: a case. Out: an `Outcome`, the same whenever the same case runs; `Broken`, or whatever the scheduler raised, for one
that fails. `shrunk` finds a smaller case that fails too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt

from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.lab.sim.detailed.heap import Heap, seldom_collecting
from mlfs.lab.sim.detailed.node import Node
from mlfs.measure.rates import Rates
from mlfs.orders.streams import JobStreams
from mlfs.plan.owners import node_plan, place
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import DISK, MEMORY, NOWHERE
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.served.partition import footprints
from mlfs.served.refill import Refill, refill_of
from support.failures.agents import Agents
from support.failures.drawing import (
    LARGEST_WHOLE_BYTES,
    OF_A_GET,
    OF_AGENTS,
    Case,
    Fault,
    Habits,
    JobCase,
    Stranger,
    simpler,
)
from support.failures.invariants import Broken, Watch
from support.failures.plain import plain
from support.failures.reading import Reader, worker_samples
from support.failures.world import FailingWorld, NodeStore

# Far more events than any case needs. A run that needs more never comes to an end.
MOST_EVENTS = 100_000
PARENT = 1_000_000
STRANGER, STRANGER_PARENT = 7777, 7
# The source gives a sample within so long, also where a fault makes it late.
SOURCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case came to: a hash of all commands, how many steps, reads and refusals there were, simulated seconds."""

    trace: str
    steps: int
    reads: int
    refused: int
    seconds: float


class CaseStreams:
    """The streams of a drawn job: permutations of its samples, dealt to the ranks of all nodes.

    Those of every third job are in rounds, as of an order that is served where no node keeps anything.
    """

    files_per_sample = 1

    def __init__(self, job: JobCase, nodes: int, sizes: Sequence[int], window_bytes: int) -> None:
        world = job.ranks_a_node * nodes
        self.batch_files = job.batch
        self.sample_ids = np.arange(job.first, job.first + job.count, dtype=np.int64)
        generator = np.random.default_rng(job.order)
        self._length = length = -(-job.count // world)
        self._rounds = np.unique([0, length // 3, 2 * length // 3]) if job.order % 3 == 0 else None
        self._sizes = np.array(sizes, dtype=np.int64)
        self._buffer_bytes = window_bytes // 2
        self._epochs = np.full((job.epochs, world, self._length), -1, dtype=np.int64)
        for epoch in range(job.epochs):
            order = generator.permutation(self.sample_ids)
            for rank in range(world):
                mine = order[rank::world]
                self._epochs[epoch, rank, : len(mine)] = mine

    def length(self, epoch: int) -> int:
        """Samples a rank."""
        return self._length

    def epoch_ids(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        """A rank's stream."""
        ids: npt.NDArray[np.int64] = self._epochs[epoch, rank]
        return ids

    def refill(self, epoch: int, ranks: Sequence[int]) -> Refill | None:
        """What is fetched in the order of the tree."""
        if self._rounds is None:
            return None
        places = [self.epoch_ids(epoch, rank) for rank in ranks]
        rooms = [footprints(self._sizes[np.maximum(ids, 0)]) for ids in places]
        return refill_of(places, rooms, self._rounds, self._buffer_bytes)


def job_run(
    job: JobCase, streams: CaseStreams, node: int, nodes: int, sizes: npt.NDArray[np.int64],
    begins: tuple[int, int] = (0, 0),
) -> JobRun:  # fmt: skip
    """A drawn job as a node follows it. Args: begins: at which epoch and step."""
    spec = JobSpec.model_construct(
        {"name", "epochs", "world_size"}, name=job.name, epochs=job.epochs, world_size=job.ranks_a_node * nodes,
        ranks=tuple(range(node * job.ranks_a_node, (node + 1) * job.ranks_a_node)), batch_size=job.batch,
        sampler="explicit", start_epoch=begins[0], start_step=begins[1],
    )  # fmt: skip
    return JobRun(spec, cast(JobStreams, streams), sizes)


class Trial:
    """One run of a case.

    Attributes:
        all_readers: every process that has read, those that are through too.
    """

    def __init__(self, case: Case, most_events: int = MOST_EVENTS) -> None:
        self.case, self._most_events = case, most_events
        self.heap = Heap()
        self._hash = hashlib.blake2b(digest_size=16)
        self._streams = {job.name: CaseStreams(job, case.nodes, case.sizes, case.window_bytes) for job in case.jobs}
        self._plans = self._plan()
        of_gets = [fault for fault in case.faults if fault.kind in OF_A_GET]
        self.world = FailingWorld(self.heap, Random(case.seed), of_gets, len(case.sizes), self)
        self._watches: list[Watch] = []
        self._readers: list[list[Reader]] = [[] for _ in range(case.nodes)]
        self._followed: list[dict[str, JobRun]] = [{} for _ in range(case.nodes)]
        self._active = 0  # readers that read, faults that are to come or under way
        self.all_readers: list[Reader] = []
        self.steps = 0
        self.agents: Agents | None = None
        # A lane's fetch that hangs, then the place, asked twice; beside it drops and messages that take their time.
        self._patience_s = 2 * case.hedge_s + case.timeout_s + 0.5
        for number in range(case.nodes):
            places = self._places(number)
            sizes = np.array(case.sizes, dtype=np.int64)
            self.world.stores.append(NodeStore(places, sizes.data))
            self._make_node(number, places)
        if case.agents is not None:
            self.agents = Agents(self.heap, Random(case.seed), case.agents, case.nodes, self.world)
            self.world.join(self.agents)
            self._patience_s = self._patience_with(self.agents)

    def _patience_with(self, agents: Agents) -> float:
        """How long a reader may wait in a cluster with agents: for the peer, then for the source."""
        kinds = {fault.kind for fault in self.case.faults}
        again = 2 if kinds & {"outdated", "resized", "pages_lost"} else 1  # what became outdated is got once more
        return again * (agents.longest_wait_s(kinds) + SOURCE_S)

    # -- building

    def _places(self, number: int) -> list[PlaceInfo]:
        case, kinds = self.case, (PlaceKind.RAM, PlaceKind.SSD)
        return [
            PlaceInfo(PlaceKind.SOURCE, "pfs", case.lanes),
            *(
                PlaceInfo(kind, f"class {index}", case.lanes, room)
                for index, (kind, room) in enumerate(zip(kinds, case.capacities_bytes(number), strict=False))
            ),
            *(PlaceInfo(PlaceKind.PEER, f"node {n}", case.lanes, node=n) for n in range(case.nodes) if n != number),
        ]

    def _plan(self) -> list[Plan | None]:
        case = self.case
        if not case.planned or not case.class_bytes:
            return [None] * case.nodes
        rows = []
        for job in case.jobs:
            streams = self._streams[job.name]
            for epoch in range(job.epochs):
                row = np.full(len(case.sizes), 255, dtype=np.uint8)
                for rank in range(job.ranks_a_node * case.nodes):
                    ids = streams.epoch_ids(epoch, rank)
                    row[ids[ids >= 0]] = rank // job.ranks_a_node
                rows.append(row)
        readers = np.array(rows, dtype=np.uint8).reshape(-1, len(case.sizes))
        capacities = np.array([case.capacities_bytes(number) for number in range(case.nodes)], dtype=np.float64)
        if not rows:
            return [None] * case.nodes
        placed = place(np.array(case.sizes, dtype=np.float64), readers, case.nodes, capacities)
        levels = (MEMORY, DISK)[: len(case.class_bytes)]
        plans = [node_plan(placed, number, levels) for number in range(case.nodes)]
        if case.nodes > 1:
            return list(plans)
        if len(case.class_bytes) == 1 and sum(case.sizes) % 2:  # half of the nodes with memory only evict
            reads = (readers != 255).sum(axis=0)
            return [Plan(np.full(len(case.sizes), NOWHERE, dtype=np.int8), evicts_by=reads)]
        return [Plan(plans[0].classes)]

    def _make_node(self, number: int, places: Sequence[PlaceInfo]) -> None:
        """A node that begins, or comes back: what its disks held is found."""
        case, store = self.case, self.world.stores[number]
        limits = Limits(case.window_bytes, 0, case.hedge_s, case.timeout_s, LARGEST_WHOLE_BYTES)
        scheduler = Scheduler(store.sizes, places, limits, Rates())
        watch = Watch(scheduler, places)
        node = Node(number, self.heap, scheduler, places, self.world, self._traced(number, watch))
        if number < len(self.world.nodes):
            self.world.nodes[number], self._watches[number] = node, watch
        else:
            self.world.nodes.append(node)
            self._watches.append(watch)
        for place_number, copies in enumerate(store.copies):
            if copies:
                node.tell(e.CopiesFound(place_number, tuple(copies)))
        node.tell(e.Planned(self._plans[number]))

    def _traced(self, number: int, watch: Watch) -> Callable[[Sequence[e.Event], Sequence[c.Command]], None]:
        def trace(events: Sequence[e.Event], commands: Sequence[c.Command]) -> None:
            self.steps += 1
            for command in commands:
                self._hash.update(f"{number} {self.heap.now_s:.9f} {plain(command)}\n".encode())
            watch.step(self.heap.now_s, events, commands)

        return trace

    def _run_of(self, job: JobCase, number: int, begins: tuple[int, int] = (0, 0)) -> JobRun:
        sizes = np.array(self.world.stores[number].sizes, dtype=np.int64)
        run = job_run(job, self._streams[job.name], number, self.case.nodes, sizes, begins)
        self._followed[number][job.name] = run
        return run

    def plan_of(self, node: int) -> Plan | None:
        """See Wiring."""
        return self._plans[node]

    def job_began_anew(self, node: Node, job: JobRun) -> None:
        """See Wiring."""
        case = next(one for one in self.case.jobs if one.name == job.name)
        node.tell(e.JobInstalled(self._run_of(case, node.number)))

    # -- readers

    def _begin_job(self, number: int, job: JobCase) -> None:
        """A node hears of a job, and its processes begin to read."""
        node = self.world.nodes[number]
        if node.lives:
            node.tell(e.JobInstalled(self._run_of(job, number)))
            self._begin_workers(node, job, 0)
        self._less()

    def _begin_workers(self, node: Node, job: JobCase, run: int) -> None:
        for local in range(job.ranks_a_node):
            if local in job.elsewhere:
                continue
            rank = node.number * job.ranks_a_node + local
            streams = self._streams[job.name]
            stream = [streams.epoch_ids(epoch, rank).tolist() for epoch in range(job.epochs)]
            for worker in range(job.habits.workers):
                random = Random(f"{job.order} {rank} {worker} {run}")
                samples = worker_samples(stream, job.batch, worker, job.habits, random)
                process = 1 + worker + 10 * (local + 10 * (self.case.jobs.index(job) + 10 * run))
                again = job.habits.starts_again and bool(job.habits.stop_after) and run == 0 and worker == 0
                done = self._worker_again(node, job) if again else self._less
                self._start(node, Reader(self.heap, self.world, node, process, PARENT + process // 10, samples,
                                         job.habits, done))  # fmt: skip

    def _worker_again(self, node: Node, job: JobCase) -> Callable[[], None]:
        """What happens when the first worker of a rank stops early: the script is started again."""

        def again() -> None:
            if node.lives:
                self._begin_workers(node, job, 1)
            self._less()

        return again

    def _start(self, node: Node, reader: Reader) -> None:
        self._active += 1
        self.all_readers.append(reader)
        self._readers[node.number].append(reader)
        self.heap.at(self.heap.now_s, reader.go_on)

    def _less(self) -> None:
        """A reader or a fault has come to its end. After the last one the jobs end, and the run comes to rest."""
        self._active -= 1
        if not self._active:
            if self.agents is not None:
                self.agents.readers_are_through()
            for node in self.world.nodes:
                for job in self.case.jobs:
                    node.tell(e.JobEnded(job.name))

    def _begin_stranger(self, stranger: Stranger, begun: int) -> None:
        """The stranger's first process begins, or the next one where `begun` processes have ended."""
        random, count = Random(stranger.order), len(self.case.sizes)
        samples = [at % count if stranger.walks else random.randrange(count) for at in range(stranger.reads)]
        mine = samples[begun * stranger.a_process :][: stranger.a_process or None]
        goes_on = bool(stranger.a_process) and (begun + 1) * stranger.a_process < stranger.reads
        node, habits = self.world.nodes[stranger.node], Habits(think_s=stranger.think_s)

        def done() -> None:
            if goes_on and node.lives:
                self._begin_stranger(stranger, begun + 1)
            self._less()

        process, parent = STRANGER + begun, STRANGER_PARENT + self.case.strangers.index(stranger)
        self._start(node, Reader(self.heap, self.world, node, process, parent, iter(mine), habits, done))

    # -- faults that strike at a time

    def _strike(self, fault: Fault) -> None:
        node, case = self.world.nodes[fault.node], self.case
        sample = fault.which % len(case.sizes)
        until_s = self.heap.now_s + fault.lasts_s
        if fault.kind == "copy_lost":
            self.world.lose_copy(node, sample)
        elif fault.kind == "pages_lost":
            node.tell(e.PagesLost(self.world.take_pages_back(node, sample)))
        elif fault.kind in ("outdated", "resized"):
            size = (fault.which * 37) % (4 * 4096) if fault.kind == "resized" else node.sizes[sample]
            self.world.change(sample, size)
        elif fault.kind == "stop":
            node.tell(e.Stopped(True))
            self.heap.at(until_s, node.tell, e.Stopped(False))
        elif fault.kind == "slow":
            slow = fault.which % (1 + len(case.class_bytes))
            self.world.slow[fault.node, slow] = 30.0
            self.heap.at(until_s, self.world.fast_again, fault.node, slow)
        elif fault.kind == "unreachable":
            self.world.unreachable_until_s[fault.node] = until_s
            self._tell_peers(fault.node, lost=True)
            self.heap.at(until_s, lambda: self._tell_peers(fault.node, lost=False))
        elif fault.kind == "crash" and node.lives:
            self._crash(node, until_s)
        elif fault.kind == "server_killed" and node.lives:
            self._kill_server(node, until_s)
        elif fault.kind == "others_crash":
            for other in self.world.nodes:
                if other is not node and other.lives:
                    self._crash(other, until_s)
        elif self.agents is not None and fault.kind in OF_AGENTS:
            self.agents.strike(fault, until_s)
        elif fault.kind == "other_plan" and self._plans[fault.node] is not None:
            node.tell(e.Planned(self._other_plan(fault.node)))
            self.heap.at(until_s, lambda: node.tell(e.Planned(self._plans[fault.node])))
        elif case.jobs and fault.kind == "end_job":
            name = case.jobs[fault.which % len(case.jobs)].name
            self._followed[fault.node].pop(name, None)
            node.tell(e.JobEnded(name))
        elif case.jobs and fault.kind == "install_again":
            job = case.jobs[fault.which % len(case.jobs)]
            node.tell(e.JobInstalled(self._run_of(job, fault.node)))
        self.heap.at(until_s, self._less)

    def _other_plan(self, number: int) -> Plan:
        """The plan of a node that does not know the same jobs as the others: it names other owners."""
        plan = self._plans[number]
        assert plan is not None
        owner = None if plan.owner is None else ((plan.owner + 1) % self.case.nodes).astype(np.int16)
        return Plan(np.full_like(plan.classes, NOWHERE), owner)

    def _tell_peers(self, number: int, lost: bool) -> None:
        """A node is not reached any more, or again: it and the others notice."""
        for node, store in zip(self.world.nodes, self.world.stores, strict=True):
            for peer, info in enumerate(store.places):
                if info.node >= 0 and number in (node.number, info.node):
                    node.tell(e.PeerLost(peer) if lost else e.PeerBack(peer))

    def _crash(self, node: Node, until_s: float) -> None:
        """A node stops, with its readers; it comes back with what its disks hold, and the script is started there."""
        number, store = node.number, self.world.stores[node.number]
        node.stop()
        store.pages.clear()
        for tier, info in enumerate(store.places):
            if info.kind is PlaceKind.RAM:
                for sample in list(store.copies[tier]):
                    store.lose(tier, sample)
        for reader in self._readers[number]:
            reader.stop()
        if self.agents is not None:
            self.agents.kill(number, orderly=True)
        else:
            self.world.unreachable_until_s[number] = until_s
            self._tell_peers(number, lost=True)
        self.heap.at(until_s, self._come_back, number)
        self._active += 1

    def _kill_server(self, node: Node, until_s: float) -> None:
        """A node's readers wait for the next server. That finds what lies in memory and on disks, knows of no page, and
        follows the jobs from where their slowest rank was."""
        number = node.number
        begins = {name: job.place() for name, job in self._followed[number].items()}
        node.stop()
        self.world.stores[number].pages.clear()
        for reader in self._readers[number]:
            reader.wait()
        self.world.unreachable_until_s[number] = until_s
        self._tell_peers(number, lost=True)
        self.heap.at(until_s, self._take_over, number, begins)
        self._active += 1

    def _take_over(self, number: int, begins: dict[str, tuple[int, int] | None]) -> None:
        self._make_node(number, self._places_found(number))
        self._tell_peers(number, lost=False)
        for job in self.case.jobs:
            if (place := begins.get(job.name)) is not None:
                self.world.nodes[number].tell(e.JobInstalled(self._run_of(job, number, place)))
        for reader in [*self._readers[number]]:
            reader.ask_again(self.world.nodes[number])
        self._less()

    def _places_found(self, number: int) -> list[PlaceInfo]:
        """A node's places, with what they hold."""
        return [
            info if info.kind not in (PlaceKind.RAM, PlaceKind.SSD) else _with_used(info, store_used)
            for info, store_used in zip(
                self.world.stores[number].places,
                map(self.world.stores[number].used_bytes, range(len(self.world.stores[number].places))),
                strict=True,
            )
        ]

    def _come_back(self, number: int) -> None:
        places = self._places_found(number)
        self._make_node(number, places)
        if self.agents is None:
            self._tell_peers(number, lost=False)
        else:  # an MPI job takes nobody back: the node serves alone
            peers = [peer for peer, info in enumerate(places) if info.node >= 0]
            self.world.nodes[number].tell(*map(e.PeerLost, peers))
        for job in self.case.jobs:
            self._active += 1
            self._begin_job(number, job)
        self._less()

    # -- the run

    def run(self) -> Outcome:
        """Run it to its end. Raises Broken for what does not hold."""
        case = self.case
        self._active = 1 + len(case.jobs) * case.nodes + sum(fault.kind not in OF_A_GET for fault in case.faults)
        for job in case.jobs:
            for number in range(case.nodes):
                self.heap.at(job.begins_s, self._begin_job, number, job)
        for stranger in case.strangers:
            self._begin_stranger(stranger, 0)
        for fault in case.faults:
            if fault.kind not in OF_A_GET:
                self.heap.at(fault.at_s, self._strike, fault)
        self.heap.at(0.0, self._less)
        with seldom_collecting():
            while self.heap.step():
                if self.heap.happened > self._most_events:
                    raise Broken(f"after {self._most_events} events the run does not come to rest")
        self._check_end()
        reads, refused = sum(one.read for one in self.all_readers), sum(one.refused for one in self.all_readers)
        return Outcome(self._hash.hexdigest(), self.steps, reads, refused, self.heap.now_s)

    def _check_end(self) -> None:
        if self._active:
            raise Broken(f"{self._active} readers are stuck: nothing is to come, and they wait")
        for node, watch in zip(self.world.nodes, self._watches, strict=True):
            watch.at_rest()
            if watch.longest_wait_s > self._patience_s:
                raise Broken(f"node {node.number}: a reader waited {watch.longest_wait_s} s for an answer")
            if node.waiting:
                raise Broken(f"node {node.number}: {node.waiting} waiters were not answered")
        if self.agents is not None:
            self.agents.check_end({fault.kind for fault in self.case.faults})
        if not self.case.faults:
            self._check_calm()

    def _check_calm(self) -> None:
        """Nothing went wrong: nobody is refused, and the source gave no more than it had to."""
        case = self.case
        if any(reader.refused for reader in self.all_readers):
            raise Broken("a read is refused though nothing failed")
        simple = not case.strangers and case.hedge_s >= 0.5 and len(case.jobs) == 1
        if not simple or not case.jobs[0].habits.plain or case.jobs[0].elsewhere:
            return
        for sample, times in enumerate(self.world.read_from_source):
            size = case.sizes[sample]
            if size > LARGEST_WHOLE_BYTES:
                continue
            plan = self._plans[0]
            owned = plan is not None and plan.owner is not None and plan.owner[sample] >= 0
            most = 1 if owned else case.jobs[0].epochs
            if times > most:
                raise Broken(f"sample {sample} is read from the source {times} times, {most} are enough")


def _with_used(info: PlaceInfo, used_bytes: int) -> PlaceInfo:
    return PlaceInfo(info.kind, info.name, info.lanes, info.capacity_bytes, used_bytes)


def fails(case: Case) -> Exception | None:
    """Why a case fails; None if it holds."""
    try:
        Trial(case).run()
    except Exception as error:
        return error
    return None


def shrunk(case: Case, like: Exception) -> Case:
    """A smaller case that fails with an error of the same type: parts are taken away as long as it does."""
    found = True
    while found:
        found = False
        for less in simpler(case):
            if type(fails(less)) is type(like):
                case, found = less, True
                break
    return case
