"""Served orders: the same global batches by locality, each sample once an epoch by opportunity, everywhere alike."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_support import nodes_of, served, steps

from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.job.ranks import ranks_in
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import JobStreams, check_reach
from mlfs.plan.members import Members
from mlfs.served.locality import Ids, Nodes, deal_to_ranks
from mlfs.served.refill import PART_SHARE


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, object]:
    """A data set, ranks that are dealt to nodes in any way, batches that need not divide anything."""
    world = draw(st.integers(1, 7))
    count = draw(st.integers(1, world))
    places = [*range(count), *draw(st.lists(st.integers(0, count - 1), min_size=world - count, max_size=world - count))]
    places = draw(st.permutations(places))
    ranks = [[rank for rank in range(world) if places[rank] == node] for node in range(count)]
    n = draw(st.integers(1, 60))
    sampler = draw(
        st.sampled_from(
            [
                {"sampler": "torch-distributed", "drop_last": draw(st.booleans()), "seed": draw(st.integers(0, 99))},
                {"sampler": "sequential", "contiguous": True},
                {"sampler": "accelerate", "even_batches": False},  # ranks of different lengths
            ]
        )
    )
    return {
        "n": n,
        "world_size": world,
        "batch_size": draw(st.integers(1, 6)),
        "nodes": nodes_of(ranks, draw(st.integers(0, n)) * 4096, draw(st.integers(0, 5)) * 4096),
        **sampler,
    }  # fmt: skip


@pytest.mark.promise("served-batches")
@settings(deadline=None, max_examples=60)
@given(worlds(), st.integers(0, 2))
def test_locality_deals_each_global_batch_of_the_true_order_and_gives_each_rank_as_many(
    world: dict[str, object], epoch: int
) -> None:
    spec, true, order = served(**world, serve="locality")  # type: ignore[arg-type]
    assert order.stream_length(epoch) == true.stream_length(epoch)
    for before, after in zip(steps(true, spec, epoch), steps(order, spec, epoch), strict=True):
        assert Counter(chain(*after)) == Counter(chain(*before))
        assert list(map(len, after)) == list(map(len, before))


@pytest.mark.promise("served-once")
@settings(deadline=None, max_examples=60)
@given(worlds(), st.integers(0, 2), st.sampled_from([None, 0.0, 0.6, 1.0]))
def test_opportunistic_reads_what_the_true_order_reads_in_an_epoch_as_often_and_as_randomly_as_wanted(
    world: dict[str, object], epoch: int, level: float | None
) -> None:
    spec, true, order = served(**world, serve="opportunistic", level=level)  # type: ignore[arg-type]
    ranks = range(spec.world_size)
    before = [true.rank_stream(epoch, rank) for rank in ranks]
    after = [order.rank_stream(epoch, rank) for rank in ranks]
    assert list(map(len, after)) == list(map(len, before))
    assert Counter(np.concatenate(after).tolist()) == Counter(np.concatenate(before).tolist())
    assert order.figures["level_reached"] >= (0.9 if level is None else level) - 1e-4


RANKS = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("serve", ["locality", "opportunistic"])
def test_nearly_all_is_read_where_it_is_kept(serve: str) -> None:
    spec, _, order = served(3000, serve=serve, world_size=6, batch_size=16, nodes=nodes_of(RANKS, 5 << 20))
    at_home = [order.kept.node[order.rank_stream(1, rank)] == rank // 2 for rank in range(6)]
    assert (order.kept.node >= 0).all()
    # Their Fig. 6: with 32 samples a node, 6.9 % of a batch have to move where very many nodes share it.
    assert np.concatenate(at_home).mean() > 0.93
    moved = [
        sum(order.kept.node[index] != rank // 2 for rank, batch in enumerate(step) for index in batch)
        for step in steps(order, spec, 1)
    ]
    assert max(moved) <= 32, "what moves is the surplus alone, however uneven a batch is"


@pytest.mark.parametrize("serve", ["locality", "opportunistic"])
def test_the_order_rests_on_the_jobs_fields_alone_and_epochs_differ(serve: str) -> None:
    fields = {"serve": serve, "world_size": 6, "batch_size": 8, "nodes": nodes_of(RANKS, 1 << 20, 1 << 18), "seed": 5}
    spec, _, order = served(1000, **fields)
    _, _, again = served(1000, **fields)
    other = parse_job(spec.to_json())
    assert other == spec
    assert again.rank_stream(2, 4).tolist() == order.rank_stream(2, 4).tolist()
    assert again.rank_stream(0, 4).tolist() != again.rank_stream(2, 4).tolist()
    _, _, another_seed = served(1000, **fields | {"seed": 6})
    assert another_seed.rank_stream(0, 0).tolist() != order.rank_stream(0, 0).tolist()


@pytest.mark.parametrize(
    ("fields", "first", "digest"),
    [
        ({"serve": "locality"}, [411, 259, 116, 897, 564, 965, 806, 289], "d069b24266fb3b73"),
        ({"serve": "opportunistic", "level": 0.8}, [886, 5, 823, 972, 15, 772, 369, 990], "20dc02d2f09c22a6"),
    ],
)
def test_an_order_that_was_served_once_is_served_for_ever(
    fields: dict[str, object], first: list[int], digest: str
) -> None:
    """A run that goes on under a later mlfs goes on in its order: whoever changes these figures breaks such runs."""
    sizes = np.arange(1000, dtype=np.int64) * 37 % 9000
    nodes = nodes_of(RANKS, 1 << 20, 1 << 18)
    _, _, order = served(1000, sizes, world_size=6, batch_size=8, seed=5, nodes=nodes, **fields)
    streams = [order.rank_stream(epoch, rank).tolist() for epoch in (0, 1) for rank in range(6)]
    assert streams[0][:8] == first
    assert hashlib.sha256("".join(f"{stream}\n" for stream in streams).encode()).hexdigest()[:16] == digest


def test_one_node_has_nothing_to_deal() -> None:
    _, true, order = served(100, serve="locality", world_size=2, batch_size=8, nodes=nodes_of([[0, 1]], 50 * 4096))
    assert [order.rank_stream(1, rank).tolist() for rank in (0, 1)] == [
        true.rank_stream(1, rank).tolist() for rank in (0, 1)
    ]


def test_what_no_node_keeps_comes_in_rounds_in_pieces_of_the_tree_which_differ_by_epoch() -> None:
    """400 of 800 samples are kept; the two buffers of each node take 50 more."""
    nodes = nodes_of([[0], [1]], 200 * 4096, 50 * 4096)
    fields = {"serve": "opportunistic", "level": 0.0, "world_size": 2, "batch_size": 10, "nodes": nodes}
    spec, _, order = served(800, **fields)
    assert order.rank_stream(0, 0).size == 400
    assert (order.figures["rounds"], order.figures["kept"]) == (4, 0.5)
    spans = []
    for epoch in (0, 1):
        by_step = np.array([list(chain(*step)) for step in steps(order, spec, epoch)])
        rounds = by_step.reshape(4, -1)
        for one in rounds:
            away = np.sort(one[order.kept.node[one] < 0])
            assert abs(len(away) - 100) <= 2
            assert (np.diff(np.flatnonzero(np.isin(np.flatnonzero(order.kept.node < 0), away))) > 1).sum() <= 3
        spans.append(rounds[0][order.kept.node[rounds[0]] < 0].tolist())
        pieces = [set(order.rank_stream(epoch, rank)[:100].tolist()) for rank in (0, 1)]
        theirs = [np.sort([index for index in piece if order.kept.node[index] < 0]) for piece in pieces]
        assert all(len(piece) > 30 for piece in theirs), "each node reads a piece of its own"
    assert sorted(spans[0]) != sorted(spans[1])
    whole = served(800, **fields | {"level": 1.0})[2]
    assert whole.rank_stream(0, 0).size == 400
    assert whole.figures["rounds"] == 1


def test_where_windows_differ_a_round_is_refilled_as_the_smallest_takes_it() -> None:
    nodes = nodes_of([[0], [1]], 0, 50 * 4096)
    nodes[1]["buffer_bytes"] = 20 * 4096
    _, _, order = served(100, serve="opportunistic", world_size=2, batch_size=10, nodes=nodes)
    refill = order.refill(0, [0], [order.rank_stream(0, 0)], files=1)
    assert refill is not None
    assert refill.room_bytes <= PART_SHARE * 20 * 4096


@pytest.mark.parametrize("serve", ["locality", "opportunistic"])
def test_the_plan_of_the_cluster_has_the_nodes_on_which_the_order_rests_as_owners(serve: str) -> None:
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 30_000, 900)
    nodes = nodes_of(RANKS, 3 << 20)
    _, _, order = served(900, sizes, serve=serve, world_size=6, batch_size=8, nodes=nodes, epochs=4)
    readers = np.zeros((4, 900), dtype=np.uint8)
    for epoch in range(4):
        for rank in range(6):
            readers[epoch, order.rank_stream(epoch, rank)] = rank // 2
    rooms = tuple(tuple(node["keeps_bytes"]) for node in nodes)
    kept = order.kept.node >= 0
    assert 0.5 < kept.mean() < 1
    owner = Members((0, 1, 2), 0, rooms).share(sizes, [readers], order.kept.node).owner
    assert (owner[kept] == order.kept.node[kept]).mean() > 0.99  # but for a sample at the edge of a node's room
    # What a node holds already stays there; what a lost node was to keep is others'.
    held = np.full(900, -1, dtype=np.int16)
    held[:50] = 1
    owner = Members((0, 1, 2), 0, rooms, away=(2,)).share(sizes, [readers], order.kept.node, held).owner
    assert (owner[:50] == 1).all()
    assert not (owner == 2).any()


def test_what_a_node_holds_already_comes_before_what_the_order_takes_it_to_keep() -> None:
    """Room for 40 samples, full of what an earlier job has read."""
    holder = np.full(100, -1, dtype=np.int16)
    holder[50:90] = 1
    kept_at = np.where(np.arange(100) < 60, 1, -1).astype(np.int16)
    readers = np.ones((2, 100), dtype=np.uint8)
    members = Members((0, 1), 1, ((0, 0), (40 * 4096, 0)))
    shares = members.share(np.full(100, 4096), [readers], kept_at, holder)
    assert np.flatnonzero(shares.owner == 1).tolist() == list(range(50, 90))


def test_a_served_order_without_nodes_is_refused_in_one_line() -> None:
    with pytest.raises(JobError, match="a served order is dealt to nodes"):
        served(10, serve="locality")
    spec, true, order = served(10, serve="locality", nodes=nodes_of([[0]], 0))
    assert order.around(true, spec.model_copy(update={"serve": None})) is true
    assert isinstance(order.around(true, spec), ServedOrder)


def test_a_served_order_of_batches_that_nobody_has_told_is_refused() -> None:
    """Dealt in batches of one sample it would be another order than that of the loader's batches."""
    nodes = nodes_of([[0]], 0)
    with pytest.raises(JobError, match='left out: there is no "batch_size"'):
        parse_job({"epochs": 3, "serve": "locality", "nodes": nodes})
    one = parse_job({"epochs": 3, "serve": "locality", "nodes": nodes, "batch_size": 1})
    assert parse_job(one.to_json()) == one


