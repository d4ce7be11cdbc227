"""The placement of policy mlfs: within the capacities, at the bound, even, local."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlfs.plan.owners import node_plan, place, plan_alone
from mlfs.plan.placement import DISK, MEMORY, NOWHERE
from mlfs.served.partition import partition_by_hash


def dealt(samples: int, nodes: int, epochs: int, generator: np.random.Generator) -> np.ndarray:
    return np.stack([generator.permutation(np.arange(samples) % nodes) for _ in range(epochs)]).astype(np.uint8)


@settings(deadline=None, max_examples=80)
@given(
    samples=st.integers(0, 120),
    nodes=st.integers(1, 7),
    epochs=st.integers(1, 6),
    rooms=st.lists(st.integers(0, 400), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_within_capacity_at_the_bound_and_even(
    samples: int, nodes: int, epochs: int, rooms: list[int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 40, samples).astype(np.float64)
    capacities = np.array(rooms, dtype=np.float64)
    placed = place(sizes, dealt(samples, nodes, epochs, generator), nodes, capacities)
    used = np.zeros((nodes, len(rooms)))
    for sample in range(samples):
        assert (placed.owner[sample] < 0) == (placed.storage[sample] < 0)
        if placed.owner[sample] >= 0:
            used[placed.owner[sample], placed.storage[sample]] += sizes[sample]
    owned = used.sum(axis=1)
    left = capacities - used
    orphans = np.flatnonzero((placed.owner < 0) & (sizes > 0))  # what is empty needs nobody
    if len(orphans):  # nothing that has no owner would fit anywhere
        assert sizes[orphans].min() > left.max()
    elif sizes.sum() + nodes * len(rooms) * sizes.max(initial=0) <= nodes * capacities.sum():
        # Else all are nearly full, and what is left goes wherever it fits.
        assert owned.max(initial=0) <= sizes.sum() / nodes + sizes.max(initial=0) + 1e-9
    for node, copies in enumerate(placed.copies):
        assert (placed.owner[copies.ids] != node).all()
        assert (np.diff(copies.ids) > 0).all()
        used[node] += np.bincount(copies.storage, sizes[copies.ids], minlength=len(rooms))
    assert (used <= capacities + 1e-9).all()


def test_owners_read_what_they_own_more_often_than_chance() -> None:
    generator = np.random.default_rng(1)
    readers = dealt(20_000, 4, 10, generator)
    sizes = np.ones(20_000)
    placed = place(sizes, readers, 4, np.array([2000.0, 2500.0]))
    owned = placed.owner >= 0
    assert owned.sum() == 18_000  # S - N D is left, to the byte
    own_reads = (readers[1:, owned] == placed.owner[owned]).mean()
    assert own_reads > 0.4  # chance is 0.25; the most any placement could have is about 0.47
    often = (readers[1:] == placed.owner).sum(axis=0)
    assert often[placed.storage == 0].mean() > often[placed.storage == 1].mean()


def test_many_nodes_that_each_read_little() -> None:
    generator = np.random.default_rng(2)
    readers = np.stack([generator.permutation(np.arange(3000) % 300) for _ in range(4)]).astype(np.uint16)
    placed = place(np.ones(3000), readers, 300, np.array([10.0]))
    assert (placed.owner >= 0).all()
    assert (np.bincount(placed.owner) == 10).all()
    assert ((readers == placed.owner).any(axis=0)).mean() > 0.9


@settings(deadline=None, max_examples=120)
@given(
    samples=st.integers(0, 500),
    epochs=st.integers(1, 5),
    rooms=arrays.arrays(
        np.float64, st.tuples(st.integers(1, 7), st.integers(1, 3)), elements=st.sampled_from((0.0, 7.0, 90.0, 700.0))
    ),
    largest=st.sampled_from((1, 40, 600)),
    seed=st.integers(0, 2**32 - 1),
)
def test_uneven_nodes_hold_all_that_fits_and_no_more_than_they_can(
    samples: int, epochs: int, rooms: np.ndarray, largest: int, seed: int
) -> None:
    """Most samples are very small, and a few are large, some of them larger than some classes."""
    nodes, classes = rooms.shape
    generator = np.random.default_rng(seed)
    sizes = np.where(generator.random(samples) < 0.05, largest, generator.integers(1, 4, samples)).astype(np.float64)
    before = rooms.copy()
    placed = place(sizes, dealt(samples, nodes, epochs, generator), nodes, rooms)
    assert (rooms == before).all(), "the capacities are the caller's"
    assert ((placed.owner < 0) == (placed.storage < 0)).all()
    left = rooms.copy()
    owned = placed.owner >= 0
    np.subtract.at(left, (placed.owner[owned], placed.storage[owned]), sizes[owned])
    assert (left >= 0).all()
    assert not owned.all() or sizes.sum() <= rooms.sum()
    assert (sizes[~owned] > left.max()).all(), "what has no owner fits nowhere"
    for node, copies in enumerate(placed.copies):
        assert (placed.owner[copies.ids] != node).all()
        left[node] -= np.bincount(copies.storage, sizes[copies.ids], minlength=classes)
    assert (left >= 0).all()


def test_a_large_sample_keeps_no_small_ones_out() -> None:
    """The first sample does not fit into memory, and the disk has no room for all that come after it."""
    sizes = np.array([200.0, *[1.0] * 150])
    placed = place(sizes, np.zeros((3, 151), dtype=np.uint8), 1, np.array([[50.0, 300.0]]))
    assert (placed.owner == 0).all()
    assert np.bincount(placed.storage, sizes).tolist() == [50, 300]


def owned_bytes(sizes: np.ndarray, rooms: np.ndarray, epochs: int = 6) -> np.ndarray:
    """What each node owns, by class."""
    nodes, generator = len(rooms), np.random.default_rng(3)
    placed = place(sizes, dealt(len(sizes), nodes, epochs, generator), nodes, rooms)
    result = np.zeros(rooms.shape)
    np.add.at(result, (placed.owner, placed.storage), sizes)
    return result


def test_a_node_of_twice_the_room_owns_twice_as_much() -> None:
    sizes = np.random.default_rng(6).integers(1, 9, 6000).astype(np.float64)
    rooms = np.array([[1.0, 2.0], [2.0, 4.0], [1.0, 2.0]]) * sizes.sum() / 6
    owned = owned_bytes(sizes, rooms).sum(axis=1)
    part = sizes.sum() / 4
    assert np.abs(owned - np.array([part, 2 * part, part])).max() <= 3 * sizes.max()


def test_no_disk_is_used_while_another_nodes_memory_has_room() -> None:
    """By their whole room the nodes with disks would own nine tenths, and memory of the other would lie idle."""
    sizes = np.ones(3000)
    owned = owned_bytes(sizes, np.array([[1100.0, 9000.0], [1100.0, 0.0], [1100.0, 9000.0]]))
    assert (owned[:, 1] == 0).all()
    assert np.abs(owned[:, 0] - 1000).max() <= 2


def test_a_node_that_keeps_nothing_owns_nothing_and_the_others_take_its_part() -> None:
    sizes = np.ones(3000)
    owned = owned_bytes(sizes, np.array([[2000.0], [0.0], [1000.0]]))
    assert owned[:, 0].tolist() == [2000, 0, 1000]


def test_equal_nodes_are_placed_alike_however_their_room_is_said_and_on_every_machine() -> None:
    """All nodes of a cluster have to come to the same placement: who changes the digest changes what all compute."""
    ids = np.arange(4001)
    sizes = (ids * 7919 % 997 + 1).astype(np.float64)
    readers = np.stack([ids * prime % 4001 % 6 for prime in (1, 7, 101, 1009, 2003)]).astype(np.uint8)
    digests = [hashlib.sha256(), hashlib.sha256()]
    for part in (0.4, 0.999, 1.1, 3.0):
        room = np.array([0.4, 0.6]) * part * sizes.sum() / 6
        for digest, capacities in zip(digests, (room, np.tile(room, (6, 1))), strict=True):
            placed = place(sizes, readers, 6, capacities)
            for values in (placed.owner, placed.storage, *(values for copies in placed.copies for values in copies)):
                digest.update(values.tobytes())
    assert {digest.hexdigest()[:16] for digest in digests} == {"f926019c6e685eaf"}


def test_owners_read_as_much_of_their_own_in_each_epoch() -> None:
    """More nodes than epochs: a sample has as many readers as epochs, and any of them may own it."""
    nodes, epochs, n = 64, 5, 64 * 100
    readers = dealt(n, nodes, epochs, np.random.default_rng(8))
    placed = place(np.ones(n), readers, nodes, np.array([150.0]))
    own = (readers[1:] == placed.owner).mean(axis=1)
    assert np.abs(own - 1 / (epochs - 1)).max() < 0.03, own


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_node_alone_is_the_case_of_one_node(data: st.DataObject) -> None:
    """Whole pages, so that the daemon's rounding changes nothing; epoch 0 reads nothing, for owners are chosen by what
    comes after it."""
    n, epochs = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 6))
    sizes = np.array(data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)), dtype=np.float64) * 4096
    rows = data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=epochs, max_size=epochs))
    readers = np.where(np.array([[False] * n, *rows]), 0, 255).astype(np.uint8)
    reads = (readers == 0).sum(axis=0).astype(np.uint16)
    capacities = np.array([data.draw(st.integers(0, 20)), data.draw(st.integers(20, 100))], dtype=np.float64) * 4096
    placed = place(sizes, readers, 1, capacities)
    alone = plan_alone(sizes.astype(np.int64), reads, capacities.astype(np.int64).tolist())
    if capacities.sum() >= sizes.sum() + sizes.max():  # else what is left over may fill a gap
        named = alone.classes != NOWHERE
        assert (node_plan(placed, 0, [MEMORY, DISK]).classes[named] == alone.classes[named]).all()
        assert (reads[~named] < 2).all()


@pytest.mark.parametrize("nodes", [2, 4, 16])
@pytest.mark.parametrize("room", [0.6, 1.2])
def test_no_owner_serves_much_more_of_an_epoch_than_the_others(nodes: int, room: float) -> None:
    """In uniform cases: nodes of equal room, ranks that each read the same share, sizes as those of photographs."""
    generator = np.random.default_rng(nodes)
    sizes = np.round(generator.lognormal(11.5, 0.5, 800 * nodes))
    readers = dealt(len(sizes), nodes, 4, generator)
    capacity = room * float(sizes.sum()) / nodes
    planned = place(sizes, readers, nodes, np.array([capacity])).owner
    rooms = [[int(capacity)]] * nodes
    hashed = partition_by_hash(sizes, range(nodes), rooms).node
    for owner in (planned, hashed):
        for reader in readers[1:]:
            served = (owner >= 0) & (owner != reader)
            by_owner = np.bincount(owner[served], sizes[served], minlength=nodes)
            assert by_owner.max() <= 1.2 * by_owner.mean(), by_owner


def test_of_several_jobs_what_all_nodes_together_read_most_has_an_owner() -> None:
    """Three nodes run a job each, over parts that overlap: what nobody keeps is read by one of them only."""
    generator = np.random.default_rng(3)
    parts = [generator.permutation(900)[:450] for _ in range(3)]
    rows = np.full((3 * 4, 900), 255, dtype=np.uint8)
    for index in range(len(rows)):
        rows[index, parts[index % 3]] = index % 3
    owner = place(np.ones(900), rows, 3, np.array([200.0])).owner
    reads = (rows != 255).sum(axis=0)
    assert (owner >= 0).sum() == 600
    assert reads[owner >= 0].sum() == np.sort(reads)[::-1][:600].sum()
