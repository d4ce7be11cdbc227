"""Copies that make room for others: those needed furthest ahead go, in rounds, and only where the plan says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import evicting, keeping
from mlfs.plan.scheduler.commands import Command, Evict
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.evicting import NOT_NEEDED, ROUND_SHARE, Evicting, distances, furthest_first
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.keeping import Keeping, Plan
from mlfs.plan.scheduler.states import PAGE_BYTES, SampleTable, Verb

N, ROOM = 200, 100


class Some:
    """A node whose memory is full of samples 0 to 99, and a job that reads a stream."""

    def __init__(self, stream: list[int], evicts: bool = True, kind: PlaceKind = PlaceKind.RAM) -> None:
        self.sizes = np.full(N, PAGE_BYTES, dtype=np.int64)
        self.table = SampleTable(memoryview(self.sizes), 50 * PAGE_BYTES)
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1), PlaceInfo(kind, "ram", 1, ROOM * PAGE_BYTES)]
        self.keeping, self.out = Keeping(places, self.table), cast(list[Command], [])
        reads = np.bincount(stream, minlength=N)
        self.keeping.adopt(Plan(np.full(N, NOWHERE, dtype=np.int8), None, {}, reads if evicts else None))
        for sample in range(ROOM):
            self.keeping.found(sample, 1)
        self.keeping.uses(1, ROOM * PAGE_BYTES)
        index = SimpleNamespace(epoch=0, base=0, length=len(stream), ids=[np.array(stream, dtype=np.int32)])
        run = SimpleNamespace(epochs=SimpleNamespace(at_hand={0: index}))
        self.jobs = {1: cast(JobRecord, SimpleNamespace(run=run, uses=SimpleNamespace(cursors=[0])))}
        self.evicting = Evicting(self.table, self.keeping, self.out)

    def evicted(self) -> list[int]:
        """What is evicted now."""
        self.evicting.make_room(self.jobs)
        commands, self.out[:] = self.out[:], []
        return [sample for command in commands for sample in cast(Evict, command).samples]


STREAM = [*range(ROOM - 1, -1, -1), *range(ROOM)]
ROUND = int(ROUND_SHARE * ROOM)


def test_what_is_needed_furthest_ahead_goes_and_its_room_is_there_when_the_place_says_so() -> None:
    some = Some(STREAM)
    gone = some.evicted()
    assert gone == list(range(ROUND))  # the stream begins with the others
    assert not any(some.table.held_by[sample] for sample in gone)
    assert some.keeping.promise(1, 150, [False, False]) == ()
    some.evicting.evicted(1, (ROOM - ROUND) * PAGE_BYTES)
    assert some.keeping.promise(1, 150, [False, False]) == (1,)


def test_there_is_one_round_at_a_time() -> None:
    some = Some(STREAM)
    assert some.evicted()
    assert not some.evicted()
    some.evicting.evicted(1, ROOM * PAGE_BYTES)
    assert some.evicted() == list(range(ROUND, 2 * ROUND))


def test_what_a_fetch_is_about_to_take_stays() -> None:
    some = Some(STREAM)
    some.table.move(0, Verb.RESERVE)
    assert some.evicted() == list(range(1, ROUND + 1))


def members(samples: range) -> bytearray:
    """A job that reads these."""
    return bytearray(int(sample in samples) for sample in range(N))


@pytest.mark.parametrize("kind", [PlaceKind.RAM, PlaceKind.SSD, PlaceKind.LMDB])
def test_what_no_job_reads_goes_from_any_place_and_nothing_else(kind: PlaceKind) -> None:
    some = Some(STREAM, evicts=False, kind=kind)
    assert not some.evicted()  # while there are no jobs
    some.keeping.jobs_read([members(range(4, 150)), members(range(2))])
    some.table.move(2, Verb.RESERVE)
    assert some.evicted() == [3]
    some.evicting.evicted(1, (ROOM - 1) * PAGE_BYTES)
    assert not some.evicted()
    some.keeping.jobs_read([members(range(10))])
    gone = []
    while victims := some.evicted():
        assert len(victims) == ROUND
        gone += victims
        some.evicting.evicted(1, ROOM * PAGE_BYTES)  # the room was taken again meanwhile
    assert sorted(gone) == list(range(10, ROOM))


def test_what_no_job_reads_stays_where_there_is_room_and_where_other_nodes_may_count_on_it() -> None:
    some = Some(STREAM, evicts=False)
    some.keeping.jobs_read([members(range(10))])
    some.keeping.uses(1, (ROOM - ROUND) * PAGE_BYTES)
    assert not some.evicted()
    some.keeping.uses(1, ROOM * PAGE_BYTES)
    some.keeping.adopt(Plan(np.full(N, NOWHERE, dtype=np.int8), np.zeros(N, dtype=np.int16)))
    assert not some.evicted()


def test_what_no_job_reads_goes_before_what_is_needed_furthest_ahead() -> None:
    some = Some(STREAM)
    some.keeping.jobs_read([members(range(ROOM - 1))])
    assert some.evicted() == [ROOM - 1]
    some.evicting.evicted(1, ROOM * PAGE_BYTES)
    assert some.evicted() == list(range(ROUND))


def test_what_no_job_reads_goes_also_where_it_was_found_after_the_place_had_been_looked_through() -> None:
    some = Some(STREAM, evicts=False)
    for sample in range(ROOM):
        some.keeping.lost(sample)
    some.keeping.jobs_read([members(range(2))])
    assert not some.evicted()  # an earlier mount has filled the place, and nobody knows yet with what
    for sample in (1, 90, 120):
        some.keeping.found(sample, 1)
    assert sorted(some.evicted()) == [90, 120]


def test_of_many_samples_one_step_looks_through_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOOK_THROUGH", 40)
    some = Some(STREAM, evicts=False, kind=PlaceKind.SSD)
    some.keeping.jobs_read([members(range(10, 80))])
    gone = []
    for _ in range(20):
        gone.append(some.evicted())
        some.evicting.evicted(1, ROOM * PAGE_BYTES)
    assert max(gone[0]) < 10
    assert sorted(sample for victims in gone for sample in victims) == [*range(10), *range(80, ROOM)]


@pytest.mark.parametrize("unread", [False, True])
def test_a_place_of_few_large_samples_makes_room_for_one_of_them(unread: bool) -> None:
    some = Some(STREAM, evicts=not unread)
    if unread:
        some.keeping.jobs_read([members(range(50, N))])
    free_bytes = ROUND * PAGE_BYTES  # of a round; the samples that come take four pages
    some.keeping.uses(1, ROOM * PAGE_BYTES - free_bytes)
    assert not some.evicted()
    some.sizes[150] = 4 * PAGE_BYTES
    assert some.keeping.promise(1, 150, [False, False]) == ()
    gone = some.evicted()
    assert len(gone) == 4
    some.evicting.evicted(1, (ROOM - len(gone)) * PAGE_BYTES - free_bytes)
    assert some.keeping.promise(1, 150, [False, False]) == (1,)
    some.sizes[151] = ROOM * PAGE_BYTES // 2  # too large a part of the place
    assert some.keeping.promise(2, 151, [False, False]) == ()
    assert not some.evicted()


@pytest.mark.parametrize("more", [{"evicts": False}, {"kind": PlaceKind.SSD}])
def test_nothing_is_evicted_unless_the_plan_says_so_and_never_from_a_disk(more: dict[str, Any]) -> None:
    assert not Some(STREAM, **more).evicted()


def test_where_fetches_under_way_have_all_the_room_nobody_looks_at_what_is_needed_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = Some(STREAM)
    for sample in range(ROOM):
        some.table.move(sample, Verb.RESERVE)
    looked: list[int] = []
    monkeypatch.setattr(
        evicting, "distances", lambda samples, streams: looked.append(samples) or distances(samples, streams)
    )
    assert not some.evicted()
    assert not looked
    some.table.move(7, Verb.CANCEL)
    assert some.evicted() == [7]
    assert looked == [N]


def test_what_is_not_needed_in_any_epoch_at_hand_goes_first_the_least_read_of_it_before_all() -> None:
    held, needed = np.arange(4), np.array([5, NOT_NEEDED, 9, NOT_NEEDED])
    assert furthest_first(held, needed, np.array([1, 7, 1, 3])).tolist() == [3, 1, 2, 0]


@given(st.lists(st.tuples(st.lists(st.integers(-2, 9), max_size=30), st.integers(0, 99)), max_size=4))
def test_needs_are_the_nearest_places(streams: list[tuple[list[int], int]]) -> None:
    expected = {sample: NOT_NEEDED for sample in range(10)}
    for ids, ahead in streams:
        for at, sample in enumerate(ids):
            if sample >= 0:
                expected[sample] = min(expected[sample], ahead + at)
    found = distances(10, [(np.array(ids, dtype=np.int32), ahead) for ids, ahead in streams])
    assert found.tolist() == list(expected.values())
