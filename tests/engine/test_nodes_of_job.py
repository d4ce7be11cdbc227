"""The nodes on which a served order rests: each node of a cluster says the same; what cannot be known is refused."""

from __future__ import annotations

import pytest

from mlfs.engine.nodes_of_job import with_nodes
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
