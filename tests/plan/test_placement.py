"""Placement and the order across ranks: small enough to check against brute force."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mlfs.plan.placement import DISK, ClassRoom, pfs_bound_bytes, preferred, slower_groups, spare
from mlfs.plan.scheduler.look_ahead import next_rank


def test_ram_before_lmdb_before_ssd() -> None:
    rooms = [ClassRoom("ssd", 100, 10), ClassRoom("lmdb", 100, 10, 50), ClassRoom("ram", 100, 10)]
    assert preferred(10, rooms)[0] == 2
    assert preferred(10, [rooms[0], rooms[1], ClassRoom("ram", 9, 10)])[0] == 1
    assert preferred(51, rooms[:2])[0] == 0
    assert preferred(10, [ClassRoom("ssd", 9, 10)]) == []
    assert preferred(10, []) == []


def test_two_disks_fill_evenly() -> None:
    free = [1000, 1000]
    for _ in range(100):
        free[preferred(10, [ClassRoom("ssd", room, 10) for room in free])[0]] -= 10
    assert free == [500, 500]


def test_a_clearly_faster_disk_is_filled_first() -> None:
    kinds = ["ram", "ssd", "ssd", "ssd", "lmdb"]
    assert slower_groups(kinds, [1, 100, 60, 40, 1]) == (0, 0, 0, 1, 0)
    assert slower_groups(kinds, [0, 0, 500, 0, 0]) == (0, 0, 0, 0, 0)
    assert slower_groups([], []) == ()
    rooms = [ClassRoom("ssd", 1000, 10, slower=1), ClassRoom("ssd", 50, 10), ClassRoom("ram", 5, 10)]
    assert preferred(10, rooms)[0] == 1
    assert preferred(10, rooms, DISK)[0] == 1
    assert preferred(10, rooms, DISK + 1)[0] == 0
    assert preferred(60, [rooms[0]._replace(footprint_bytes=60), rooms[1]._replace(footprint_bytes=60)], DISK)[0] == 0
    assert [room.free_bytes for room in spare(rooms, DISK, [1, 50, 900])] == [100, 50, 4]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(0, 2000))
def test_filling_first_come_meets_the_bound_within_one_sample(sizes: list[int], capacity: int) -> None:
    free = capacity
    kept = 0
    for size in sizes:
        if preferred(size, [ClassRoom("ram", free, size)]):
            free -= size
            kept += size
    bound = pfs_bound_bytes(sum(sizes), capacity)
    assert bound <= sum(sizes) - kept <= bound + max(sizes)


def test_the_nearest_need_comes_first_and_a_standing_rank_holds_nobody() -> None:
    frontiers, cursors = [0, 0, 0], [0, 0, 0]
    rng = random.Random(0)
    for _ in range(3000):
        rank = next_rank(frontiers, cursors, 100)
        if rank >= 0:
            cursors[rank] += 1
        moving = rng.choice((1, 2))  # rank 0 stands still
        if frontiers[moving] < cursors[moving]:
            frontiers[moving] += 1
    assert cursors[0] <= 100
    assert min(cursors[1:]) > 500


def test_ranks_in_step_take_turns() -> None:
    cursors = [0, 0]
    taken = []
    for _ in range(6):
        rank = next_rank([0, 0], cursors, 100)
        cursors[rank] += 1
        taken.append(rank)
    assert taken == [0, 1, 0, 1, 0, 1]
    assert next_rank([0, 0], [100, 100], 100) == -1
