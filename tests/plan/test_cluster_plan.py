"""Nodes that plan together, without threads and without time but what is drawn: in the end all go by one plan.

Drawn: jobs that come and go, links that are cut, nodes that are lost, words and computations that come in any order but
their own. The nodes are `ClusterPlan`s, driven as a mount drives its own.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.drawn import cases

from mlfs.plan.cluster_plan import (
    NO_PLAN,
    PATIENCE_S,
    Adopt,
    ClusterPlan,
    Command,
    CountReaders,
    FindOwners,
    Gather,
    GiveUp,
    PlanId,
    Tell,
    Unpack,
)
from mlfs.plan.holdings import from_pieces, pieces
from mlfs.plan.members import Members, OwnShare
from mlfs.plan.placement import NOWHERE

SAMPLES, NODES, ROOM, LOST_FOR_GOOD_S = 40, 5, 6, 30.0
SIZES = np.full(SAMPLES, 4096, dtype=np.int64)


class Node:
    """A node with its samples, what it computes, and what it goes by."""

    def __init__(self, own: int, tell: Callable[[int, Tell], None]) -> None:
        members = Members(tuple(range(NODES)), own, ((ROOM * 4096,),) * NODES)
        self.plan = ClusterPlan(members, SAMPLES, LOST_FOR_GOOD_S, 0.0)
        self.holds = np.zeros(SAMPLES, dtype=np.bool_)
        self.computes: deque[Callable[[], None]] = deque()
        self.share: OwnShare | None = None
        self._own = own
        self._tell = tell
        self._held = NO_PLAN, self.holds

    def go_on(self) -> None:
        """Do what is to be done."""
        while commands := self.plan.take():
            for command in commands:
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Tell():
                self._tell(self._own, command)
            case Gather(of):
                self._held = of, self.holds.copy()
                told = pieces(np.packbits(self.holds).tobytes())
                self.computes.append(partial(self.plan.gathered, of, told))
            case CountReaders(of):
                self.computes.append(partial(self.plan.counted, of))
            case FindOwners(of, members, holdings):
                shares = members.share(SIZES, [], None, holdings.holders(members.away))
                share = members.own_share(shares, SIZES, "by hash")
                text = pieces(members.pack(shares))
                self.computes.append(partial(self.plan.shared, of, share, text, "by hash"))
            case GiveUp():
                pass  # what is computed for it comes too late
            case Unpack(of, members, parts, by_what):
                shares = members.unpack(from_pieces(parts, SAMPLES * 4), SAMPLES)
                self.computes.append(partial(self.plan.unpacked, of, members.own_share(shares, SIZES, by_what)))
            case Adopt(of, share):
                self.share = share
                got = self.holds & ~self._held[1] if self._held[0] == of else self.holds
                self.plan.hold(of, np.flatnonzero(got))

    def owners(self) -> np.ndarray[Any, Any]:
        """Who owns each sample, as this node sees it."""
        assert self.share is not None
        owner = np.where(self.share.plan.classes != NOWHERE, self._own, self.share.plan.owner)
        for owns in self.plan.owned_besides:
            owner[owns.samples] = owns.node
        return owner


class World:
    """The nodes, their words on the way, and what is cut."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.now_s = 0.0
        self.words: dict[tuple[int, int], deque[str]] = {}
        self.told: list[tuple[int, int, str]] = []  # all that was ever said
        self.cut: set[frozenset[int]] = set()
        self.stopped: set[int] = set()
        self.dead: set[int] = set()
        self.nodes = [Node(own, self._tell) for own in range(NODES)]

    def _tell(self, own: int, tell: Tell) -> None:
        for other in range(NODES):
            if other != own and tell.to in (None, other) and not self.dead & {own, other}:
                self.words.setdefault((own, other), deque()).append(json.dumps(tell.value))
                self.told.append((own, other, json.dumps(tell.value)))

    def there(self) -> list[int]:
        """The nodes that do anything."""
        return [own for own in range(NODES) if own not in self.stopped | self.dead]

    def step(self) -> None:
        """Something that has to happen happens: a word comes, a computation ends, or a second passes."""
        at = self.there()
        ways = [
            way for way, words in self.words.items()
            if words and frozenset(way) not in self.cut and not {*way} - {*at}
        ]  # fmt: skip
        computing = [own for own in at if self.nodes[own].computes]
        kind = self.draw.choice(["word"] * 6 * bool(ways) + ["result"] * 2 * bool(computing) + ["second"])
        if kind == "word":
            own, other = self.draw.choice(ways)
            self.nodes[other].plan.hear(own, json.loads(self.words[own, other].popleft()))
            self.nodes[other].go_on()
        elif kind == "result":
            own = self.draw.choice(computing)
            self.nodes[own].computes.popleft()()
            self.nodes[own].go_on()
        else:
            self.now_s += 1
            for own in at:
                self.nodes[own].plan.look(self.now_s, self.nodes[own].plan.under_way)
                self.nodes[own].go_on()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def say_again(self) -> None:
        """All words that were ever said come once more, at once."""
        for own, other, word in list(self.told):
            self.nodes[other].plan.hear(own, json.loads(word))
            self.nodes[other].go_on()

    def calm(self) -> None:
        """Nothing happens any more but what follows from what has, until nobody does anything for long."""
        quiet_s = last_s = self.now_s
        while self.now_s < quiet_s + LOST_FOR_GOOD_S + 3 * PATIENCE_S:
            self.step()
            if any(self.words.values()) or any(node.computes for node in self.nodes):
                quiet_s = self.now_s
            assert self.now_s < last_s + 5000

    def cut_off(self, pairs: set[frozenset[int]], back: bool = False) -> None:
        """Cut links, or mend them."""
        self.cut = self.cut - pairs if back else self.cut | pairs
        for one, other in map(sorted, pairs):
            for own, of in ((one, other), (other, one)):
                if own not in self.dead and of not in self.dead:
                    if back:
                        self.nodes[own].plan.back(of)
                    else:
                        self.nodes[own].plan.lose([of])
                    self.nodes[own].go_on()

    def strike(self) -> None:
        """Something happens to nodes, for a while."""
        kind, own = self.draw.choice(("cut", "off", "stop", "stop", "die")), self.draw.randrange(NODES)
        others = [other for other in range(NODES) if other != own]
        if kind == "stop":
            self.stopped.add(own)
            self.steps(self.draw.choice((20, 150)))
            self.stopped.discard(own)
        elif kind == "die" and not self.dead:
            self.dead.add(own)
            self.words = {way: words for way, words in self.words.items() if own not in way}
            self.nodes[own].computes.clear()
            for other in others:
                self.nodes[other].plan.lose([own])
                self.nodes[other].go_on()
        else:
            pairs = {frozenset((own, other)) for other in (others if kind == "off" else others[:1])}
            self.cut_off(pairs)
            self.steps(self.draw.choice((20, 150, 600)))
            self.cut_off(pairs, back=True)


