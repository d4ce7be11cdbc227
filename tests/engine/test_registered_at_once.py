"""A job with a served order, registered on several nodes at once: all serve one order, and no other one begins."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from nodes_beside import ABOUT, NODES, PAGE, Node, run

from mlfs.errors import JobError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.plan.cluster_plan import PATIENCE_S


def job(**fields: Any) -> JobSpec:
    return parse_job({"epochs": 3, "batch_size": 4, "world_size": NODES, "serve": "opportunistic"} | fields)


def with_buffers(buffer_bytes: int) -> list[dict[str, Any]]:
    """Nodes as one of them takes them to be, which another one may see otherwise when a node has just been lost."""
    return [
        {"node": node, "ranks": str(node), "keeps_bytes": [10 * PAGE], "buffer_bytes": buffer_bytes}
        for node in range(NODES)
    ]


def orders(nodes: list[Node]) -> list[Any]:
    """What each node serves."""
    return [node.jobs.jobs["train"].spec.nodes for node in nodes]


def test_nodes_with_different_windows_that_register_at_the_same_moment_fill_in_the_same() -> None:
    async def body(nodes: list[Node]) -> None:
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(node.register, job())
        [said] = set(orders(nodes))
        assert [node.buffer_bytes for node in said] == [about["buffer_bytes"] for about in ABOUT.values()]
        assert [len(node.jobs.began) for node in nodes] == [1] * NODES
        assert [node.jobs.jobs["train"].spec.ranks for node in nodes] == [(0,), (1,), (2,)]

    run(body, random.Random(0))


@pytest.mark.parametrize("seed", range(12))
def test_of_two_orders_that_are_registered_at_the_same_moment_one_begins_and_the_other_nowhere(seed: int) -> None:
    draw = random.Random(seed)

    async def body(nodes: list[Node]) -> None:
        at = sorted(draw.sample(range(NODES), draw.choice((2, 3))))
        got: dict[int, JobRun] = {}

        async def register(own: int) -> None:
            got[own] = await nodes[own].register(job(nodes=with_buffers((own + 1) * PAGE)))

        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for own in at:
                nursery.start_soon(register, own)
        await trio.sleep(1)
        assert trio.current_time() - began_at < PATIENCE_S
        winner = job(nodes=with_buffers((at[0] + 1) * PAGE)).nodes
        assert orders(nodes) == [winner] * NODES
        assert [{began.spec.nodes for began in node.jobs.began} for node in nodes] == [{winner}] * NODES
        assert {job_run.spec.nodes for job_run in got.values()} == {winner}

    run(body, draw)


@pytest.mark.parametrize("seed", range(12))
def test_registered_and_ended_anywhere_at_any_time_all_nodes_end_with_one_order(seed: int) -> None:
    draw = random.Random(seed)

    async def body(nodes: list[Node]) -> None:
        registered, got, ends, refused = set[Any](), list[Any](), list[int](), list[str]()

        async def act(own: int, at_s: float, number: int) -> None:
            await trio.sleep(at_s)
            if draw.random() < 0.2:
                ends.append(own)
                nodes[own].shared.ended("train")
                return
            spec = job(nodes=with_buffers(number * PAGE))
            registered.add(spec.nodes)
            try:
                got.append((await nodes[own].register(spec, draw.uniform(0, 0.1))).spec.nodes)
            except JobError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(1, draw.randint(2, 6)):
                nursery.start_soon(act, draw.randrange(NODES), draw.uniform(0, 0.4), number)
        await trio.sleep(5)
        assert set(got) <= registered
        # They differ only in their nodes, so one that does not count is answered with the one that does. Only where
        # that has been ended meanwhile there is nothing to answer with.
        assert not refused or ends
        assert all("another node was told something else of the job train" in said for said in refused)
        [last] = {tuple(run.spec.nodes for run in node.jobs.jobs.values()) for node in nodes}
        assert set(last) <= registered
        assert len(last) == 1 or ends

    run(body, draw)


def test_an_order_that_another_node_tells_while_this_one_prepares_its_own_is_taken_over() -> None:
    async def body(nodes: list[Node]) -> None:
        late: list[JobRun] = []

        async def register_late() -> None:
            late.append(await nodes[0].register(job(), prepared_after_s=2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register_late)
            nursery.start_soon(nodes[1].register, job(nodes=with_buffers(PAGE)))
        await trio.sleep(1)  # node 2 only follows
        assert late[0].spec.nodes == job(nodes=with_buffers(PAGE)).nodes
        assert [{began.spec.nodes for began in node.jobs.began} for node in nodes] == [{late[0].spec.nodes}] * NODES

    run(body, random.Random(0))


def test_another_job_of_the_name_at_the_same_moment_is_refused_to_the_node_that_loses() -> None:
    async def body(nodes: list[Node]) -> None:
        said: list[str] = []

        async def register(own: int) -> None:
            try:
                await nodes[own].register(job(seed=own))
            except JobError as error:
                said.append(f"{own}: {error}")

        async with trio.open_nursery() as nursery:
            for own in (1, 2):
                nursery.start_soon(register, own)
        await trio.sleep(1)  # node 0 only follows
        [refused] = said
        assert refused.startswith("2: another node was told something else of the job train")
        assert [node.jobs.jobs["train"].spec.seed for node in nodes] == [1] * NODES

    run(body, random.Random(0))
