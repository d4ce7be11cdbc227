"""In which order a node fetches what no node keeps: in the order of the tree within a part, each part in time."""

from __future__ import annotations

import numpy as np
import pytest
from served_support import nodes_of, served

from mlfs.orders.streams import JobStreams
from mlfs.served.refill import PART_SHARE, Refill, refill_of

ROOM = 8192


def drawn(seed: int) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Where what each rank reads lies in the tree, where rounds begin, and how many samples a buffer has."""
    rng = np.random.default_rng(seed)
    ranks, length = int(rng.integers(1, 4)), int(rng.integers(1, 200))
    places = rng.permutation(4 * ranks * length)[: ranks * length].reshape(ranks, length)
    places[rng.random(places.shape) < rng.choice([0.0, 0.3, 1.0])] = -1
    rounds = np.unique(np.append(0, rng.integers(0, length, int(rng.integers(0, 5)))))
    return list(places), rounds, int(rng.integers(1, 100))


def of(places: list[np.ndarray], rounds: np.ndarray, buffer_samples: int) -> Refill:
    return refill_of(places, [np.full(len(rank), ROOM) for rank in places], rounds, buffer_samples * ROOM)


@pytest.mark.parametrize("seed", range(30))
def test_each_part_is_refilled_in_the_order_of_the_tree_before_it_is_read(seed: int) -> None:
    places, rounds, buffer_samples = drawn(seed)
    refill = of(places, rounds, buffer_samples)
    refilled = list(zip(refill.rank.tolist(), refill.position.tolist(), strict=True))
    wanted = [(rank, at) for rank, stream in enumerate(places) for at in np.flatnonzero(stream >= 0).tolist()]
    assert sorted(refilled) == wanted  # each once
    assert (np.diff(refill.due) >= 0).all()
    assert set(rounds.tolist()) <= set(refill.begins.tolist())
    assert refill.firsts[-1] == len(refilled)
    before = -int([*refill.begins.tolist(), len(places[0])][1])
    for part, begin in enumerate(refill.begins.tolist()):
        columns = slice(int(refill.firsts[part]), int(refill.firsts[part + 1]))
        end = [*refill.begins.tolist(), len(places[0])][part + 1]
        lies = [int(places[rank][at]) for rank, at in refilled[columns]]
        assert lies == sorted(lies)
        assert all(begin <= at < end for _, at in refilled[columns])
        assert all(before <= due < begin for due in refill.due[columns].tolist())  # while the part before it is read
        assert len(lies) * ROOM <= refill.room_bytes
        before = begin


def test_a_round_that_is_larger_than_half_of_the_window_is_refilled_in_parts() -> None:
    places = [np.random.default_rng(0).permutation(400)]
    fits = of(places, np.array([0, 200]), 200)
    assert fits.begins.tolist() == [0, 200]
    assert fits.room_bytes == 200 * ROOM
    cut = of(places, np.array([0, 200]), 50)
    assert cut.begins.tolist() == [0, 50, 100, 150, 200, 250, 300, 350]
    assert cut.room_bytes <= PART_SHARE * 50 * ROOM
    nothing_fits = of(places, np.array([0, 200]), 0)
    assert nothing_fits.begins.tolist() == list(range(400))
    huge = refill_of(places, [np.full(400, 1 << 50)], np.array([0, 200]), 0)
    assert len(huge.begins) == 400


def test_what_is_beyond_the_end_of_the_streams_does_not_count() -> None:
    assert of([np.arange(10)], np.array([0, 6, 12]), 100).begins.tolist() == [0, 6]
    nothing = of([np.full(0, 1)], np.array([0, 6]), 100)
    assert len(nothing.rank) == 0


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_node_refills_what_its_own_ranks_read_and_no_node_keeps(level: float) -> None:
    nodes = nodes_of([[0, 1], [2, 3]], keeps_bytes=100 * 4096, buffer_bytes=50 * 4096)
    fields = {"sampler": "torch-distributed", "seed": 1, "world_size": 4, "batch_size": 5, "nodes": nodes}
    spec, _, order = served(400, **fields, serve="opportunistic", level=level)
    streams = JobStreams(spec, np.arange(400), order)
    away = order.kept.node < 0
    for ranks in ([0, 1], [2, 3]):
        refill = streams.refill(1, ranks)
        assert refill is not None
        ids = np.stack([streams.epoch_ids(1, rank) for rank in ranks])
        refilled = ids[refill.rank, refill.position]
        assert away[refilled].all()
        assert len(refilled) == away[ids].sum()
        steps = np.diff(np.cumsum(away)[refilled])
        assert (steps == 1).mean() > (0.8 if level == 0.0 else 0.1)  # a part of a larger round has gaps
    locality = JobStreams(spec, np.arange(400), served(400, **fields, serve="locality")[2])
    assert locality.refill(1, [0, 1]) is None
