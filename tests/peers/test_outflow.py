"""How much an agent gives to a peer at a time: what slow links take in a moment, and all of it over fast ones."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest

from mlfs.peers.outflow import FIRST_BYTES, LEAST_BYTES, STUCK_S, WAIT_S, Outflow

MOST_BYTES = 64 << 20
LOOKS_S = 1e-3
SLOW, FAST = 15e6, 3e8  # bytes a second of a link


class Went(NamedTuple):
    """What became of a peer's asks while the link had one rate: unsent bytes at each look of the second half of that
    time, and the bytes that were sent in all of it."""

    unsent_bytes: list[int]
    sent_bytes: float


def asked_for_always(size_bytes: int, *rates: tuple[float, float]) -> list[Went]:
    """A peer that always wants more. rates: of the link one after the other, in bytes a second, and for how long."""
    outflow, queue, now_s = Outflow(MOST_BYTES), deque[float](), 0.0  # queue: what is left of each sample
    went = []
    for bytes_s, seconds in rates:
        unsent, sent_bytes = [], 0.0
        for _ in range(round(seconds / LOOKS_S)):
            now_s += LOOKS_S
            room = bytes_s * LOOKS_S
            while queue and room > 0:
                taken = min(room, queue[0])
                room, sent_bytes = room - taken, sent_bytes + taken
                queue[0] -= taken
                if not queue[0]:
                    queue.popleft()
            while outflow.may_give(size_bytes, size_bytes * len(queue), now_s):
                queue.append(size_bytes)
                outflow.gives(size_bytes, size_bytes * len(queue), now_s)
            unsent.append(size_bytes * len(queue))
        went.append(Went(unsent[len(unsent) // 2 :], sent_bytes))
    return went


@pytest.mark.parametrize("size_bytes", [4_000, 40_000, 400_000])
def test_over_a_slow_link_a_message_waits_no_longer_than_a_sample_or_the_wait(size_bytes: int) -> None:
    [went] = asked_for_always(size_bytes, (SLOW, 4.0))
    assert max(went.unsent_bytes) <= max(size_bytes, 1.1 * WAIT_S * SLOW)
    assert went.sent_bytes > 0.98 * SLOW * 4.0, "the link was left empty"


@pytest.mark.parametrize("size_bytes", [40_000, 400_000])
def test_a_fast_link_is_never_empty_however_seldom_it_is_looked_at(size_bytes: int) -> None:
    [went] = asked_for_always(size_bytes, (FAST, 1.0))
    assert went.sent_bytes > 0.97 * FAST
    assert max(went.unsent_bytes) > FIRST_BYTES


def test_a_link_that_becomes_slow_and_fast_again_is_followed() -> None:
    _, slow, fast = asked_for_always(40_000, (FAST, 1.0), (SLOW, 4.0), (FAST, 1.0))
    assert max(slow.unsent_bytes) <= 1.1 * WAIT_S * SLOW
    assert fast.sent_bytes > 0.95 * FAST


def test_a_peer_that_asks_for_little_raises_no_limit_and_a_single_sample_always_goes() -> None:
    outflow = Outflow(MOST_BYTES)
    for number in range(100):
        outflow.gives(4_000, 4_000, number * 1.0)
        assert outflow.may_give(2 * MOST_BYTES, 0, number * 1.0 + LOOKS_S)
    assert outflow.may_give(FIRST_BYTES - 4_000, 4_000, 100.0)
    assert not outflow.may_give(FIRST_BYTES, 4_000, 100.0)
    assert not Outflow(5_000).may_give(4_000, 4_000, 0.0), "less than the first limit is allowed"


def test_bytes_that_a_peer_has_called_off_keep_nothing_back_but_for_a_moment() -> None:
    outflow = Outflow(MOST_BYTES)
    stuck_bytes, now_s = 2 * FIRST_BYTES, 100.0
    outflow.gives(stuck_bytes, stuck_bytes, now_s)
    assert not outflow.may_give(4_000, stuck_bytes, now_s + STUCK_S / 2)
    assert outflow.may_give(4_000, stuck_bytes, now_s + 1.1 * STUCK_S)
    for number in range(100):
        now_s += 2 * STUCK_S
        assert outflow.may_give(4_000, stuck_bytes, now_s)
        outflow.gives(4_000, stuck_bytes + 4_000, now_s)
        assert outflow.may_give(4_000, stuck_bytes + (4_000 if number % 2 else 0), now_s + LOOKS_S)
    assert outflow.may_give(FIRST_BYTES, 0, now_s), "they were sent after all"
    outflow.gives(FIRST_BYTES, FIRST_BYTES, now_s)
    assert not outflow.may_give(FIRST_BYTES, FIRST_BYTES, now_s)


def test_a_pause_of_the_asker_says_nothing_of_the_link() -> None:
    """All was sent at some moment of the five seconds in which nobody looked."""
    outflow = Outflow(MOST_BYTES)
    outflow.gives(FIRST_BYTES, FIRST_BYTES, 10.0)
    assert outflow.may_give(FIRST_BYTES, 0, 15.0)
    outflow.gives(4_000, 4_000, 15.0)
    assert outflow.may_give(FIRST_BYTES - 4_000, 4_000, 15.0)


def test_the_limit_stays_between_its_bounds() -> None:
    [went] = asked_for_always(4_000, (1e5, 40.0))  # takes 2.5 kB in WAIT_S
    assert max(went.unsent_bytes) == pytest.approx(LEAST_BYTES, abs=4_000)
    outflow = Outflow(FIRST_BYTES)
    for number in range(100):  # all is sent at once, however much it is
        outflow.gives(FIRST_BYTES, FIRST_BYTES, number * LOOKS_S)
    assert not outflow.may_give(4_000, FIRST_BYTES, 1.0)
    assert outflow.may_give(4_000, FIRST_BYTES - 4_000, 1.0)


def test_bytes_that_were_stuck_say_nothing_of_the_link() -> None:
    outflow, now_s = Outflow(MOST_BYTES), 100.0
    outflow.gives(FIRST_BYTES, FIRST_BYTES, now_s)
    while now_s < 100.0 + 2 * STUCK_S:
        now_s += LOOKS_S
        outflow.may_give(4_000, FIRST_BYTES, now_s)
    outflow.gives(4_000, FIRST_BYTES + 4_000, now_s)
    assert outflow.may_give(FIRST_BYTES - 4_000, FIRST_BYTES + 4_000, now_s)
    for _ in range(20):  # all that is given from now on is sent within a look
        outflow.gives(MOST_BYTES, FIRST_BYTES + MOST_BYTES, now_s)
        now_s += LOOKS_S
        assert outflow.may_give(1, FIRST_BYTES, now_s)
    assert outflow.may_give(8 * FIRST_BYTES, FIRST_BYTES + 1, now_s)
