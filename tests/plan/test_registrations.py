"""Jobs registered and ended on several nodes at once: all nodes end with the same one, however their words travel."""

from __future__ import annotations

import random
from collections import deque
from itertools import permutations
from typing import Any

import pytest

from mlfs.plan.registrations import Heard, Registration, Registrations

Word = tuple[str, Registration, dict[str, Any] | None]


class Nodes:
    """Nodes whose words to each other arrive in their order, and those of different nodes in any."""

    def __init__(self, count: int, draw: random.Random) -> None:
        self.nodes = [Registrations() for _ in range(count)]
        self.links: dict[tuple[int, int], deque[Word]] = {pair: deque() for pair in permutations(range(count), 2)}
        self.draw = draw

    def tell(self, own: int, word: Word) -> None:
        for (here, _), link in self.links.items():
            if here == own:
                link.append(word)

    def act(self, serial: int) -> None:
        """A node, drawn, is told a job, or the end of one."""
        own = self.draw.randrange(len(self.nodes))
        node = self.nodes[own]
        if self.draw.random() < 0.3:
            if (registration := node.end("train")) is not None:
                self.tell(own, ("train", registration, None))
            return
        fields = {"seed": self.draw.choice([serial, 0])}
        self.tell(own, ("train", node.make("train", fields, own), fields))

    def deliver(self) -> bool:
        """One word arrives; False when none is on its way."""
        ready = [pair for pair, link in self.links.items() if link]
        if not ready:
            return False
        at = self.draw.choice(ready)
        name, registration, fields = self.links[at].popleft()
        node = self.nodes[at[1]]
        if fields is None:
            node.hear_end(name, registration)
        else:
            before = node.fields(name)
            heard = node.hear(name, registration, fields)
            assert (heard is Heard.NEW) == (node.fields(name) != before)
        return True


@pytest.mark.parametrize("seed", range(60))
def test_all_nodes_end_with_one_registration(seed: int) -> None:
    draw = random.Random(seed)
    nodes = Nodes(draw.randint(2, 5), draw)
    for serial in range(draw.randint(2, 12)):
        nodes.act(serial)
        for _ in range(draw.randrange(4)):
            nodes.deliver()
    while nodes.deliver():
        pass
    assert len({(node.last("train"), str(node.fields("train"))) for node in nodes.nodes}) == 1


def test_of_two_at_the_same_moment_that_of_the_lower_node_counts_and_what_comes_after_counts_before_both() -> None:
    low, high = Registrations(), Registrations()
    mine, theirs = low.make("train", {"seed": 1}, 0), high.make("train", {"seed": 2}, 3)
    assert low.hear("train", theirs, {"seed": 2}) is Heard.NOTHING
    assert high.hear("train", mine, {"seed": 1}) is Heard.NEW
    after = high.make("train", {"seed": 2}, 3)
    assert low.hear("train", after, {"seed": 2}) is Heard.NEW
    assert low.fields("train") == {"seed": 2}
    # One job that each node is told: at the same moment once is enough, later it is planned again.
    assert low.hear("train", after._replace(by=2), {"seed": 2}) is Heard.NOTHING
    assert low.hear("train", Registration(after.number + 1, 3), {"seed": 2}) is Heard.AGAIN


def test_the_end_of_one_is_none_of_the_next_and_what_a_node_had_before_counts_least() -> None:
    here, there = Registrations(), Registrations()
    first = here.had_before("train", {"seed": 1}, 0)
    there.hear("train", first, {"seed": 1})
    second = there.make("train", {"seed": 2}, 1)
    assert here.end("train") == first
    assert here.end("train") is None
    assert here.hear("train", second, {"seed": 2}) is Heard.NEW
    assert not there.hear_end("train", first)
    assert there.hear_end("train", second)
    assert there.names() == []
    assert here.names() == ["train"]
