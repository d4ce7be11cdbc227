"""Which of the nodes that joined are there for good: a numbered view that all nodes share.

Pure. In: nodes that do not answer, or answer again; views that other nodes tell; the time. Out: views to tell. Called
by `mlfs.engine.shared_plan`. A node that is lost for a while goes on owning what it owned: its samples are read from
the source meanwhile. One that stays lost is left out of the next view, and its samples get other owners.

The lowest node that is there numbers the views. Where the network is cut in two, each side has one that does, and each
goes on by a view of its own. When they hear of each other again the newer view counts, and the next one has all in it.
Until then samples are read twice from the source: nothing else follows from views that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class View(NamedTuple):
    """Who is there.

    Attributes:
        number: of two views the one with the higher number counts, then the one of the lower node.
        by: the node that made it. away: the nodes that are not there, ascending.
    """

    number: int = 0
    by: int = 0
    away: tuple[int, ...] = ()

    def is_newer_than(self, other: View) -> bool:
        """Whether this one counts instead of the other."""
        return (self.number, -self.by) > (other.number, -other.by)

    @property
    def name(self) -> str:
        """Differs between views."""
        return f"{self.number} of node {self.by}"


def parse_view(value: Any) -> View:
    """A view as another node told it. Raises ValueError."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        raise ValueError(f"{value!r} is no view")
    return View(int(value[0]), int(value[1]), tuple(sorted(int(node) for node in value[2])))


class Views:
    """See the module.

    Args:
        nodes: all that have joined. patience_s: how long a node is lost before it is taken to be lost for good.

    Attributes:
        current: the view that counts.
    """

    def __init__(self, nodes: Sequence[int], own: int, patience_s: float) -> None:
        self._nodes = tuple(nodes)
        self._own = own
        self._patience_s = patience_s
        self._lost_s: dict[int, float] = {}
        self.current = View(0, min(nodes))

    def lose(self, nodes: Iterable[int], now_s: float) -> None:
        """These do not answer any more."""
        for node in nodes:
            self._lost_s.setdefault(node, now_s)

    def back(self, node: int) -> None:
        """It answers again."""
        self._lost_s.pop(node, None)

    @property
    def lost(self) -> frozenset[int]:
        """Nodes that do not answer now."""
        return frozenset(self._lost_s)

    def hear(self, view: View) -> bool:
        """Another node tells a view. Returns whether it counts from now on."""
        if not view.is_newer_than(self.current):
            return False
        self.current = view
        return True

    def look(self, now_s: float) -> View | None:
        """Now and then: a new view, if there has to be one and this node is the one to make it."""
        away = tuple(
            node
            for node in self._nodes
            if node in self._lost_s
            and (node in self.current.away or now_s - self._lost_s[node] >= self._patience_s)
        )  # fmt: skip
        if away == self.current.away or self._own != min(node for node in self._nodes if node not in away):
            return None
        self.current = View(self.current.number + 1, self._own, away)
        return self.current
