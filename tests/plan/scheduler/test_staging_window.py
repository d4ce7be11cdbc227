"""The staging window's bookkeeping."""

from __future__ import annotations

import pytest

from mlfs.plan.scheduler.commands import Command, Drop
from mlfs.plan.scheduler.states import SampleTable, State, Verb
from mlfs.plan.scheduler.window import Window

ROOM = 2 * 4096


class Some:
    """A window with room for two of its samples, of a page each."""

    def __init__(self, samples: int = 4, room_bytes: int = ROOM) -> None:
        self.table = SampleTable(memoryview(bytearray(b"\x01" * samples)), room_bytes)
        self.out: list[Command] = []
        self.window = Window(self.table, self.out)

    def read(self, sample: int) -> None:
        """A reader's fetch, and the end of his use."""
        if self.table.state[sample] == State.ABSENT:
            self.table.move(sample, Verb.DEMAND)
            self.table.move(sample, Verb.LAND)
        self.window.retire(sample)

    def recent(self) -> list[int]:
        """The samples that linger, or that a reader has open."""
        return [sample for sample, state in enumerate(self.table.state) if state == State.RECENT]


@pytest.fixture
def some() -> Some:
    return Some()


def test_a_sample_lingers_once_however_often_it_is_read(some: Some) -> None:
    for _ in range(1000):
        some.read(0)
        some.read(1)
    assert some.recent() == [0, 1]
    some.read(2)
    assert some.recent() == [1, 2]
    assert some.table.state[0] == State.DROPPING
    some.window.send()
    assert some.out == [Drop((0,))]


def test_a_sample_that_was_open_when_its_turn_came_lingers_again(some: Some) -> None:
    some.read(0)
    some.table.opened([0])
    some.read(1)
    some.read(2)
    assert some.recent() == [0, 2]  # 0 is open, and 1 made the room
    assert some.table.closed([0])
    some.window.retire(0)
    some.window.make_room(ROOM)
    some.window.send()
    assert some.out == [Drop((1, 2, 0))]


@pytest.mark.parametrize("dropping_already", [False, True])
def test_what_is_of_the_past_is_not_rescued(some: Some, dropping_already: bool) -> None:
    some.read(0)
    if dropping_already:
        some.window.make_room(ROOM)
    some.window.has_changed(0)
    assert some.table.state[0] == State.DROPPING
    assert not some.window.rescue(0)
    some.read(1)
    some.window.make_room(ROOM)
    assert some.table.state[1] == State.DROPPING
    assert some.window.rescue(1)


def test_one_batch_is_dropped_at_a_time_and_what_was_rescued_is_left_out(some: Some) -> None:
    some.read(0)
    some.read(1)
    some.window.make_room(ROOM)
    some.table.move(0, Verb.TOUCH)
    some.window.send()
    some.window.retire(0)
    some.window.make_room(ROOM)
    some.window.send()
    assert some.out == [Drop((1,))]
    assert some.window.dropping == 2
    some.window.dropped((1,))
    some.window.send()
    assert some.out == [Drop((1,)), Drop((0,))]
    some.window.dropped((0,))
    assert some.window.dropping == some.table.window_bytes == 0


def test_where_reads_are_predicted_a_quarter_is_kept_free_of_what_lingers() -> None:
    some = Some(samples=40, room_bytes=32 * 4096)
    some.window.set_linger(False)
    for sample in range(40):
        some.read(sample)
        some.window.send()
        some.window.dropped(tuple(sample for sample in range(40) if some.table.state[sample] == State.GOING))
    assert some.recent() == list(range(24))  # what came first stays: a second epoch finds it in place
    assert [drop for drop in some.out if isinstance(drop, Drop)] == [Drop((sample,)) for sample in range(24, 40)]


def test_a_look_ahead_that_waits_for_room_gets_that_of_several_samples_at_once() -> None:
    some = Some(samples=40, room_bytes=32 * 4096)
    for sample in range(32):
        some.read(sample)
    some.window.set_linger(False)
    some.window.make_room(4096)
    some.window.send()
    assert some.out == [Drop((0, 1, 2))]  # for the one that waits, and a sixteenth of the window
