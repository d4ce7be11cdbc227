"""The figures that the nodes of a cluster tell each other now and then, so that `mlfs status` shows them on any node.

In: this node's figures, what other nodes tell of theirs. Out: news to tell, a line for each node. Used by `peering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlfs.engine.agent_session import AgentSession

# A node hears from all others within so many seconds, and from at most so many nodes a second: of few nodes a status is
# two seconds old, of a thousand a minute.
NEWS_EVERY_S = 2
NODES_A_SECOND = 16


class Figures(NamedTuple):
    """Figures of a node. held: samples kept here. got: samples that peers gave. plan: by what owners were chosen."""

    held: int = 0
    held_bytes: int = 0
    got: int = 0
    got_bytes: int = 0
    plan: str = ""


@dataclass(frozen=True, slots=True)
class MemberStatistics:
    """A node of the cluster.

    Attributes:
        name: the machine's. state: "alive", "lost" or "refused"; "silent": this one, whose agent does not answer.
        lost_s: for how long a lost one has not answered, where that is known.
        held, got, plan: see Figures. given: samples that it gave to peers. missing: samples that it asked a peer for
            and that the peer did not have. spoilt: of those, samples that came and were not right.
    """

    node: int
    name: str
    state: str
    lost_s: float | None = field(default=None, metadata={"digits": 1})
    held: int = 0
    held_bytes: int = 0
    given: int = 0
    given_bytes: int = 0
    got: int = 0
    got_bytes: int = 0
    missing: int = 0
    spoilt: int = 0
    plan: str = ""


_TOLD = ("held", "held_bytes", "given", "given_bytes", "got", "got_bytes", "missing", "spoilt")


class RollCall:
    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._heard: dict[int, Mapping[str, Any]] = {}
        self._last_sent: Mapping[str, Any] = {}

    @staticmethod
    def turns(nodes: int) -> int:
        """Every how many seconds there may be news to tell."""
        return max(NEWS_EVERY_S, nodes // NODES_A_SECOND)

    def news(self, session: AgentSession) -> Mapping[str, Any] | None:
        """The news of this node that the others do not know yet, None if there is nothing."""
        own = self._own(session)
        if own == self._last_sent:
            return None
        self._last_sent = own
        return own

    def _own(self, session: AgentSession) -> Mapping[str, Any]:
        counts = session.counts
        agent = {name: counts.get(name, 0) for name in ("given", "given_bytes", "missing", "spoilt")}
        return {**self._figures()._asdict(), **agent}

    def hear(self, node: int, news: Mapping[str, Any]) -> None:
        """Take in what another node tells of itself. Raises ValueError, TypeError or KeyError for nonsense."""
        self._heard[node] = {**{name: int(news[name]) for name in _TOLD}, "plan": str(news["plan"])}

    def members(self, session: AgentSession, now_s: float) -> tuple[MemberStatistics, ...]:
        """A line for each node that has come."""
        lines = []
        for node, about in sorted(session.about.items()):
            known = self._own(session) if node == session.node else self._heard.get(node, {})
            lost_s = session.lost.get(node)
            state = "refused" if node in session.refused else "lost" if node in session.unreachable else "alive"
            state = "silent" if node == session.node and session.silent else state
            silent_s = None if lost_s is None else now_s - lost_s
            lines.append(MemberStatistics(node, str(about.get("name", "")), state, silent_s, **known))
        return tuple(lines)

    def tell_again(self) -> None:
        """Another server has taken a node's mount over, and knows nothing of this one."""
        self._last_sent = {}

    def forget(self) -> None:
        """The agent is gone: in another MPI job the numbers are those of other nodes."""
        self._heard.clear()
        self._last_sent = {}
