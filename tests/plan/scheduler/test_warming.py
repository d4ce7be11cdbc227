"""A warm-up in drawn courses: lanes that end in any order, failures, readers in between, places of any size."""

from __future__ import annotations

import array
import random

import numpy as np
import pytest

from mlfs.measure.rates import Rates
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import MEMORY, NOWHERE
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.warming import WarmingState, WarmingStatistics

N, PAGE, LANES = 400, 4096, 3


class Node:
    """A scheduler with one place that stores, and a driver that does what it says in a drawn order."""

    def __init__(self, seed: int, room: int) -> None:
        self.rng = random.Random(seed)
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", LANES), PlaceInfo(PlaceKind.RAM, "ram", 1, room * PAGE)]
        self.scheduler = Scheduler(memoryview(array.array("q", [PAGE] * N)), places, Limits(64 * PAGE), Rates())
        self.fetches: list[c.Fetch] = []
        self.read: list[int] = []  # what the source was asked for, in order
        self.answered: set[e.Waiter] = set()
        self.held = 0
        self.now_s = 0.0
        self.seconds = 0.004  # that a fetch takes

    @property
    def told(self) -> WarmingStatistics:
        return self.scheduler.statistics().warming

    def step(self, *events: e.Event) -> None:
        self.now_s += 0.001
        for command in self.scheduler.step(self.now_s, events):
            if isinstance(command, c.Fetch):
                self.fetches.append(command)
                self.read += [item.sample for item in command.items if item.place == SOURCE]
            elif isinstance(command, c.Answer | c.Refuse):
                self.answered.add(command.waiter)
            elif isinstance(command, c.Recall) and self.rng.random() < 0.5:  # the lane had not begun it
                self.take_back(command)
            elif isinstance(command, c.Drop):
                self.step(e.Dropped(command.samples))

    def take_back(self, recall: c.Recall) -> None:
        """A reader gets a sample back from a lane."""
        for at, fetch in enumerate(self.fetches):
            if fetch.fetch == recall.fetch:
                left = [item for item in fetch.items if item.sample != recall.sample]
                self.fetches[at] = fetch._replace(items=left)
                self.step(e.Recalled(recall.fetch, recall.sample))

    def end_some(self, count: int) -> None:
        """Drawn fetches end, and the scheduler hears of all of them at once."""
        told: list[e.Event] = []
        while self.fetches and count:
            told += self._ended()
            count -= 1
        self.step(*told)

    def end_one(self, failing: float = 0.0) -> None:
        """A drawn fetch ends."""
        self.step(*self._ended(failing))

    def _ended(self, failing: float = 0.0) -> list[e.Event]:
        fetch = self.fetches.pop(self.rng.randrange(len(self.fetches)))
        landed, kept = [], []
        for item in fetch.items:
            if self.rng.random() < failing:
                landed.append(e.Landed(fetch.fetch, item.sample, error=5))
                continue
            landed.append(e.Landed(fetch.fetch, item.sample, item.place, PAGE, fetch.stage))
            if item.keep_in and item.place == SOURCE:
                self.held += PAGE
                kept.append(e.Kept(fetch.fetch, item.sample, item.keep_in[0], self.held))
        return [e.FetchEnded(fetch.fetch, landed, self.seconds, 0.0), *kept]

    def run(self, failing: float = 0.0) -> None:
        for _ in range(10 * N):
            if not self.fetches and self.told.state is not WarmingState.RUNNING:
                return
            self.end_one(failing) if self.fetches else self.step(e.TimePassed())
        raise AssertionError(self.told)


def counted(told: WarmingStatistics) -> int:
    parts = (told.there, told.fetched, told.no_room, told.not_kept, told.failed)
    assert all(part.bytes == PAGE * part.samples for part in parts)
    return sum(part.samples for part in parts)


