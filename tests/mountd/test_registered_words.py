"""What is said when a job was registered, of nodes that do not follow it."""

from __future__ import annotations

from mlfs.engine.peering import PeeringStatistics
from mlfs.job import JobSpec, parse_job
from mountd.registered_words import registered_words

NODES = [{"node": node, "ranks": str(node), "keeps_bytes": [1]} for node in (0, 1)]


def job(**fields: object) -> JobSpec:
    return parse_job({"epochs": 2, "world_size": 2} | fields)


def test_nodes_that_do_not_answer_are_named() -> None:
    joined = PeeringStatistics(node=0, nodes=4, joined=True)
    assert registered_words(job(), joined) == []
    [said] = registered_words(job(), PeeringStatistics(node=0, nodes=4, joined=True, lost=(3,)))
    assert said.startswith("node 3 does not answer: what runs there does not follow")
    [said] = registered_words(job(serve="locality", nodes=NODES), PeeringStatistics(0, 4, 1, True, (3,), away=(1, 3)))
    assert said.startswith("nodes 1, 3 do not answer")


def test_a_node_alone_says_that_it_serves_all_ranks() -> None:
    alone = PeeringStatistics()
    one = [{"node": 0, "ranks": "0-1", "keeps_bytes": [1]}]
    [said] = registered_words(job(serve="locality", nodes=one), alone)
    assert said.startswith("this node alone serves the order of all 2 ranks")
    assert registered_words(job(), alone) == []
    assert registered_words(job(serve="locality", nodes=NODES), alone) == []
    assert registered_words(parse_job({"epochs": 2, "serve": "locality", "nodes": None}), alone) == []
