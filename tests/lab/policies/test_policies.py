"""Every policy behind the one interface: what it reads, from where, and that it has it there."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.lab.policies.policy import EpochReads, Unfit, View
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.order import SimulatedOrder
from mlfs.plan.model import Curve, PerformanceModel, StorageClass
from mlfs.plan.node_reads import PFS

NODES, SAMPLES, EPOCHS = 4, 1037, 4


def model(ram: float, ssd: float) -> PerformanceModel:
    fast, slow = Curve.flat(1000.0), Curve.flat(60.0)
    return PerformanceModel(
        nodes=NODES,
        epochs=EPOCHS,
        global_batch=40,
        drop_last=False,
        compute_bytes_per_s=100.0,
        preprocess_bytes_per_s=200.0,
        network_bytes_per_s=500.0,
        pfs=Curve(((1, 60.0), (4, 140.0))),
        staging=StorageClass("staging", 100.0, fast, fast, 2),
        classes=(StorageClass("ram", ram, fast, fast, 2), StorageClass("ssd", ssd, slow, slow, 2)),
    )


def view(ram: float, ssd: float, by_node: tuple[tuple[float, ...], ...] = ()) -> tuple[View, SimulatedOrder]:
    order = SimulatedOrder(SAMPLES, model(ram, ssd).changed(capacities_by_node=by_node), 3)
    sizes = np.random.default_rng(5).integers(1, 4, SAMPLES).astype(np.float64)
    return View(order.model, sizes, order.readers(), 20.0, np.random.default_rng(7)), order


# Rooms for a node, of 2,074 bytes in all: everything, a part of it that four nodes fill, less than that, nothing.
ROOMS = [(1000.0, 2000.0), (300.0, 300.0), (100.0, 150.0), (0.0, 0.0)]


@pytest.mark.parametrize("rooms", ROOMS)
@pytest.mark.parametrize("name", POLICIES)
def test_reads_are_of_the_epoch_and_keep_within_the_cluster(name: str, rooms: tuple[float, float]) -> None:
    seen, order = view(*rooms)
    policy = POLICIES[name]
    try:
        run = policy.begin(seen)
    except Unfit:
        assert name.startswith("lbann") or name == "deepio_hybrid"
        assert seen.sizes_bytes.sum() > NODES * rooms[0]
        assert name != "deepio_hybrid" or rooms[0] == 0
        return
    for epoch in range(EPOCHS):
        ids = order.epoch(epoch)
        before = ids.copy()
        reads = run.epoch(epoch, ids)
        assert (ids == before).all(), "the order is the caller's"
        check(reads, before, seen, policy.traits.true_order)


def check(reads: EpochReads, ids: np.ndarray, seen: View, true_order: bool) -> None:
    real = reads.ids >= 0
    assert reads.ids.shape == ids.shape
    assert (real.sum(axis=2) == (ids >= 0).sum(axis=2)).all()
    if true_order:
        assert (reads.ids == ids).all()
    assert (reads.node[real] < NODES).all()
    assert (reads.storage[real] < 2).all()
    assert ((reads.storage == PFS) | (reads.node != PFS))[real].all(), "a class is some node's"
    rooms = seen.model.node_capacities_bytes()
    for node in range(NODES):
        for storage, room in enumerate(rooms[node]):
            served = np.unique(reads.ids[real & (reads.node == node) & (reads.storage == storage)])
            if true_order:
                assert seen.sizes_bytes[served].sum() <= room + 1e-9, "it gives out no more than it can hold"
    assert (reads.background_bytes >= 0).all()


@pytest.mark.parametrize("rooms", ROOMS)
def test_mlfs_reads_from_the_pfs_what_the_bound_says(rooms: tuple[float, float]) -> None:
    seen, order = view(*rooms)
    run = POLICIES["mlfs"].begin(seen)
    drawn = []
    for epoch in range(EPOCHS):
        reads = run.epoch(epoch, order.epoch(epoch))
        drawn.append(seen.sizes_bytes[reads.ids[(reads.storage == PFS) & (reads.ids >= 0)]].sum())
    total = seen.sizes_bytes.sum()
    bound = max(0.0, total - NODES * sum(rooms))
    assert drawn[0] == total
    # Sizes are 1 to 3 bytes, so that every gap can be filled: not a byte more.
    assert drawn[1:] == [bound] * (EPOCHS - 1)


# By node: one without a disk, one with nothing, a large one; fits in all nodes, and in none.
UNEVEN = [
    ((400.0, 600.0), (400.0, 0.0), (400.0, 600.0), (400.0, 600.0)),
    ((100.0, 150.0), (100.0, 150.0), (0.0, 0.0), (50.0, 300.0)),
    ((2000.0, 0.0), (50.0, 100.0), (50.0, 100.0), (50.0, 100.0)),
]
NEEDS_EQUAL_NODES = {
    "lbann_dynamic", "lbann_preload", "locality_aware", "deepio_ordered", "deepio_opportunistic", "deepio_hybrid",
    "parallel_staging",
}  # fmt: skip


@pytest.mark.parametrize("rooms", UNEVEN)
@pytest.mark.parametrize("name", POLICIES)
def test_nodes_that_differ_are_served_or_refused(name: str, rooms: tuple[tuple[float, ...], ...]) -> None:
    seen, order = view(1.0, 1.0, rooms)
    policy = POLICIES[name]
    if name in NEEDS_EQUAL_NODES and len({ram for ram, _ in rooms}) > 1:
        with pytest.raises(Unfit, match="equal capacities"):
            policy.begin(seen)
        return
    try:
        run = policy.begin(seen)
    except Unfit as refusal:  # memory is equal in the first of them, and that is all that LBANN and DeepIO use
        said = str(refusal)
        assert name in NEEDS_EQUAL_NODES
        assert "exceeds the memory" in said if name.startswith("lbann") else "equal capacities" in said
        return
    for epoch in range(EPOCHS):
        ids = order.epoch(epoch)
        check(run.epoch(epoch, ids.copy()), ids, seen, policy.traits.true_order)


@pytest.mark.parametrize("rooms", UNEVEN)
def test_mlfs_is_at_the_bound_where_nodes_differ(rooms: tuple[tuple[float, ...], ...]) -> None:
    seen, order = view(1.0, 1.0, rooms)
    run = POLICIES["mlfs"].begin(seen)
    drawn = []
    for epoch in range(EPOCHS):
        reads = run.epoch(epoch, order.epoch(epoch))
        drawn.append(seen.sizes_bytes[reads.ids[(reads.storage == PFS) & (reads.ids >= 0)]].sum())
    total = seen.sizes_bytes.sum()
    assert drawn == [total, *[max(0.0, total - sum(map(sum, rooms)))] * (EPOCHS - 1)]


def test_locality_aware_deals_the_same_batches_by_place() -> None:
    seen, order = view(300.0, 300.0)
    run = POLICIES["locality_aware"].begin(seen)
    ids = order.epoch(0)
    reads = run.epoch(0, ids)
    for step in range(len(ids)):
        assert sorted(reads.ids[step].ravel()) == sorted(ids[step].ravel())
    own = reads.node == np.arange(NODES)[None, :, None]
    assert own[reads.ids >= 0].mean() > 0.8


def test_nopfs_and_lobster_serve_from_what_was_fetched_before() -> None:
    for name in ("nopfs", "lobster"):
        seen, order = view(1000.0, 2000.0)
        run = POLICIES[name].begin(seen)
        first = run.epoch(0, order.epoch(0))
        later = run.epoch(1, order.epoch(1))
        assert (first.storage[first.ids >= 0] == PFS).any()
        assert (later.storage[later.ids >= 0] != PFS).mean() > 0.95


def test_deepio_opportunistic_never_leaves_memory() -> None:
    seen, order = view(100.0, 0.0)
    reads = POLICIES["deepio_opportunistic"].begin(seen).epoch(0, order.epoch(0))
    assert (reads.storage[reads.ids >= 0] == 0).all()
