"""Nodes that plan together: real but for their network, which is in memory and takes its time, and their mounts.

`run` has a body run beside nodes that have joined. Each has a scheduler, so that it goes by what is planned, and the
jobs that its mount would have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
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
from mlfs.orders.registry import build_order
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import JobStreams
from mlfs.plan.members import members_of
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler

N, PAGE, NODES = 60, 4096, 3
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
        self.manifest = SimpleNamespace(size=SIZES)
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
        self.plan = SharedPlan(self.planner, runner, trio.current_time, self.step, self.scheduler.keeping.holds)
        self.shared = SharedJobs(jobs, self.planner, self.plan, runner, build, lambda: [ROOM * PAGE, 0], 0)

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


def run(body: Callable[[list[Node]], Coroutine[Any, Any, None]], draw: random.Random) -> None:
    """Run a body on nodes that have joined; the words of a node reach another one in their order, after a while."""

    async def link(node: Node, own: int, words: trio.MemoryReceiveChannel[Mapping[str, Any]]) -> None:
        async for word in words:
            await trio.sleep(draw.uniform(0.001, 0.05))
            node.hear(own, word)

    async def beside() -> None:
        nodes = [Node(own) for own in range(NODES)]
        async with trio.open_nursery() as nursery:
            ends: dict[int, list[trio.MemorySendChannel[Mapping[str, Any]]]] = {own: [] for own in range(NODES)}
            for own, other in permutations(range(NODES), 2):
                end, words = trio.open_memory_channel[Mapping[str, Any]](1000)
                ends[own].append(end)
                nursery.start_soon(link, nodes[other], own, words)

            def tell(own: int, value: Mapping[str, Any]) -> None:
                for end in ends[own]:
                    end.send_nowait(value)

            async with trio.open_nursery() as joining:
                for own, node in enumerate(nodes):
                    nursery.start_soon(node.planner.run)
                    members = members_of(own, ABOUT)
                    joining.start_soon(node.shared.begin, members, lambda value, own=own: tell(own, value), 1.0)
            await body(nodes)
            nursery.cancel_scope.cancel()

    simulate(beside)
