"""The nodes on which a served order rests: each node of a cluster says the same; what cannot be known is refused."""

from __future__ import annotations

import pytest

from mlfs.engine.nodes_of_job import node_of_rank, with_nodes
from mlfs.errors import JobError
from mlfs.job import JobSpec, parse_job
from mlfs.plan.members import Members

ROOMS = ((5000, 0, 0), (7000, 9000, 0), (0, 0, 0))


def job(**fields: object) -> JobSpec:
    return parse_job({"epochs": 4, "world_size": 6, "serve": "locality"} | fields)


def filled_in(spec: JobSpec, own: int | None = None, before: JobSpec | None = None) -> JobSpec:
    members = None if own is None else Members((0, 2, 5), own, ROOMS)
    return with_nodes(spec, before, members, [4096, 0], 100)


def test_all_nodes_say_the_same_whether_they_are_told_their_ranks_or_all() -> None:
    said = [
        filled_in(job(**ranks), own).nodes
        for own, mine in ((0, [0, 1]), (2, [2, 3]), (5, [4, 5]))
        for ranks in ({}, {"ranks": mine})
    ]
    assert said[0] is not None
    assert all(nodes == said[0] for nodes in said)
    assert [(node.node, node.ranks, node.keeps_bytes) for node in said[0]] == [
        (0, "0-1", ROOMS[0]), (2, "2-3", ROOMS[1]), (5, "4-5", ROOMS[2])
    ]  # fmt: skip


def test_a_node_alone_deals_to_itself_and_what_was_said_stays() -> None:
    alone = filled_in(job())
    assert alone.nodes is not None
    assert [(node.node, node.ranks, node.keeps_bytes, node.buffer_bytes) for node in alone.nodes] == [
        (0, "0-5", (4096, 0), 100)
    ]
    assert filled_in(alone, own=2) is alone
    assert filled_in(job(serve=None)).nodes is None


def test_a_node_that_is_lost_for_good_keeps_nothing_of_a_job_that_is_registered_afterwards() -> None:
    members = Members((0, 2, 5), 0, ROOMS, away=(2,))
    nodes = with_nodes(job(), None, members, [4096, 0], 100).nodes
    assert nodes is not None
    assert [(node.node, node.ranks, node.keeps_bytes) for node in nodes] == [
        (0, "0-1", ROOMS[0]), (2, "2-3", (0, 0, 0)), (5, "4-5", ROOMS[2])
    ]  # fmt: skip


def test_ranks_run_where_the_job_says_and_else_where_launchers_put_them() -> None:
    members = Members((0, 2, 5), 0, ROOMS)
    assert node_of_rank(job(serve=None), members) == {0: 0, 1: 0, 2: 2, 3: 2, 4: 5, 5: 5}
    assert node_of_rank(job(serve=None, world_size=7), members) == {}
    nodes = [{"node": node, "ranks": ranks, "keeps_bytes": [1]} for node, ranks in ((2, "0,3"), (9, "1-2"))]
    assert node_of_rank(job(world_size=4, nodes=nodes), members) == {0: 2, 3: 2}  # node 9 is none of these


def test_who_registers_it_on_a_second_node_gets_the_order_of_the_first_whatever_its_window() -> None:
    members = Members((0, 2, 5), 2, ROOMS)
    first = filled_in(job(), own=0)
    assert with_nodes(job(), first, members, [4096, 0], 700).nodes == first.nodes
    larger = Members((0, 2, 5), 2, (*ROOMS[:2], (1, 0, 0)))
    other = with_nodes(job(), first, larger, [4096, 0], 700).nodes
    assert other is not None
    assert {node.buffer_bytes for node in other} == {700}


def test_a_run_that_goes_on_keeps_its_nodes_and_another_one_does_not() -> None:
    alone = filled_in(job())
    assert filled_in(job(start_epoch=1), own=2, before=alone).nodes == alone.nodes
    assert filled_in(job(), own=2, before=alone).nodes != alone.nodes
    assert filled_in(job(start_epoch=1, serve="opportunistic"), own=2, before=alone).nodes != alone.nodes


@pytest.mark.parametrize(
    ("fields", "own"), [({"ranks": [0]}, None), ({"ranks": [0, 2]}, 0), ({"ranks": [0, 1]}, 2), ({"world_size": 7}, 0)]
)
def test_ranks_that_run_nobody_knows_where_are_refused(fields: dict[str, object], own: int | None) -> None:
    with pytest.raises(JobError, match="which ranks run on which node"):
        filled_in(job(**fields), own)
