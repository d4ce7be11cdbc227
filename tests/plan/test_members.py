"""The plan of a running cluster: the same on all nodes, with what they hold already, without nodes that are lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.plan.epoch_readers import Readers
from mlfs.plan.holdings import Holdings, from_pieces, pieces, together
from mlfs.plan.members import Members
from mlfs.plan.placement import NOWHERE
from mlfs.plan.views import View, Views, parse_view

SAMPLES = 300


def owners(members: Members, sizes: np.ndarray, readers: list[np.ndarray]) -> np.ndarray:
    """Who owns what by all nodes' plans, which have to agree."""
    found = np.full(len(sizes), -1)
    for node in members.nodes:
        plan = replace(members, own=node).plan(sizes, readers)
        assert plan.owner is not None
        assert not (plan.owner == node).any()
        found[(plan.owner < 0) & (plan.classes != NOWHERE) & (found < 0)] = node
    for node in members.nodes:
        plan = replace(members, own=node).plan(sizes, readers)
        assert plan.owner is not None
        elsewhere = plan.owner >= 0
        assert (plan.owner[elsewhere] == found[elsewhere]).all()
    return found


@pytest.mark.parametrize("by_readers", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_held_stays_and_what_a_lost_node_owned_gets_other_owners(by_readers: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 20_000, SAMPLES)
    readers = []
    if by_readers:
        counted = Readers(SAMPLES, 4, 3)
        for _ in range(3):
            counted.add([(node, ids) for node, ids in enumerate(np.array_split(draw.permutation(SAMPLES), 4))])
        readers = [counted.by_epoch]
    members = Members((0, 1, 3, 5), 0, ((3 << 20, 1 << 20),) * 4)
    first = owners(members, sizes, readers)
    assert (first >= 0).all()
    holder = np.where(draw.random(SAMPLES) < 0.7, first, -1).astype(np.int16)
    second = owners(replace(members, holder=holder), sizes, readers)
    assert (second[holder >= 0] == holder[holder >= 0]).all()
    assert (second >= 0).all()
    holder[holder == 3] = -1
    third = owners(replace(members, holder=holder, away=(3,)), sizes, readers)
    assert (third[holder >= 0] == holder[holder >= 0]).all()
    assert set(third.tolist()) <= {0, 1, 5}
    assert (third >= 0).all()


def test_what_is_held_beyond_the_room_is_owned_by_nobody_or_elsewhere() -> None:
    sizes = np.full(20, 4096)
    members = Members((0, 1), 0, ((8 * 4096, 0), (4 * 4096, 4 * 4096)), (), np.zeros(20, dtype=np.int16))
    found = owners(members, sizes, [])
    assert (found == 0).sum() == 8
    assert (found == 1).sum() == 8


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 50))
def test_what_a_node_holds_comes_as_it_was_told(held: list[bool], size: int) -> None:
    flags = np.array(held, dtype=np.bool_)
    told = pieces(flags)
    assert (from_pieces(told, len(flags)) == flags).all()
    text = "".join(told)
    parts = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    holdings = Holdings(len(flags))
    for number, part in enumerate(parts):
        assert holdings.known() == frozenset()
        holdings.hear(4, [number, len(parts), part])
    assert holdings.known() == {4}
    holders = holdings.holders(())
    assert ((holders == 4) == flags).all() if any(held) else holders is None


def test_holders_have_equal_parts_of_what_several_hold() -> None:
    holdings = Holdings(90)
    for node in (2, 5, 7):
        holdings.add(node, np.ones(90, dtype=np.bool_))
    holders = holdings.holders(())
    assert holders is not None
    assert [(holders == node).sum() for node in (2, 5, 7)] == [30, 30, 30]
    rest = holdings.holders({5})
    assert rest is not None
    assert set(rest.tolist()) == {2, 7}


HOLDERS = st.lists(st.integers(-1, 4), min_size=40, max_size=40).map(lambda of: np.array(of, np.int16))


@given(st.lists(HOLDERS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_tellings_give_the_same_holders_in_whatever_order_they_are_taken_together(
    told: list[np.ndarray], draw: random.Random
) -> None:
    found = reduce(together, told, None)
    again = reduce(together, draw.sample(told, len(told)), None)
    if found is None or again is None:
        assert found is again
        assert np.max(told) == -1
        return
    assert (found == again).all()
    assert ((found >= 0) == (np.max(told, axis=0) >= 0)).all()
    assert (np.array(told) == found).any(axis=0).all()


@given(HOLDERS, HOLDERS)
def test_nodes_that_are_away_hold_nothing(one: np.ndarray, two: np.ndarray) -> None:
    left = [np.where(np.isin(each, (1, 3)), -1, each) for each in (one, two)]
    found = together(one, two, (1, 3))
    assert found is not None
    assert (found == together(*left)).all()


def test_of_what_two_tellings_differ_in_each_node_has_its_part() -> None:
    some, others = np.full(10_000, 2, dtype=np.int16), np.full(10_000, 5, dtype=np.int16)
    found = together(some, others)
    assert found is not None
    assert 4_500 < (found == 2).sum() < 5_500


@pytest.mark.parametrize("piece", ["not base64", "AAAA", pieces(np.ones(800, dtype=np.bool_))[0]])
def test_what_no_node_can_have_told_is_refused(piece: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|do not tell|was told"):
        from_pieces([piece], 100)


def test_a_node_that_stays_lost_is_left_out_by_the_lowest_that_is_there() -> None:
    views = {node: Views((0, 1, 2), node, 10.0) for node in range(3)}
    for node in (1, 2):
        views[node].lose([0], 5.0)
    assert views[1].look(14.0) is None
    assert views[2].look(16.0) is None
    made = views[1].look(16.0)
    assert made == View(1, 1, (0,))
    assert views[2].hear(parse_view(json.loads(json.dumps(made))))
    assert views[2].current == made
    # Node 0 was cut off, and had thought the others lost: it learns of the newer view, and has all in the next one.
    views[0].lose([1, 2], 5.0)
    assert views[0].look(16.0) == View(1, 0, (1, 2))
    for node in (1, 2):
        views[node].back(0)
        views[0].back(node)
    assert not views[0].hear(made)
    assert views[1].hear(views[0].current)
    last = views[0].look(17.0)
    assert last == View(2, 0, ())
    assert views[1].hear(last)
    assert views[2].hear(last)


@given(st.integers(0, 2**32 - 1))
def test_whatever_is_lost_and_comes_back_all_have_one_view_in_the_end(seed: int) -> None:
    draw = np.random.default_rng(seed)
    nodes = range(int(draw.integers(2, 6)))
    views = [Views(nodes, node, 2.0) for node in nodes]
    now_s = 0.0

    def all_look() -> None:
        for node in nodes:
            if (made := views[node].look(now_s)) is not None:
                for other in nodes:
                    if other not in views[node].lost and node not in views[other].lost:
                        views[other].hear(made)

    for _ in range(30):
        one, other = draw.integers(len(nodes), size=2).tolist()
        now_s += float(draw.random())
        if one != other and draw.random() < 0.5:
            views[one].lose([other], now_s)
            views[other].lose([one], now_s)
        elif one != other:
            views[one].back(other)
            views[other].back(one)
        all_look()
    for node in nodes:
        for other in nodes:
            views[node].back(other)
            views[node].hear(views[other].current)  # it is told to whoever is back
    for _ in range(3):
        now_s += 3.0
        all_look()
    assert len({one.current for one in views}) == 1
    assert views[0].current.away == ()
