"""What strangers may take of a node: pages beside a job's window, copies in room that no job fills."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mlfs.follow.evidence import Read
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.states import PAGE_BYTES, SampleTable, State, Verb
from mlfs.plan.scheduler.strangers_ahead import PATIENCE_S, SHARE_OF_WINDOW, StrangersAhead

N = 64


def table_of(window_pages: int) -> SampleTable:
    return SampleTable(memoryview(np.full(N, PAGE_BYTES, dtype=np.int64)), window_pages * PAGE_BYTES)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.promise("strangers-room")
def test_whatever_strangers_read_the_jobs_samples_have_their_room(seed: int) -> None:
    rng = random.Random(seed)
    capacity, members = rng.randrange(N) + 1, rng.randrange(1, N)
    table = table_of(2 * N)
    places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1), PlaceInfo(PlaceKind.RAM, "ram", 1, capacity * PAGE_BYTES)]
    keeping = Keeping(places, table)
    keeping.jobs_read([bytearray([1] * members + [0] * (N - members))])
    used = kept = 0
    for fetch, sample in enumerate(rng.sample(range(N), N), 1):
        chosen = keeping.promise(fetch, sample, [False, False])
        if chosen:
            used += PAGE_BYTES
            kept += sample < members
            keeping.kept([(fetch, sample, chosen[0], used)])
    assert kept == min(members, capacity)  # as many as without strangers
    assert used == PAGE_BYTES * (capacity if members < capacity else kept)


def test_without_jobs_all_samples_are_alike() -> None:
    places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1), PlaceInfo(PlaceKind.RAM, "ram", 1, N * PAGE_BYTES)]
    keeping = Keeping(places, table_of(N))
    assert keeping.promise(1, 5, [False, False]) == (1,)


@pytest.mark.promise("strangers-room")
def test_a_stranger_gets_a_part_of_the_window_until_a_job_needs_it() -> None:
    table = table_of(32)
    beside = StrangersAhead(table)

    def reserve(sample: int) -> bool:
        table.move(sample, Verb.RESERVE)
        return True

    beside.read([Read(31, 7, 0, 0.0)], range(20))
    beside.fetch(0.0, reserve)
    assert list(table.pending[:6]) == [1] * (32 // SHARE_OF_WINDOW) + [0, 0]
    assert beside.read([Read(0, 7, 0, 0.5), Read(0, 7, 0, 0.5)], range(1, 20)) == [0]
    beside.fetch(0.5, reserve)
    assert list(table.pending[:6]) == [0, 1, 1, 1, 1, 0]
    assert beside.next_due_s() == PATIENCE_S
    assert beside.expired(PATIENCE_S) == [1, 2, 3]
    assert beside.give_back() == [4]
    assert sum(table.pending) == 0
    beside.read([Read(31, 7, 0, 2.0)], range(30, 40))
    beside.fetch(2.0, lambda sample: False)
    assert sum(table.pending) == 0


def test_what_a_reader_has_open_is_not_fetched_for_him_once_more() -> None:
    table = table_of(32)
    beside = StrangersAhead(table)
    table.opened([1])
    beside.read([Read(0, 7, 0, 0.0)], range(1, 4))
    beside.fetch(0.0, lambda sample: table.move(sample, Verb.RESERVE) == State.QUEUED)
    assert list(table.pending[:5]) == [0, 0, 1, 1, 0]


def test_pages_that_were_found_gone_are_fetched_for_the_next_reader_of_the_same_order() -> None:
    """The same random order, epoch after epoch: the kernel has taken back all that nobody was to read."""
    table = table_of(8 * N)
    order = random.Random(3).sample(range(N), N)
    fetched: list[int] = []

    def reserve(sample: int) -> bool:
        fetched.append(sample)
        table.move(sample, Verb.RESERVE)
        table.move(sample, Verb.BEGIN)
        table.move(sample, Verb.LAND)
        return True

    beside = StrangersAhead(table)
    for sample in range(N):
        table.move(sample, Verb.DEMAND)
        table.move(sample, Verb.LAND)
    for epoch in range(3):
        for at, sample in enumerate(order):
            if epoch == 2 and at == 1:
                beside.pages_gone(sample)
            beside.read([Read(sample, 7, 0, N * epoch + at / N)])
            beside.fetch(N * epoch + at / N, reserve)
        assert bool(fetched) == (epoch == 2)  # nobody has reason to doubt what was read once
    assert fetched == [*order[2:], *order[:2]]  # the next epoch begins as this one did
