"""The shares of a running cluster: made by one node for all, with what they hold already, without lost nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.plan.epoch_readers import Readers
from mlfs.plan.holdings import Holdings, flags_of, from_pieces, pieces
from mlfs.plan.members import Members, Shares
from mlfs.plan.node_reads import counts_by_node
from mlfs.plan.owners import place
from mlfs.plan.placement import NOWHERE

SAMPLES = 300


def owners(
    members: Members, sizes: np.ndarray, readers: list[np.ndarray], holder: np.ndarray | None = None
) -> np.ndarray:
    """Who owns what by all nodes' plans, which are made of shares as they are sent."""
    packed = members.pack(members.share(sizes, readers, holder=holder))
    found = np.full(len(sizes), -1)
    plans = {}
    for node in members.nodes:
        shares = members.unpack(packed, len(sizes))
        plan = plans[node] = replace(members, own=node).own_share(shares, sizes, "by hash").plan
        assert plan.owner is not None
        assert not (plan.owner == node).any()
        found[(plan.owner < 0) & (plan.classes != NOWHERE) & (found < 0)] = node
    for plan in plans.values():
        assert plan.owner is not None
        elsewhere = plan.owner >= 0
        assert (plan.owner[elsewhere] == found[elsewhere]).all()
    return found


@pytest.mark.parametrize("by_readers", [False, True])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_held_stays_and_what_a_lost_node_owned_gets_other_owners(by_readers: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 20_000, SAMPLES)
    sizes[empty := draw.random(SAMPLES) < 0.1] = 0
    readers = []
    if by_readers:
        counted = Readers(SAMPLES, 4, 3)
        for _ in range(3):
            counted.add([(node, ids) for node, ids in enumerate(np.array_split(draw.permutation(SAMPLES), 4))])
        readers = [counted.by_epoch]
    members = Members((0, 1, 3, 5), 0, ((3 << 20, 1 << 20),) * 4)
    first = owners(members, sizes, readers)
    assert (first[~empty] >= 0).all()
    holder = np.where((draw.random(SAMPLES) < 0.7) & ~empty, first, -1).astype(np.int16)
    second = owners(members, sizes, readers, holder)
    assert (second[holder >= 0] == holder[holder >= 0]).all()
    assert (second[~empty] >= 0).all()
    holder[holder == 3] = -1
    third = owners(replace(members, away=(3,)), sizes, readers, holder)
    assert (third[holder >= 0] == holder[holder >= 0]).all()
    assert set(third[~empty].tolist()) <= {0, 1, 5}
    assert (third[~empty] >= 0).all()


def test_what_is_held_beyond_the_room_is_owned_by_nobody_or_elsewhere() -> None:
    sizes = np.full(20, 4096)
    members = Members((0, 1), 0, ((8 * 4096, 0), (4 * 4096, 4 * 4096)))
    found = owners(members, sizes, [], np.zeros(20, dtype=np.int16))
    assert (found == 0).sum() == 8
    assert (found == 1).sum() == 8


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 50))
def test_what_a_node_holds_comes_as_it_was_told(held: list[bool], size: int) -> None:
    flags = np.array(held, dtype=np.bool_)
    told = pieces(np.packbits(flags).tobytes())
    assert (flags_of(told, len(flags)) == flags).all()
    text = "".join(told)
    parts = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    holdings = Holdings(len(flags))
    for number, part in enumerate(parts):
        assert holdings.known == frozenset()
        for _ in range(2):  # what is told twice changes nothing
            holdings.hear(4, number, len(parts), part)
    assert holdings.known == {4}
    holders = holdings.holders(())
    assert ((holders == 4) == flags).all() if any(held) else holders is None


def test_holders_have_equal_parts_of_what_several_hold() -> None:
    holdings = Holdings(90)
    [told] = pieces(np.packbits(np.ones(90, dtype=np.bool_)).tobytes())
    for node in (2, 5, 7):
        holdings.hear(node, 0, 1, told)
    holdings.hear(8, 0, 1, "what no node can have told")
    holders = holdings.holders(())
    assert holders is not None
    assert [(holders == node).sum() for node in (2, 5, 7)] == [30, 30, 30]
    rest = holdings.holders({5})
    assert rest is not None
    assert set(rest.tolist()) == {2, 7}