@pytest.mark.parametrize("serve", ["locality", "opportunistic"])
def test_a_batch_that_is_larger_than_an_epoch_is_the_whole_epoch(serve: str) -> None:
    """A batch of a thousand million places would take more memory than there is."""
    fields = {"serve": serve, "world_size": 2, "nodes": nodes_of([[0], [1]], 10 * 4096, 8 * 4096)}
    _, _, large = served(50, **fields, batch_size=10**9)
    _, _, whole = served(50, **fields, batch_size=25)
    for epoch in (0, 1):
        for rank in (0, 1):
            assert large.rank_stream(epoch, rank).tolist() == whole.rank_stream(epoch, rank).tolist()
        refills = [one.refill(epoch, [0], [one.rank_stream(epoch, 0)], files=1) for one in (large, whole)]
        assert str(refills[0]) == str(refills[1])
        assert (refills[0] is None) == (serve == "locality")


def test_orders_of_trees_that_differ_say_so() -> None:
    """Nodes that have not joined may see other states of a data set, which has as many samples on each."""
    fields = {"serve": "opportunistic", "world_size": 2, "nodes": nodes_of([[0], [1]], 10 * 4096)}
    sizes = np.full(50, 4096, dtype=np.int64)
    spec, true, order = served(50, sizes, **fields)
    assert served(50, sizes.copy(), **fields)[2].tree == order.tree
    sizes[7] += 1
    assert served(50, sizes, **fields)[2].tree != order.tree
    elsewhere = np.append(np.arange(49), 50)
    assert ServedOrder(true, spec, np.full(50, 4096), elsewhere).tree != order.tree