@pytest.mark.parametrize("seed", range(cases(30)))
def test_whatever_happens_all_nodes_that_are_left_go_by_one_plan(seed: int) -> None:
    draw = random.Random(seed)
    world = World(draw)
    jobs: dict[str, str] = {}
    for node in world.nodes:
        node.go_on()
    for number in range(draw.randint(2, 8)):
        world.steps(draw.randrange(60))
        if draw.random() < 0.5:
            world.strike()
        own = draw.choice(world.there())
        if world.nodes[own].holds.sum() < ROOM:
            world.nodes[own].holds[draw.randrange(SAMPLES)] = True
        name = f"job{draw.randrange(3)}"
        if name in jobs and draw.random() < 0.4:
            del jobs[name]
        else:
            jobs[name] = str(number)
        for own in draw.sample(range(NODES), NODES):  # each hears of it some time
            if own in world.dead:
                continue
            node = world.nodes[own]
            if name in jobs:
                node.plan.want(name, jobs[name], object() if draw.random() < 0.9 else None, counted=True)
            else:
                node.plan.want_no_more(name)
            node.go_on()
            world.steps(draw.randrange(5))
    world.calm()
    left = [world.nodes[own] for own in world.there()]
    begun = left[0].plan.begun
    assert begun is not None
    assert (begun.target.jobs, begun.target.away) == (jobs, tuple(sorted(world.dead)))
    assert begun.id.by == min(world.there())
    agree(left)


def agree(nodes: list[Node]) -> None:
    """The nodes go by one plan, and know of one owner for each sample."""
    first = nodes[0].owners()
    for node in nodes:
        assert node.plan.begun == nodes[0].plan.begun
        assert not node.plan.under_way
        differ = node.owners() != first
        # A node that holds a sample needs nobody's: it may take another one that holds it, too, to be the owner.
        assert all(sum(one.holds[sample] for one in nodes) > 1 for sample in np.flatnonzero(differ))


@pytest.fixture(autouse=True)
def _several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of forty samples would be one piece: so pieces are asked for one after the other, and get lost."""
    monkeypatch.setattr("mlfs.plan.holdings.PIECE", 16)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_late_or_twice_changes_nothing(seed: int) -> None:
    """All words come again while a plan is made: it is the one that was wanted last, and all go by it. All come again
    when it has begun: it stays, and the answers come to an end."""
    world = World(random.Random(seed))
    for own, node in enumerate(world.nodes):
        node.holds[own::7] = True
        node.go_on()
    for number in range(2):
        for node in world.nodes:
            node.plan.want("train", str(number), object(), counted=True)
            node.go_on()
        world.steps(20)
        world.say_again()
        world.calm()
        agree(world.nodes)
        begun = world.nodes[0].plan.begun
        assert begun is not None
        assert begun.target.jobs == {"train": str(number)}
    said = len(world.told)
    world.say_again()
    world.calm()
    agree(world.nodes)
    assert world.nodes[0].plan.begun == begun
    assert len(world.told) <= 4 * said


def test_a_plan_that_was_given_up_takes_no_result() -> None:
    plan = ClusterPlan(Members((0, 1), 0, ((4096,), (4096,))), SAMPLES, LOST_FOR_GOOD_S, 0.0)
    [counting] = [command for command in plan.take() if isinstance(command, CountReaders)]
    plan.want("train", "a", object(), counted=True)
    kinds = [type(command) for command in plan.take()]
    assert kinds.index(GiveUp) < kinds.index(CountReaders)
    plan.counted(counting.of)
    plan.failed(counting.of)
    assert not plan.take()
    plan.counted(PlanId(counting.of.number + 1, 0))
    assert any(isinstance(command, Gather) for command in plan.take())
