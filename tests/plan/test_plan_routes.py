"""The cheapest of the places that have a sample, by drawn rates; and that the scheduler goes by it."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlfs.follow.evidence import Read
from mlfs.measure.rates import Rates
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import DISK, NOWHERE
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.routing import FARTHER_FACTOR, Option, cheapest
from mlfs.plan.scheduler.scheduler import Scheduler

RATES = st.sampled_from([0.0, 1e6, 1.4e6, 1.6e6, 1e7, 1e8, 1e9])
OWN = st.sampled_from([PlaceKind.RAM, PlaceKind.LMDB, PlaceKind.SSD])


@given(OWN, RATES, RATES, RATES)
def test_no_place_that_has_the_sample_is_clearly_faster_than_the_one_chosen(
    own: PlaceKind, own_rate: float, peer_rate: float, source_rate: float
) -> None:
    options = [
        Option(1, own, own_rate), Option(2, PlaceKind.PEER, peer_rate), Option(0, PlaceKind.SOURCE, source_rate)
    ]  # fmt: skip
    chosen = cheapest(options)
    clearly = bool(own_rate) and peer_rate > FARTHER_FACTOR * own_rate
    assert chosen == (2 if own is not PlaceKind.RAM and clearly else 1)
    assert cheapest(options[1:]) == 2
    assert cheapest(options[2:]) == 0


def node(disk_bytes_per_s: float, peers_bytes_per_s: float) -> Scheduler:
    """A node with memory, a disk and two peers; it has measured what they give for samples of 100 kB.

    Its disk has copies of samples 0 and 1, owned by nodes 1 and 0; it is node 0.
    """
    places = [
        PlaceInfo(PlaceKind.SOURCE, "pfs", 4), PlaceInfo(PlaceKind.RAM, "ram", 4, 0),
        PlaceInfo(PlaceKind.SSD, "disk", 4, 1 << 30), PlaceInfo(PlaceKind.PEER, "node 1", 4, node=1),
        PlaceInfo(PlaceKind.PEER, "node 2", 4, node=2),
    ]  # fmt: skip
    rates = Rates()
    for _ in range(20):
        for pool, rate in ((2, disk_bytes_per_s), (3, peers_bytes_per_s)):
            if rate:
                rates.batch(pool, 1, 100_000, 100_000 / rate, 1, 1)
    scheduler = Scheduler(memoryview(array.array("q", [100_000] * 4)), places, Limits(1 << 20), rates)
    plan = Plan(np.array([DISK, DISK, NOWHERE, DISK], dtype=np.int8), np.array([1, 0, 2, 0], dtype=np.int16))
    scheduler.step(0.0, [e.Planned(plan), e.CopiesFound(2, [0, 1])])
    scheduler.step(2.0, [e.ReadsSeen([Read(3, 1, 1, 2.0)], [3])])  # places are judged after reads
    return scheduler


def reader(sample: int) -> e.Waits:
    """A reader of this node opens a sample that is not in place."""
    return e.Waits(e.Waiter(sample, 3.0))


def peer(sample: int) -> e.Waits:
    """Another node asks for a sample."""
    return e.Waits(e.Waiter(sample, 3.0, is_peer=True))


def fetch_for(scheduler: Scheduler, event: Any) -> c.Item:
    """What is fetched for somebody who waits."""
    [fetch] = [command for command in scheduler.step(3.0, [event]) if isinstance(command, c.Fetch)]
    assert fetch.waited_for
    return fetch.items[0]


@given(RATES, RATES)
def test_a_copy_on_a_slow_disk_is_left_for_the_owner_behind_a_fast_network(disk: float, peers: float) -> None:
    scheduler = node(disk, peers)
    item = fetch_for(scheduler, reader(0))
    if disk and peers > FARTHER_FACTOR * disk:
        assert (item.place, item.instead, item.keep_in) == (3, 2, ())  # and it is not written to the disk once more
    else:
        assert item.place == 2
    assert fetch_for(scheduler, reader(1)).place == 2  # nobody else has what this node owns


def test_a_lost_owner_is_not_asked_however_fast_it_was() -> None:
    scheduler = node(1e6, 1e9)
    scheduler.step(2.5, [e.PeerLost(3)])
    assert fetch_for(scheduler, reader(0)).place == 2
    assert fetch_for(scheduler, reader(2)).place == 4


def test_what_this_node_owns_is_fetched_and_kept_by_whoever_needs_it_first() -> None:
    """A planned sample that is needed before its turn: a reader, or a peer, has it fetched at once, and it stays."""
    for event in (reader(3), peer(3)):
        item = fetch_for(node(0, 0), event)
        assert (item.place, item.keep_in) == (SOURCE, (2,))


def test_what_a_peer_does_not_have_comes_from_the_source_at_once_and_is_counted() -> None:
    scheduler = node(0, 0)
    waits = reader(2)
    [fetch] = [command for command in scheduler.step(3.0, [waits]) if isinstance(command, c.Fetch)]
    assert fetch.items[0].place == 4
    assert scheduler.statistics().peers_missed == 0
    landed = e.Landed(fetch.fetch, 2, SOURCE, 100_000, True)  # the driver asked the source itself
    assert c.Answer(waits.waiter) in scheduler.step(3.1, [landed])
    assert scheduler.statistics().peers_missed == 1
    other = node(0, 0)
    [fetch] = [command for command in other.step(3.0, [reader(2)]) if isinstance(command, c.Fetch)]
    [again] = [
        command
        for command in other.step(3.1, [e.FetchEnded(fetch.fetch, [e.Landed(fetch.fetch, 2, 4, error=2)])])
        if isinstance(command, c.Fetch)
    ]
    assert again.items[0].place == SOURCE
    assert other.statistics().peers_missed == 1


def test_what_lies_only_in_this_nodes_page_cache_is_fetched_once_more_for_a_peer_and_kept_then() -> None:
    """Pages cannot be sent. After owners changed, much of what a node owns by now lies in its pages alone."""
    scheduler = node(0, 0)
    [fetch] = [command for command in scheduler.step(3.0, [reader(3)]) if isinstance(command, c.Fetch)]
    scheduler.step(3.1, [e.ReadsSeen([Read(3, 1, 1, 3.1)]), e.Landed(fetch.fetch, 3, SOURCE, 100_000, True)])
    node_2, node_3, late = peer(3), peer(3), reader(3)
    assert c.Answer(node_2.waiter) in scheduler.step(3.2, [node_2])  # a copy is about to be kept: it can be sent
    scheduler.step(3.3, [e.Kept(fetch.fetch, 3, 0)])
    item = fetch_for(scheduler, node_3)
    assert (item.place, item.keep_in) == (SOURCE, (2,))
    assert scheduler.step(3.5, [late]) == []  # a reader waits for the same fetch
    commands = scheduler.step(3.6, [e.Landed(fetch.fetch + 1, 3, SOURCE, 100_000, True)])
    answers = [command for command in commands if isinstance(command, c.Answer)]
    assert answers == [c.Answer(node_3.waiter), c.Answer(late.waiter)]


def test_what_was_read_past_the_fetches_is_kept_where_the_plan_wants_a_copy_and_there_is_none() -> None:
    scheduler = node(0, 0)
    assert scheduler.step(3.0, [e.ReadAside(2)]) == []  # node 2 owns it
    assert scheduler.step(3.0, [e.ReadAside(1)]) == []  # a copy is here
    [keep] = scheduler.step(3.0, [e.ReadAside(3)])
    assert keep == c.KeepCopy(keep.fetch, 3, (2,))
    assert scheduler.step(3.1, [e.ReadAside(3)]) == []  # it is about to be kept
    scheduler.step(3.2, [e.Kept(keep.fetch, 3, 2, 100_000)])
    assert scheduler.table.held_by[3] == 2
