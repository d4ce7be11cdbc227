"""Which node keeps each sample by hash: all rooms are used, and what has none is drawn from all over the data set."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.plan.members import Members
from mlfs.served.partition import NOBODY, PAGE_BYTES, fill, partition_by_hash

N = 1000
SIZES = np.full(N, PAGE_BYTES)


@pytest.mark.parametrize("classes", [1, 2])
def test_a_sample_that_is_larger_than_a_class_keeps_nothing_else_out(classes: int) -> None:
    sizes = SIZES.copy()
    sizes[3] = 10 * N * PAGE_BYTES
    room = [N * PAGE_BYTES // classes] * classes
    kept = partition_by_hash(sizes, [0, 1], [room, room])
    assert kept.node[3] == kept.level[3] == NOBODY
    assert (np.delete(kept.node, 3) != NOBODY).all()


def test_what_a_node_holds_fills_its_classes_likewise() -> None:
    sizes, memory, disk = SIZES.copy(), N * PAGE_BYTES // 2, 2 * N * PAGE_BYTES
    sizes[3] = N * PAGE_BYTES
    holder = np.zeros(N, dtype=np.int16)
    classes = Members((0, 1), 0, ((memory, disk), (0, 0))).share(sizes, [], holder=holder).level
    assert classes[3] == 1, "it fits on the disk alone"
    assert (classes == 0).sum() == N // 2
    assert (classes >= 0).all()


def test_classes_are_filled_in_turn_and_none_beyond_its_capacity() -> None:
    assert fill(np.array([4, 3, 11, 9, 1, 2]), [8, 10]).tolist() == [0, 0, NOBODY, 1, 0, NOBODY]
    draw = np.random.default_rng(0)
    for _ in range(200):
        taken, capacities = draw.integers(1, 12, 20), draw.integers(0, 40, 2)
        level = fill(taken, capacities.tolist())
        for number, capacity in enumerate(capacities):
            assert taken[level == number].sum() <= capacity


def test_what_has_no_room_is_spread_over_the_data_set_and_the_same_while_rooms_shrink() -> None:
    rooms = {share: [[int(share * N / 2) * PAGE_BYTES]] * 2 for share in (0.5, 0.25)}
    half, quarter = (partition_by_hash(SIZES, [0, 1], room).node != NOBODY for room in rooms.values())
    assert half.sum() == pytest.approx(N / 2, abs=2)
    assert half[: N // 2].sum() == pytest.approx(half[N // 2 :].sum(), rel=0.2)
    assert (half[quarter]).all()


def test_a_node_that_goes_moves_what_it_kept_and_nothing_else() -> None:
    room = [N * PAGE_BYTES]
    before = partition_by_hash(SIZES, [0, 1, 2], [room] * 3).node
    after = partition_by_hash(SIZES, [0, 2], [room] * 2).node
    assert (after[before != 1] == before[before != 1]).all()
    assert 0.2 * N < (after[before == 1] == 0).sum() * 2 < 0.5 * N
