"""The nodes on which a served order rests: each node of a cluster says the same; what cannot be known is refused."""

from __future__ import annotations

import pytest

from mlfs.engine.shared_jobs import with_nodes
from mlfs.engine.shared_plan import node_of_rank
from mlfs.errors import JobError
from mlfs.job import JobSpec, parse_job
from mlfs.orders.served import LEVEL
from mlfs.plan.members import Members, members_of

ROOMS = ((5000, 0, 0), (7000, 9000, 0), (0, 0, 0))
BUFFERS = (100, 700, 300)


def job(**fields: object) -> JobSpec:
    return parse_job({"epochs": 4, "batch_size": 8, "world_size": 6, "serve": "locality"} | fields)


def filled_in(spec: JobSpec, own: int | None = None, before: JobSpec | None = None) -> JobSpec:
    members = None if own is None else Members((0, 2, 5), own, ROOMS, buffers_bytes=BUFFERS)
    return with_nodes(spec, before, members, [4096, 0], 100 if own is None else BUFFERS[(0, 2, 5).index(own)])


def test_all_nodes_say_the_same_whether_they_are_told_their_ranks_or_all() -> None:
    said = [
        filled_in(job(**ranks), own).nodes
        for own, mine in ((0, [0, 1]), (2, [2, 3]), (5, [4, 5]))
        for ranks in ({}, {"ranks": mine})
    ]
    assert said[0] is not None
    assert all(nodes == said[0] for nodes in said)
    assert [(node.node, node.ranks, node.keeps_bytes, node.buffer_bytes) for node in said[0]] == [
        (0, "0-1", ROOMS[0], 100), (2, "2-3", ROOMS[1], 700), (5, "4-5", ROOMS[2], 300)
    ]  # fmt: skip


def test_a_node_alone_deals_to_itself_and_what_was_said_stays() -> None:
    alone = filled_in(job())
    assert alone.nodes is not None
    assert [(node.node, node.ranks, node.keeps_bytes, node.buffer_bytes) for node in alone.nodes] == [
        (0, "0-5", (4096, 0), 100)
    ]
    assert filled_in(alone, own=2) == alone
    assert filled_in(job(serve=None)).nodes is None


def test_a_node_that_is_lost_for_good_keeps_nothing_of_a_job_that_is_registered_afterwards() -> None:
    members = Members((0, 2, 5), 0, ROOMS, away=(2,), buffers_bytes=BUFFERS)
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


def test_members_are_what_the_nodes_have_said_when_they_came() -> None:
    about = {
        5: {"capacities_bytes": [7, 8, 9], "buffer_bytes": 3},
        0: {"capacities_bytes": [4], "buffer_bytes": 0},
    }
    members = members_of(5, about)
    assert (members.nodes, members.own) == ((0, 5), 5)
    assert members.capacities_bytes == ((4, 0, 0), (7, 8, 9))
    assert members.buffers_bytes == (0, 3)


def test_a_run_that_goes_on_keeps_its_nodes_and_another_one_does_not() -> None:
    alone = filled_in(job())
    assert filled_in(job(start_epoch=1), own=2, before=alone).nodes == alone.nodes
    assert filled_in(job(), own=2, before=alone).nodes != alone.nodes
    assert filled_in(job(start_epoch=1, serve="opportunistic"), own=2, before=alone).nodes != alone.nodes


def test_the_level_is_filled_in_too_as_the_order_rests_on_it() -> None:
    alone = filled_in(job(serve="opportunistic"))
    assert alone.level == LEVEL
    given = filled_in(job(serve="opportunistic", level=0.5))
    assert given.level == 0.5
    assert filled_in(job(serve="opportunistic", start_epoch=1), own=2, before=given).level == 0.5
    nodes = job(serve="opportunistic").model_copy(update={"nodes": alone.nodes})
    assert filled_in(nodes, own=2).level == LEVEL
    assert filled_in(job()).level is None


def test_whoever_goes_on_without_a_node_that_went_away_is_told_how() -> None:
    members = Members((0, 2, 5), 0, ROOMS, away=(2,), buffers_bytes=BUFFERS)
    with pytest.raises(JobError) as refused:
        with_nodes(job(world_size=4), None, members, [4096, 0], 100)
    assert "of these 2 went away: to go on without, end `mlfs peers`" in refused.value.hint


@pytest.mark.parametrize(
    ("fields", "own"), [({"ranks": [0]}, None), ({"ranks": [0, 2]}, 0), ({"ranks": [0, 1]}, 2), ({"world_size": 7}, 0)]
)
def test_ranks_that_run_nobody_knows_where_are_refused(fields: dict[str, object], own: int | None) -> None:
    with pytest.raises(JobError, match="which ranks run on which node"):
        filled_in(job(**fields), own)
