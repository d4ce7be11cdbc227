"""Served orders of several jobs: what they take to be kept is kept for all of them, or it is said what has no room."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.plan.members import Members, kept_by_all, warning, without_room
from mlfs.served.partition import partition_by_hash

PAGE, N = 4096, 90
SIZES = np.full(N, PAGE, dtype=np.int64)


def kept(
    first: int, end: int, room: int, nodes: tuple[int, ...] = (0, 3)
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """By sample, the node by which the order of a job that reads these samples takes it to be kept."""
    at = np.full(N, -1, dtype=np.int16)
    part = partition_by_hash(SIZES[first:end], nodes, [[room * PAGE]] * len(nodes), np.arange(first, end))
    at[first:end] = part.node
    return at


def owners(
    kept_at: np.ndarray[tuple[int], np.dtype[np.int16]], room: int
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Who owns each sample by the plan, where nobody reads anything."""
    nobody = [np.full((1, N), 255, dtype=np.uint8)]
    return Members((0, 3), 0, ((room * PAGE,), (room * PAGE,))).share(SIZES, nobody, kept_at).owner


def test_with_room_for_all_both_jobs_find_what_they_rest_on_and_nothing_is_said() -> None:
    jobs = {"train": kept(0, 60, 70), "validation": kept(50, 90, 70)}
    together = kept_by_all(jobs)
    assert together is not None
    for of_job in jobs.values():
        assert (of_job >= 0).any()
        assert (owners(together, 70)[of_job >= 0] == of_job[of_job >= 0]).all()
    assert warning(jobs, SIZES, {0: 70 * PAGE, 3: 70 * PAGE}) == ""
    assert warning({"train": kept(0, 90, 50)}, SIZES, {0: 0, 3: 0}) == "", "a job alone has its own figures"


@pytest.mark.parametrize("room", [10, 25, 70])
def test_what_has_no_room_for_all_is_counted_as_the_plan_leaves_it_and_said_with_the_way_out(room: int) -> None:
    jobs = {"b": kept(0, 60, room), "a": kept(50, 90, room)}
    together = kept_by_all(jobs)
    assert together is not None
    rooms = {0: room * PAGE, 3: room * PAGE}
    left = np.count_nonzero((together >= 0) & (owners(together, room) != together))
    assert without_room(together, SIZES, rooms) == left
    said = warning(jobs, SIZES, rooms)
    assert (said == "") == (left == 0)
    if left:
        assert f"no room for {left} of the {np.count_nonzero(together >= 0)} samples" in said
    assert (room == 70) == (left == 0)


def test_nodes_that_heard_of_the_jobs_in_another_order_plan_the_same() -> None:
    first, second = kept(0, 90, 50), kept(0, 90, 50, nodes=(3,))
    assert (first != second).any()
    one, other = kept_by_all({"a": first, "b": second}), kept_by_all({"b": second, "a": first})
    assert one is not None
    assert other is not None
    assert (one == other).all()
    assert (one[first >= 0] == first[first >= 0]).all()
    assert kept_by_all({}) is None
