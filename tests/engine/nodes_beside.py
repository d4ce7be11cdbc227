"""Nodes that plan together: real but for their network, which is in memory and takes its time, and their mounts.

`run` has a body run beside nodes that have joined. Each has a scheduler, so that it goes by what is planned, and the
jobs that its mount would have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import trio
from fakes import InlineRunner, simulate

from mlfs.engine.planner import Planner
from mlfs.engine.shared_jobs import SharedJobs
from mlfs.engine.shared_plan import SharedPlan
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.measure.rates import Rates
from mlfs.orders.order import build_order
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import JobStreams
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.members import members_of
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler

N, PAGE, NODES = 60, 4096, 3
PATIENCE_S = 1.0  # as `--peer-timeout`
ROOM = 10  # samples that a node has room for
SIZES = np.full(N, PAGE, dtype=np.int64)
ABOUT = {node: {"capacities_bytes": [ROOM * PAGE, 0], "buffer_bytes": (node + 1) * 8 * PAGE} for node in range(NODES)}


def build(spec: JobSpec) -> JobStreams:
    entries, order = np.arange(N), build_order(spec, N)
    return JobStreams(spec, entries, order if spec.serve is None else ServedOrder(order, spec, SIZES, entries))


class Jobs:
    """The jobs of a mount, and all that ever began."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRun] = {}
        self.manifest = SimpleNamespace(sample_sizes=SIZES)
        self.began: list[JobRun] = []

    async def install(self, job: JobRun) -> None:
        await trio.sleep(0.001)
        self.jobs[job.name] = job
        self.began.append(job)

    def end(self, name: str) -> None:
        self.jobs.pop(name, None)


class Node:
    """What a server has of its cluster."""

    def __init__(self, own: int) -> None:
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 4), PlaceInfo(PlaceKind.RAM, "ram", 4, ROOM * PAGE)]
        peers = [PlaceInfo(PlaceKind.PEER, f"node {node}", 4, node=node) for node in range(NODES) if node != own]
        self.scheduler = Scheduler(memoryview(SIZES), [*places, *peers], Limits(1 << 20), Rates())
        runner: Any = InlineRunner({"orders": 0.02, "plan": 0.01})
        jobs: Any = Jobs()
        self.jobs: Jobs = jobs
        self.planner = Planner(
            memoryview(SIZES),
            lambda: [ROOM * PAGE, 0],
            runner,
            lambda plan: self.plan.plan_made(plan),  # noqa: PLW0108 - made later
        )
        self.plan = SharedPlan(
            self.planner, runner, trio.current_time, self.step, self.scheduler.keeping,
            FileBlocks.none(memoryview(SIZES)), jobs,
        )  # fmt: skip
        self.shared = SharedJobs(jobs, self.plan, runner, build, lambda: [ROOM * PAGE, 0], 0)

    def step(self, *events: e.Event) -> None:
        self.scheduler.step(trio.current_time(), events)

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        self.plan.hear(node, value)
        self.shared.hear(node, value)

    async def register(self, spec: JobSpec, prepared_after_s: float = 0.0) -> JobRun:
        """As the control file does it."""
        spec = self.shared.with_nodes(spec)
        streams = build(spec)
        await trio.sleep(prepared_after_s)
        return await self.shared.register(spec, streams)


class Wires:
    """The network between nodes: words arrive in their order, after a while; and what can happen to it and to nodes.

    As agents do it, a node is lost to another one when nothing comes through for PATIENCE_S, and what it was told
    meanwhile reaches it when it answers again.

    Attributes:
        cut: ways that are cut. stopped: nodes whose servers are stopped, while their agents answer. dead: nodes whose
            agents are gone for good. watch: sees each word before it is on its way.
    """

    def __init__(self, nodes: Sequence[Node], draw: random.Random) -> None:
        self.nodes = nodes
        self.cut: set[tuple[int, int]] = set()
        self.stopped: set[int] = set()
        self.dead: set[int] = set()
        self.watch: Callable[[int, Mapping[str, Any]], None] = lambda _, __: None
        self._draw = draw
        self._lost: set[tuple[int, int]] = set()
        self._changed = trio.Event()
        self._ends: dict[tuple[int, int], trio.MemorySendChannel[Mapping[str, Any]]] = {}

    async def run(self, nursery: trio.Nursery) -> None:
        """Begin to carry words, and to look at who is lost."""
        for way in permutations(range(len(self.nodes)), 2):
            self._ends[way], words = trio.open_memory_channel[Mapping[str, Any]](100_000)
            nursery.start_soon(self._carry, *way, words)
        for own in range(len(self.nodes)):
            nursery.start_soon(self._look, own)

    def tell(self, own: int, value: Mapping[str, Any], to: int | None = None) -> None:
        """A node says something."""
        self.watch(own, value)
        for (source, other), end in self._ends.items():
            if source == own and to in (None, other):
                end.send_nowait(value)

    async def _carry(self, own: int, other: int, words: trio.MemoryReceiveChannel[Mapping[str, Any]]) -> None:
        async for word in words:
            await trio.sleep(self._draw.uniform(0.001, 0.05))
            while (own, other) in self.cut or {own, other} & self.stopped:
                await self._changed.wait()
            if not {own, other} & self.dead:
                self.nodes[other].hear(own, json.loads(json.dumps(word)))

    async def _look(self, own: int) -> None:
        while own not in self.dead:
            await trio.sleep(1)
            if own not in self.stopped | self.dead:
                self.nodes[own].plan.look()
                self.nodes[own].shared.look()

    def _stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def cut_for(self, pairs: Collection[tuple[int, int]], seconds: float) -> None:
        """Cut links, both ways, for so long."""
        ways = {way for pair in pairs for way in (pair, pair[::-1])} - self.cut
        self.cut |= ways
        await trio.sleep(min(seconds, PATIENCE_S))
        if seconds > PATIENCE_S:
            for own, other in ways:
                self._lost.add((own, other))
                self.nodes[own].plan.lose([other])
            await trio.sleep(seconds - PATIENCE_S)
        self.cut -= ways
        self._stir()
        for own, other in ways & self._lost:
            self._lost.discard((own, other))
            if not {own, other} & self.dead:
                self.nodes[own].plan.back(other)

    async def stop_for(self, own: int, seconds: float) -> None:
        """Stop a node's server for so long."""
        self.stopped.add(own)
        await trio.sleep(seconds)
        self.stopped.discard(own)
        self._stir()

    async def kill(self, own: int) -> None:
        """A node's agent dies: it goes on alone, and the others lose it."""
        self.dead.add(own)
        self._stir()
        self.nodes[own].shared.end()
        await trio.sleep(PATIENCE_S)
        for other, node in enumerate(self.nodes):
            if other not in self.dead:
                node.plan.lose([own])


def run(body: Callable[..., Coroutine[Any, Any, None]], draw: random.Random, wires: bool = False) -> None:
    """Run a body on nodes that have joined. Args: wires: the body is to have them, too."""

    async def beside() -> None:
        nodes = [Node(own) for own in range(NODES)]
        network = Wires(nodes, draw)
        async with trio.open_nursery() as nursery:
            await network.run(nursery)
            async with trio.open_nursery() as joining:
                for own, node in enumerate(nodes):
                    nursery.start_soon(node.planner.run)
                    joining.start_soon(
                        node.shared.begin, members_of(own, ABOUT), partial(network.tell, own), PATIENCE_S
                    )
            await (body(nodes, network) if wires else body(nodes))
            nursery.cancel_scope.cancel()

    simulate(beside)
