"""What is said when a job was registered: of nodes that do not follow it, of directories that it takes together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.trees import make_tree

from mlfs.engine.peering import PeeringStatistics
from mlfs.job import JobSpec, parse_job
from mlfs.tree.scan import scan
from mountd.control import registered_words, words_of_parts

NODES = [{"node": node, "ranks": str(node), "keeps_bytes": [1]} for node in (0, 1)]


def job(**fields: object) -> JobSpec:
    return parse_job({"epochs": 2, "batch_size": 8, "world_size": 2} | fields)


def test_nodes_that_do_not_answer_are_named() -> None:
    joined = PeeringStatistics(node=0, nodes=4, joined=True)
    assert registered_words(job(), joined) == []
    [said] = registered_words(job(), PeeringStatistics(node=0, nodes=4, joined=True, lost=(3,)))
    assert said.startswith("node 3 does not answer: what runs there does not follow")
    [said] = registered_words(job(serve="locality", nodes=NODES), PeeringStatistics(0, 4, 1, True, (3,), away=(1, 3)))
    assert said.startswith("nodes 1, 3 do not answer")


def test_nodes_that_are_late_are_named_and_a_run_that_goes_on_with_other_nodes_is_told_so() -> None:
    joined = PeeringStatistics(node=0, nodes=4, joined=True, lost=(3,))
    words = registered_words(job(serve="locality", nodes=NODES), joined, late=[2, 3])
    assert [word.split(" does not ")[0] for word in words] == ["node 3", "node 2"]
    assert "does not follow this registration yet" in words[1]
    alone = PeeringStatistics()
    assert registered_words(job(serve="locality", nodes=NODES), alone, nodes_anew=True) == []
    [said] = registered_words(job(serve="locality", nodes=NODES, start_epoch=1), alone, nodes_anew=True)
    assert "give the description that was saved (--json-file)" in said


def test_a_node_alone_says_that_it_serves_all_ranks() -> None:
    alone = PeeringStatistics()
    one = [{"node": 0, "ranks": "0-1", "keeps_bytes": [1]}]
    [said] = registered_words(job(serve="locality", nodes=one), alone)
    assert said.startswith("this node alone serves the order of all 2 ranks")
    assert registered_words(job(), alone) == []
    assert registered_words(job(serve="locality", nodes=NODES), alone) == []
    assert registered_words(job(serve="locality", nodes=None), alone) == []


@pytest.mark.parametrize(
    ("files", "fields", "said"),
    [
        ({"train/a/1.jpg": 9, "val/a/1.jpg": 9, "labels.txt": 3}, {}, "train and val together"),
        ({"test/1.jpg": 9, "train/1.jpg": 9, "val/1.jpg": 9}, {}, "train, test and val together"),
        ({"train/a/1.jpg": 9, "val/a/1.jpg": 9}, {"root": "train"}, None),
        ({"train/a/1.jpg": 9}, {}, None),
        ({"cats/1.jpg": 9, "val/1.jpg": 9}, {}, None),
    ],
)
def test_an_order_over_train_and_val_together_says_how_to_take_one(
    files: dict[str, int], fields: dict[str, object], said: str | None, tmp_path: Path
) -> None:
    root_fd = os.open(make_tree(tmp_path / "data", files), os.O_RDONLY)
    try:
        words = words_of_parts(job(**fields), scan(root_fd))
    finally:
        os.close(root_fd)
    assert [said in word and word.endswith("--root train") for word in words] == ([] if said is None else [True])
