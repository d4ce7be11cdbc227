"""Tells which peers live: one that owes an answer and says nothing is lost, and is asked nothing until it speaks again.

Pure. In: what was heard of whom and when, who was asked. Out: peers that are lost or back, peers that are to be told
that this node lives. An owner may need long for a sample, so an answer that does not come says nothing: agents that
have been asked say ALIVE as long as they owe one.

A lost peer is asked ever more seldom whether it is back. It answers once it can hear again. Until then the questions
lie in memory of the transport, of which there is little: between processes of one machine MPICH has room for 64
messages of a sender, to all others together. If those to the lost peer took all of it, nobody else would hear of the
sender any more.
"""

from __future__ import annotations

from collections.abc import Iterable

# So often an agent says that it lives, in each patience: one or two may be late.
BEATS = 4
# So long an agent that leaves waits for the others to leave too, because MPI ends well only together. Then it is gone.
LEAVE_PATIENCE_S = 2.0


class Liveness:
    """Keeps for each peer when it was heard of last, and whether it owes an answer.

    Args:
        patience_s: how long a peer that owes an answer may say nothing (`--peer-timeout`).
    """

    def __init__(self, nodes: int, own: int, patience_s: float) -> None:
        self._others = [node for node in range(nodes) if node != own]
        self._patience_s = patience_s
        self._heard_s = [0.0] * nodes
        self._asked_s: list[float | None] = [None] * nodes  # since when it owes an answer
        self._said_s = [0.0] * nodes
        self._in_vain = [0] * nodes  # what was said to it since it is lost
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._done: set[int] = set()
        self._gone_s = [0.0] * nodes  # of those that left: when they end, whoever else is there

    @property
    def lost(self) -> frozenset[int]:
        """Peers that do not answer."""
        return frozenset(self._lost)

    @property
    def left(self) -> frozenset[int]:
        """Peers that said that they leave."""
        return frozenset(self._left)

    @property
    def beat_s(self) -> float:
        """How often there is something to do."""
        return self._patience_s / BEATS

    def heard(self, node: int, now_s: float) -> bool:
        """Something came from a peer. Returns whether it was lost and is back."""
        self._heard_s[node] = now_s
        back = node in self._lost and node not in self._left
        if back:
            self._lost.discard(node)
            self._in_vain[node] = 0
        return back

    def asked(self, node: int, now_s: float) -> None:
        """A peer owes an answer now."""
        if self._asked_s[node] is None:
            self._asked_s[node] = now_s

    def owes_nothing(self, node: int) -> None:
        """Note that a peer has answered all that it was asked."""
        self._asked_s[node] = None

    def said(self, node: int, now_s: float) -> None:
        """Something was sent to a peer."""
        self._said_s[node] = now_s
        self._in_vain[node] += node in self._lost

    def found_lost(self, now_s: float) -> list[int]:
        """Peers that have now been silent for too long."""
        lost = [
            node
            for node in self._others
            if node not in self._lost
            and (since_s := self._asked_s[node]) is not None
            and now_s - max(since_s, self._heard_s[node]) > self._patience_s
        ]
        self._lost.update(lost)
        return lost

    def leaves(self, node: int, now_s: float) -> bool:
        """A peer said that it leaves: it is asked nothing any more. Returns whether it was there until now."""
        new = node not in self._lost
        self._gone_s[node] = now_s + LEAVE_PATIENCE_S
        self._lost.add(node)
        self._left.add(node)
        return new

    def to_be_left(self, now_s: float) -> list[int]:
        """Peers to tell that this node leaves: those that live, and those that leave too and have not ended.

        Nothing is sent to a process that may have ended: some MPI libraries do not survive that. MPICH 5 over UCX ends
        with a segmentation fault, over libfabric's TCP it does not come back for a minute.
        """
        half_s = LEAVE_PATIENCE_S / 2  # what is sent needs time to arrive before they end
        return [
            node
            for node in self._others
            if (self._gone_s[node] - now_s > half_s if node in self._left else node not in self._lost)
        ]

    def is_done(self, node: int) -> None:
        """A peer said that its COMMAND is done."""
        self._done.add(node)

    @property
    def all_done(self) -> bool:
        """Whether nobody is waited for: peers are done, have left or are lost."""
        return self._done | self._lost >= set(self._others)

    @property
    def nobody_stays(self) -> bool:
        """Whether all peers have left or do not answer."""
        return self._left | self._lost >= set(self._others)

    @property
    def all_left(self) -> bool:
        """Whether all peers have said that they leave."""
        return len(self._left) == len(self._others)

    def to_be_told(self, owed: Iterable[int], now_s: float) -> list[int]:
        """Peers to say ALIVE to: those that this node owes an answer, and, to learn when they are back, the lost: these
        after pauses each of which is twice as long as the one before."""
        wanted = {*owed, *self._lost} - self._left
        return [node for node in sorted(wanted) if now_s - self._said_s[node] >= self.beat_s * 2 ** self._in_vain[node]]