@pytest.mark.parametrize(
    "fields",
    [
        {"level": 0.5},
        {"serve": "locality", "level": 0.5},
        {"serve": "opportunistic", "level": 1.5},
        {"nodes": nodes_of([[0]], 1)},
        {"serve": "locality", "nodes": nodes_of([[0], [0]], 1)},
        {"serve": "locality", "nodes": nodes_of([[0, 1]], 1)},
        {"serve": "locality", "nodes": [{"node": 0, "ranks": "0", "keeps_bytes": "many"}]},
        {"serve": "locality", "nodes": [{"node": 0, "ranks": "0", "keeps_bytes": [10**400]}]},
        {"serve": "locality", "nodes": [{"node": 0, "ranks": "0", "keeps_bytes": [-1]}]},
        {"serve": "locality", "nodes": [{"node": 32_767, "ranks": "0", "keeps_bytes": [1]}]},
    ],
)
def test_what_goes_not_together_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(JobError, match="must be"):
        parse_job({"epochs": 1} | fields)


def test_nodes_that_name_more_ranks_than_any_world_has_are_refused_before_they_fill_the_memory() -> None:
    assert ranks_in("0-3,6") == (0, 1, 2, 3, 6)
    assert ranks_in(",".join(["0-999999"] * 2)) == ()
    rows = [{"node": node, "ranks": "0-999999", "keeps_bytes": [1]} for node in range(5000)]
    tracemalloc.start()
    try:
        with pytest.raises(JobError, match="each rank has one node"):
            parse_job({"epochs": 1, "serve": "locality", "nodes": rows})
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()