@pytest.mark.parametrize("piece", ["not base64", "AAAA", "", *pieces(bytes(100))])
def test_what_no_node_can_have_told_is_refused(piece: str) -> None:
    with pytest.raises(ValueError, match=r"base64|padding|do not tell|was told"):
        flags_of([piece], 100)


def test_shares_that_no_planner_can_have_sent_are_refused() -> None:
    members = Members((3, 7), 3, ((4096, 0),) * 2)
    nobody = Shares(np.full(5, -1, dtype=np.int16), np.full(5, -1, dtype=np.int8), np.zeros(5, dtype=np.bool_))
    packed = members.pack(nobody)
    assert len(packed) == 5  # a byte a sample
    assert (members.unpack(packed, 5).owner == -1).all()
    for data in (packed[1:], packed + b"x", b"\xff" * 5):
        with pytest.raises(ValueError, match="samples"):
            members.unpack(data, 5)
    assert len(from_pieces(pieces(bytes(1 << 20)), 10)) == 11  # few bytes that stand for many


def test_a_node_counts_for_itself_the_copies_that_a_whole_placement_gives_it() -> None:
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 9, SAMPLES) * 4096
    readers = np.stack([rng.permutation(SAMPLES) % 5 for _ in range(12)]).astype(np.uint8)
    members = Members((0, 1, 2, 3, 4), 0, ((200 * 4096, 400 * 4096),) * 5)
    shares = members.share(sizes, [readers])
    whole = place(sizes.astype(np.float64), readers, 5, np.array(members.capacities_bytes[0], dtype=np.float64))
    for node, read, counts in counts_by_node(readers, 5):
        own = replace(members, own=node).own_share(shares, sizes, "by who reads")
        assert own.spare
        reads = np.zeros(SAMPLES, dtype=np.uint32)
        reads[read] = counts
        plan, copies = own.with_copies(sizes, reads), whole.copies[node]
        assert len(copies.ids) > 0
        assert (plan.classes[copies.ids] == copies.storage).all()
        assert ((plan.classes != NOWHERE) == ((whole.owner == node) | np.isin(np.arange(SAMPLES), copies.ids))).all()
    held = replace(members, own=0).own_share(
        members.share(sizes, [readers], holder=shares.owner), sizes, "by who reads"
    )
    assert (held.with_copies(sizes, np.full(SAMPLES, 9)).classes == held.plan.classes).all()
    small = replace(members, capacities_bytes=((100 * 4096, 100 * 4096),) * 5)
    assert not small.own_share(small.share(sizes, [readers]), sizes, "by who reads").spare


@pytest.mark.parametrize("fits", [True, False])
def test_caches_stay_where_nodes_go_and_come(fits: bool) -> None:
    """Four nodes, then three of them, then six: no copy moves, and the source gives what nobody holds any more.

    The nodes that are left share evenly what the fourth has held. Those that come get what had no room.
    """
    draw = np.random.default_rng(7)
    samples, size = 6000, 4096
    sizes = np.full(samples, size)
    room = size * (samples if fits else samples // 5)
    holder: np.ndarray | None = None
    held = []
    for nodes in ((0, 1, 2, 3), (0, 1, 2), (0, 1, 2, 4, 5, 6)):
        counted = Readers(samples, len(nodes), 3)
        for _ in range(3):
            counted.add(list(enumerate(np.array_split(draw.permutation(samples), len(nodes)))))
        if holder is not None:
            holder = np.where(np.isin(holder, nodes), holder, -1).astype(np.int16)
        owner = owners(Members(nodes, 0, ((room,),) * len(nodes)), sizes, [counted.by_epoch], holder)
        if holder is not None:
            assert (owner[holder >= 0] == holder[holder >= 0]).all()  # nothing moves between nodes
        kept = int((owner >= 0).sum())
        assert kept == min(samples, len(nodes) * room // size)  # what an epoch takes from the source is the rest
        held.append(np.unique(owner[owner >= 0], return_counts=True)[1])
        holder = owner.astype(np.int16)
    assert all(part.max() <= 1.1 * part.min() for part in held[:2])
    assert len(held[2]) == (3 if fits else 6)
