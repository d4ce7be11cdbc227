"""What a node gets while a plan is made is not read again: when the plan begins, all take it to be where it lies."""

from __future__ import annotations

import random

import numpy as np
import pytest
import trio
from nodes_beside import NODES, ROOM, N, Node, run
from support.drawn import cases

from mlfs.job import parse_job
from mlfs.plan.cluster_plan import SAMPLES_IN_A_WORD
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import events as e


def held(node: Node) -> set[int]:
    """The samples that a node holds."""
    return {*np.flatnonzero(node.scheduler.keeping.holds()).tolist()}


def owner(node: Node, own: int, sample: int) -> int:
    """Who owns a sample, as a node sees it: -1 for nobody."""
    plan = node.scheduler.keeping.plan
    assert plan is not None
    return own if plan.classes[sample] != NOWHERE else node.scheduler.keeping.owner(sample)


async def get(node: Node, draw: random.Random, seconds: float) -> None:
    """For so long, samples come that the node's plan of the moment keeps here."""
    end_s = trio.current_time() + seconds
    while trio.current_time() < end_s:
        await trio.sleep(draw.uniform(0, 0.12))
        plan = node.scheduler.keeping.plan
        assert plan is not None
        wanted = sorted({*np.flatnonzero(plan.classes != NOWHERE).tolist()} - held(node))
        if wanted and len(held(node)) < ROOM:
            node.step(e.CopiesFound(1, [draw.choice(wanted)]))


@pytest.mark.parametrize("seed", range(cases(15)))
def test_whoever_holds_a_sample_owns_it_to_all_once_all_have_heard(seed: int) -> None:
    draw = random.Random(seed)
    moved = 0

    async def body(nodes: list[Node]) -> None:
        nonlocal moved

        async def register(number: int, at_s: float) -> None:
            await trio.sleep(at_s)
            fields = {"epochs": 3, "batch_size": 4, "world_size": NODES, "seed": number, "name": f"job{number}"}
            spec = parse_job(fields)
            await nodes[draw.randrange(NODES)].register(spec)

        before = [node.scheduler.keeping.plan for node in nodes]
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(get, node, draw, 0.6)
            for number in range(draw.randint(1, 3)):
                nursery.start_soon(register, number, draw.uniform(0, 0.2))
        for node in nodes:  # as when an epoch begins: a plan that is made anew knows what was got
            if draw.random() < 0.5:
                node.planner.plan_again()
        await trio.sleep(2)
        holders = {sample: {own for own, node in enumerate(nodes) if sample in held(node)} for sample in range(N)}
        for own, node in enumerate(nodes):
            for sample, there in holders.items():
                if own not in there:
                    assert owner(node, own, sample) in (there or {owner(nodes[0], 0, sample)}), (own, sample, there)
        for plan, node in zip(before, nodes, strict=True):
            now = node.scheduler.keeping.plan
            assert plan is not None
            assert now is not None
            moved += int(np.count_nonzero(plan.classes != now.classes))

    run(body, draw)
    assert moved  # the jobs had other owners than no job has


def test_much_that_was_got_is_told_in_several_words_and_nonsense_is_refused() -> None:
    assert len(str([10**7] * SAMPLES_IN_A_WORD)) < 48 << 10

    async def body(nodes: list[Node]) -> None:
        for word in ([N], [-1], ["a"], [[1]]):
            with pytest.raises((ValueError, TypeError)):
                nodes[0].plan.hear(1, {"got": word, "of": [1, 0]})
        nodes[0].plan.hear(1, {"got": [], "of": [1, 0]})

    run(body, random.Random(0))