@pytest.mark.parametrize("seed", range(30))
def test_each_sample_is_counted_once_and_no_place_holds_more_than_it_may(seed: int) -> None:
    node = Node(seed, room := random.Random(seed).choice([0, 1, 50, N - 1, N, 2 * N]))
    wanted = np.array(node.rng.sample(range(N), node.rng.randrange(1, N)))
    failing = node.rng.choice([0.0, 0.1])
    node.step(e.CopiesFound(1, wanted[: room // 4].tolist()))
    node.step(e.WarmUp(wanted))
    waiters: list[e.Waiter] = []
    while node.told.state is WarmingState.RUNNING and node.fetches:
        assert sum(not fetch.stage for fetch in node.fetches) <= LANES
        if node.rng.random() < 0.2:
            under_way = [item.sample for fetch in node.fetches for item in fetch.items]
            waiters.append(e.Waiter(node.rng.choice([*under_way, node.rng.randrange(N)]), node.now_s))
            node.step(e.Waits(waiters[-1]))
        node.end_one(failing)
        assert node.scheduler.statistics().window_bytes <= PAGE * (64 + len(waiters))
    node.run(failing)
    assert node.told.state is WarmingState.FINISHED
    assert node.told.whole.samples == len(wanted) == counted(node.told)
    assert node.held <= room * PAGE
    assert node.answered == set(waiters)
    if room >= 2 * N:
        assert node.told.no_room.samples == node.told.not_kept.samples == 0


def test_with_nobody_else_the_source_gives_each_sample_once_in_the_order_of_need() -> None:
    node = Node(0, 2 * N)
    wanted = node.rng.sample(range(N), 300)
    node.step(e.WarmUp(np.array(wanted)))
    node.run()
    assert node.read == wanted
    node.step(e.WarmUp(np.arange(N)))
    node.run()
    assert sorted(node.read) == list(range(N))
    assert node.told.there.samples == 300
    assert node.told.run == 2


@pytest.mark.promise("warmup")
def test_what_the_plan_keeps_room_for_stays_free() -> None:
    node = Node(1, 100)
    classes = np.full(N, NOWHERE, dtype=np.int8)
    classes[300:] = MEMORY
    node.step(e.Planned(Plan(classes)))
    node.step(e.WarmUp(np.arange(N)))
    node.run()
    assert set(range(300, N)) <= set(node.read)
    assert node.told.fetched.samples == 100


def test_stopped_it_brings_what_lanes_have_to_its_end_and_begins_nothing() -> None:
    node = Node(2, N)
    node.step(e.WarmUp(np.arange(N)))
    node.end_one()
    node.step(e.WarmUp(None))
    begun = list(node.read)
    node.run()
    assert node.read == begun
    assert node.told.state is WarmingState.STOPPED
    assert node.told.fetched.samples == len(begun)


@pytest.mark.promise("warmup")
def test_what_others_want_goes_first() -> None:
    """What is queued for others gets the next lane, and stopped prefetching stops the warm-up, too."""
    node = Node(3, 2 * N)
    node.step(e.WarmUp(np.arange(N - 1)))
    fetching = node.scheduler.fetching
    fetching.reserve_beside(N - 1, node.now_s)
    node.scheduler.table.expect(N - 1)
    assert fetching.idle_lane_takes() == 0
    begun = len(node.read)
    node.end_one()
    assert node.read[begun] == N - 1
    node.step(e.Stopped(True))
    left = len(node.read)
    while node.fetches:
        node.end_one()
    assert len(node.read) == left
    node.step(e.Stopped(False))
    node.run()
    assert sorted(node.read) == list(range(N))


@pytest.mark.parametrize("seed", range(20))
def test_what_others_fetch_meanwhile_does_not_hold_its_end_up(seed: int) -> None:
    """A warm-up finds samples under way, and leaves them to those who have them fetched. Once they are there nothing
    happens any more, and nobody reads: the warm-up has ended by then."""
    node = Node(seed, 2 * N)
    rng = node.rng
    node.seconds = rng.choice([0.004, 0.3])  # a lane takes some samples at once of a fast source, one of a slow one
    node.step(e.WarmUp(np.arange(40)))
    node.run()
    others = rng.sample(range(40, N), rng.randrange(8, 60))
    for sample in others:
        node.step(e.Waits(e.Waiter(sample, node.now_s)))
    node.step(e.WarmUp(np.array(rng.sample(range(N), N) if rng.random() < 0.5 else others)))
    while node.fetches or (node.told.state is WarmingState.RUNNING and node.scheduler.warming.has_more):
        node.end_some(rng.randrange(1, 20)) if node.fetches else node.step(e.TimePassed())
    assert node.told.state is WarmingState.FINISHED, node.told
    assert counted(node.told) == node.told.whole.samples
