"""The node that plans for all is lost at each stage of its plan, or others are: in the end all go by one plan.

Drawn: registrations on any node, links that are cut, servers that are stopped, agents that die. Whatever it was, when
all is well again the nodes that are left go by one plan, with the same owners, and follow the same jobs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import trio
from nodes_beside import NODES, ROOM, N, Node, Wires, run
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.job import JobSpec, parse_job
from mlfs.plan.cluster_plan import PATIENCE_S, PlanStage, round_of
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import events as e

LASTS_S = (0.3, 3.0, 8.0, 16.0, 30.0)


def job(number: int, **fields: Any) -> JobSpec:
    return parse_job(
        {"epochs": 3, "batch_size": 4, "world_size": NODES, "seed": number, "name": f"job{number % 3}"} | fields
    )


def owners(nodes: list[Node], left: list[int]) -> list[np.ndarray]:
    """Who owns each sample, as each of the nodes that are left sees it: -1 for nobody."""
    seen = []
    for own in left:
        plan = nodes[own].scheduler.keeping.plan
        assert plan is not None
        assert plan.owner is not None
        seen.append(np.where(plan.classes != NOWHERE, own, plan.owner))
    return seen


async def strike(wires: Wires, draw: random.Random, kind: str, node: int) -> None:
    """Something happens to a node."""
    others = [other for other in range(NODES) if other != node]
    if kind == "cut":
        await wires.cut_for([(node, draw.choice(others))], draw.choice(LASTS_S))
    elif kind == "cut off":
        await wires.cut_for([(node, other) for other in others], draw.choice(LASTS_S))
    elif kind == "stop":
        await wires.stop_for(node, draw.choice(LASTS_S))
    elif kind == "kill" and not wires.dead:
        await wires.kill(node)


async def in_the_end(nodes: list[Node], wires: Wires) -> None:
    """All is well again: the nodes that are left go by one plan and follow the same jobs."""
    await trio.sleep(60 + 3 * PATIENCE_S)
    left = [own for own in range(NODES) if own not in wires.dead]
    assert len({nodes[own].plan.view for own in left}) == 1
    assert nodes[left[0]].plan.view[1] == tuple(sorted(wires.dead))
    first, *others = owners(nodes, left)
    for other in others:  # a node that holds what another one owns needs nobody's copy
        for sample in np.flatnonzero(other != first).tolist():
            holders = {own for own in left if nodes[own].scheduler.keeping.holds()[sample]}
            assert {other[sample], first[sample]} <= holders
    if not wires.dead:
        assert (first >= 0).sum() >= NODES * ROOM
    jobs = [{name: one.spec.seed for name, one in nodes[own].jobs.jobs.items()} for own in left]
    assert all(one == jobs[0] for one in jobs)
    assert not any(nodes[own].plan.under_way for own in left)


@pytest.mark.parametrize("kind", ["cut", "cut off", "stop", "kill"])
@pytest.mark.parametrize("stage", PlanStage)
@pytest.mark.parametrize("seed", range(cases(2)))
def test_the_planner_is_lost_at_a_stage_of_its_plan(stage: PlanStage, kind: str, seed: int) -> None:
    draw = random.Random(f"{stage} {kind} {seed}")

    async def body(nodes: list[Node], wires: Wires) -> None:
        async with trio.open_nursery() as nursery:

            def watch(own: int, value: Mapping[str, Any]) -> None:
                if "round" in value and round_of(value["round"]).stage is stage:
                    wires.watch = lambda _, __: None
                    nursery.start_soon(strike, wires, draw, kind, own)

            wires.watch = watch
            at = draw.randrange(1, NODES)
            began_s = trio.current_time()
            await nodes[at].register(job(seed))
            assert trio.current_time() - began_s < 5 * PATIENCE_S
        await in_the_end(nodes, wires)
        assert "job" + str(seed % 3) in nodes[at].jobs.jobs

    run(body, draw, wires=True)


@pytest.mark.parametrize("seed", range(cases(15)))
def test_whatever_happens_to_nodes_all_go_by_one_plan_in_the_end(seed: int) -> None:
    draw = random.Random(seed)

    async def body(nodes: list[Node], wires: Wires) -> None:
        async def act(number: int) -> None:
            await trio.sleep(draw.uniform(0, 25))
            own = draw.randrange(NODES)
            if draw.random() < 0.2:
                nodes[own].shared.ended(f"job{number % 3}")
            elif draw.random() < 0.3:
                samples = [sample for sample in draw.sample(range(N), 3) if own not in wires.dead]
                if nodes[own].scheduler.keeping.holds().sum() + len(samples) <= ROOM:
                    nodes[own].step(e.CopiesFound(1, samples))
            elif own not in wires.dead:
                began_s = trio.current_time()
                try:
                    await nodes[own].register(job(number))
                except JobError as error:
                    assert "another node was told something else" in str(error)  # noqa: PT017 - nothing else may be said
                assert trio.current_time() - began_s < 100

        async def fault() -> None:
            await trio.sleep(draw.uniform(0, 25))
            await strike(wires, draw, draw.choice(("cut", "cut", "cut off", "stop", "kill")), draw.randrange(NODES))

        async with trio.open_nursery() as nursery:
            for number in range(draw.randint(1, 6)):
                nursery.start_soon(act, number)
            for _ in range(draw.randint(1, 4)):
                nursery.start_soon(fault)
        await in_the_end(nodes, wires)

    run(body, draw, wires=True)
