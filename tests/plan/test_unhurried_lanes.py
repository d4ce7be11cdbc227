"""Few lanes wait for peers while none of the node's readers does, and more of them once one waits."""

from __future__ import annotations

import pytest

from mlfs.plan.scheduler.pool_queue import UNHURRIED_LANES, LaneGovernor, PoolQueue


def at_work(queue: PoolQueue, urgent: bool) -> int:
    """How many lanes work, as many as may."""
    while queue.working:
        queue.lane_ends()
    while queue.has_lane(urgent):
        queue.lane_begins()
    return queue.working


def run(queue: PoolQueue, urgent: bool, batches: int, now_s: float) -> float:
    """Batches of one sample that each take a lane 0.1 s, as in a place that gives the more the more lanes ask."""
    for _ in range(batches):
        now_s += 0.1 / at_work(queue, urgent)
        queue.ended(1, 1, 0.1, 0.0, now_s, more=True, urgent=urgent)
    return now_s


def test_the_governor_goes_on_where_readers_wait_and_stays_where_it_is_while_none_does() -> None:
    queue = PoolQueue(3, 16, of_peers=True)
    now_s = run(queue, urgent=False, batches=2000, now_s=0.0)
    assert at_work(queue, urgent=False) == queue.governor.allowed == UNHURRIED_LANES
    now_s = run(queue, urgent=True, batches=2000, now_s=now_s)
    assert at_work(queue, urgent=True) == 16
    assert queue.holds_back(urgent=False)
    assert at_work(queue, urgent=False) == UNHURRIED_LANES
    run(queue, urgent=False, batches=2000, now_s=now_s)
    assert at_work(queue, urgent=True) == 16


def test_a_late_node_gets_all_lanes_however_its_rate_changes() -> None:
    """Over slow links the rate of a moment is what other nodes leave of them."""
    queue = PoolQueue(3, 16, of_peers=True)
    now_s, most = 0.0, 0
    for batch in range(200):
        now_s += 0.02 * (1 + batch // 8)  # slower and slower, however many lanes ask
        queue.ended(1, 1, 0.1, 0.0, now_s, more=True, urgent=True)
        assert queue.governor.allowed >= most
        most = queue.governor.allowed
    assert at_work(queue, urgent=True) == 16


def test_lanes_to_peers_that_compute_become_fewer() -> None:
    queue = PoolQueue(3, 16, of_peers=True)
    now_s = run(queue, urgent=True, batches=2000, now_s=0.0)
    for _ in range(2000):
        now_s += 0.001
        queue.ended(1, 1, 0.002, 0.001, now_s, more=True, urgent=True)
    assert at_work(queue, urgent=True) == 2


def test_other_places_are_in_no_hurry_either_and_use_what_they_may() -> None:
    queue = PoolQueue(0, 16)
    run(queue, urgent=False, batches=2000, now_s=0.0)
    assert not queue.holds_back(urgent=False)
    assert at_work(queue, urgent=False) == 16


def test_more_lanes_that_gave_no_more_by_chance_are_tried_again_soon() -> None:
    governor, allowed = LaneGovernor(16), list[int]()
    for step in range(100):
        lanes = governor.allowed
        for lane in range(lanes):  # for 0.4 s, two of them give what all do; they end one after the other
            now_s = 0.02 * (step + (lane + 1) / lanes)
            governor.done(4, 4 * min(2, lanes) / lanes if step < 20 else 4, 0.02, 0.0, now_s)
        allowed.append(governor.allowed)
    assert max(allowed[:20]) == 4
    assert max(allowed) == 16


@pytest.mark.parametrize(("most", "enough"), [(1, 0), (16, 1)])
def test_lanes_that_compute_never_become_more(most: int, enough: int) -> None:
    governor = LaneGovernor(most)
    governor.begin_with(enough)
    allowed = governor.allowed
    for number in range(100):
        governor.done(16, 16, 0.01, 0.01, number / 100)
    assert governor.allowed <= allowed <= most