def test_nodes_that_run_different_numbers_of_ranks_are_dealt_to_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One node runs 30 ranks, 29 others run one each: as many places as ranks would be are dealt for each node."""
    ranks = [list(range(30)), *([rank] for rank in range(30, 59))]
    fields = {"serve": "locality", "world_size": 59, "batch_size": 2, "nodes": nodes_of(ranks, 20 * 4096)}
    whole = served(59 * 2 * 12, **fields)[2].rank_stream(1, 40).tolist()
    dealt = []

    def deal(ids: Ids, ranks_of: list[list[int]], holder: Nodes) -> Ids:
        dealt.append(len(ids))
        return deal_to_ranks(ids, ranks_of, holder)

    monkeypatch.setattr("mlfs.orders.served.deal_to_ranks", deal)
    monkeypatch.setattr("mlfs.orders.served.SAMPLES_AT_ONCE", 5 * 30 * 30 * 2)
    assert served(59 * 2 * 12, **fields)[2].rank_stream(1, 40).tolist() == whole
    assert dealt == [5, 5, 2]


def test_an_order_of_all_ranks_must_be_within_reach() -> None:
    """A sampler that knows of no ranks reads everything on each of them: dealing that takes all of it at once."""
    nodes = nodes_of([list(range(64))], 0)
    spec, _, order = served(200_000, sampler="torch-random", world_size=64, ranks=[0], serve="locality", nodes=nodes)
    with pytest.raises(JobError, match='job field "serve" is out of reach'):
        check_reach(JobStreams(spec, np.arange(200_000), order))
