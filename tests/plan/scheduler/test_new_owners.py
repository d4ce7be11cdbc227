"""Owners that change while samples wait for a lane: each is fetched from where it is got by then, in its turn."""

from __future__ import annotations

import array

import numpy as np

from mlfs.measure.rates import Rates
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import MEMORY, NOWHERE
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping, Plan
from mlfs.plan.scheduler.routing import Routing
from mlfs.plan.scheduler.states import SampleTable

N, RAM, NODE_1, NODE_2 = 12, 1, 2, 3
PLACES = [
    PlaceInfo(PlaceKind.SOURCE, "pfs", 1), PlaceInfo(PlaceKind.RAM, "ram", 1, N << 12),
    PlaceInfo(PlaceKind.PEER, "node 1", 1, node=1), PlaceInfo(PlaceKind.PEER, "node 2", 1, node=2),
]  # fmt: skip


class Node:
    """Node 0 of three. It owns samples 0 to 3, node 1 owns 4 to 7, node 2 the rest."""

    def __init__(self) -> None:
        self.out: list[c.Command] = []
        sizes, limits, rates = memoryview(array.array("q", [4096] * N)), Limits(1 << 20), Rates()
        self.table = SampleTable(sizes, limits.window_bytes)
        self.keeping = Keeping(PLACES, self.table)
        routing = Routing(PLACES, sizes, rates, {}, self.out)
        self.fetching = Fetching(self.table, PLACES, limits, routing, self.keeping, rates, self.out)
        classes = np.repeat([MEMORY, NOWHERE, NOWHERE], 4).astype(np.int8)
        self.plan = Plan(classes, np.repeat([-1, 1, 2], 4).astype(np.int16))
        self.keeping.adopt(self.plan)

    def queue(self, *samples: int) -> None:
        for sample in samples:
            self.table.expect(sample)
            assert self.fetching.reserve_beside(sample, 0.0)

    def fetched(self) -> list[tuple[int, int]]:
        """What each lane begins with: sample and place, by its pool."""
        self.fetching.dispatch(urgent=True)
        fetches = [command for command in self.out if isinstance(command, c.Fetch)]
        return [(item.sample, item.place) for fetch in fetches for item in fetch.items]


def test_what_waits_for_a_lane_goes_to_its_new_owner_in_its_turn() -> None:
    node = Node()
    node.queue(4, 0, 8, 1, 5)
    assert node.plan.owner is not None
    owner = node.plan.owner.copy()
    owner[0], owner[5] = 1, 2
    node.keeping.adopt(Plan(node.plan.classes, owner))
    node.fetching.reroute()
    node.fetching.reroute()  # and nothing else
    assert node.fetching.under_way == 5
    node.fetching.dispatch(urgent=True)
    [source, *peers] = [command.items for command in node.out if isinstance(command, c.Fetch)]
    assert [(item.sample, item.place) for item in source] == [(1, SOURCE)]
    assert [(item.sample, item.place) for items in peers for item in items] == [
        (4, NODE_1), (0, NODE_1), (8, NODE_2), (5, NODE_2),
    ]  # fmt: skip


def test_a_sample_that_turns_out_to_lie_elsewhere_is_asked_for_there_and_not_kept_here() -> None:
    node = Node()
    node.queue(0, 1)
    node.keeping.held_by_node(2, np.array([0]))
    node.fetching.reroute([0, 7])
    assert sorted(node.fetched()) == [(0, NODE_2), (1, SOURCE)]
    assert not node.keeping.is_promised(0)
    assert node.keeping.is_promised(1)
    assert node.keeping.holds().nonzero()[0].tolist() == [1]


def test_what_this_node_holds_or_fetches_to_keep_stays_its_own() -> None:
    node = Node()
    node.queue(1)
    assert node.fetched() == [(1, SOURCE)]
    node.keeping.found(0, RAM)
    node.keeping.held_by_node(2, np.array([0, 1, 2]))
    assert [node.keeping.owner(sample) for sample in (0, 1, 2)] == [-1, -1, 2]
    node.keeping.held_by_node(-1, np.array([9]))
    assert node.keeping.owner(9) == -1
    assert node.keeping.promise(99, 9, [False] * len(PLACES)) == (RAM,)
    assert node.plan.owner is not None
    assert node.plan.owner[9] == 2  # the plan itself is as it was


def test_a_copy_that_waits_for_a_lane_of_its_own_place_stays_there() -> None:
    node = Node()
    node.keeping.found(4, RAM)
    node.queue(4)
    node.keeping.held_by_node(2, np.array([5]))
    node.fetching.reroute()
    assert node.fetched() == [(4, RAM)]
