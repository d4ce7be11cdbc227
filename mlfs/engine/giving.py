"""Gives other nodes the samples that this node's agent does not find by itself.

In: samples, as the agent names them. Out: one packet for each, READY: its bytes stand in the catalogue now, or lie in
the landing memory, or are not to be had here. Used by mlfs.engine.peering.
"""

from __future__ import annotations

import logging

from mlfs.engine.agent_session import AgentSession
from mlfs.engine.context import Context
from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.runner import start
from mlfs.peers import link
from mlfs.peers.link import Ready
from mlfs.places.showcase import Showcase
from mlfs.plan.scheduler.events import Released, Waiter, Waits
from mlfs.tree.samples import Version

log = logging.getLogger("mlfs.peers")

# The pool of threads that put samples where the agent can send them from. It is none of those in which lanes wait for
# peers: else all lanes of two nodes would wait for each other, and nobody would be left to give.
GIVING = "giving"


class WaitingPeer(Waiter):
    """Another node that waits for a sample of this one: a reader whose answer is a packet (see `Answerable`).

    Attributes:
        session: the agent that asks for it. token: the agent's number of this. version: the one that is wanted.
    """

    __slots__ = ("_giving", "session", "token", "version")

    def __init__(self, giving: Giving, session: AgentSession, token: int, sample: int, version: Version) -> None:
        super().__init__(sample, giving.clock(), is_peer=True)
        self._giving = giving
        self.session = session
        self.token = token
        self.version = version

    def in_place(self, source_bytes: int) -> bool:
        """Bytes for a node are laid out first, by another thread: this lets nobody go on yet."""
        return False

    def answer(self, brought: Fetched | None) -> None:
        """The sample is in place here; see Answerable."""
        self._giving.lay_out(self, brought)

    def open_direct(self, unstaged: bool) -> None:
        """The sample is too large to be fetched for a node."""
        self._giving.over(self, Ready.MISSING)

    def refuse(self, error: OSError) -> None:
        """The source failed, or a third node owns the sample."""
        self._giving.over(self, Ready.MISSING)


class Giving:
    """Takes the samples that peers want, and answers the agent about each.

    Attributes:
        wanted: how many samples were asked for.
    """

    def __init__(self, context: Context, fetcher: Fetcher, showcase: Showcase) -> None:
        self._step = context.step
        self._runner = context.runner
        self.clock = context.clock
        self._samples = fetcher.samples
        self._fetcher = fetcher
        self._showcase = showcase
        self.wanted = 0

    def ask(self, session: AgentSession, token: int, sample: int, version: Version) -> None:
        """A peer wants a sample."""
        self.wanted += 1
        if not 0 <= sample < len(self._samples) or self._samples.version_of(sample) != version:
            session.send(link.pack(link.PacketKind.READY, [(token, Ready.MISSING, 0, 0)])[0])
            return
        self._step(Waits(WaitingPeer(self, session, token, sample, version)))

    def lay_out(self, peer: WaitingPeer, brought: Fetched | None) -> None:
        """The sample is in place here: put its bytes where the agent can send them from."""

        def then(laid_out: tuple[Ready, int] | None, error: BaseException | None) -> None:
            if error is not None:
                log.error("what a peer wants could not be laid out", exc_info=error)
            self.over(peer, *(laid_out or (Ready.MISSING, 0)))

        start(self._runner, GIVING, self._lay_out, peer, brought, then=then)

    def _lay_out(self, peer: WaitingPeer, brought: Fetched | None) -> tuple[Ready, int]:
        """In a worker: lay the bytes out for the agent. Returns where it finds them."""
        if self._showcase.shows(peer.sample, peer.version):
            return Ready.LOOK, 0
        fetched = brought if brought and brought.data is not None else self._fetcher.for_peer(peer.sample, peer.version)
        if fetched is None or fetched.data is None or fetched.version != peer.version:
            return Ready.MISSING, 0
        landing = peer.session.landing
        offset = landing.reserve(peer.version.size_bytes)
        if offset is None:
            return Ready.MISSING, 0
        landing.write(offset, fetched.data)
        return Ready.LIES, offset

    def over(self, peer: WaitingPeer, how: Ready, offset: int = 0) -> None:
        """On the loop: tell the agent, and be done with the sample."""
        row = peer.token, how, offset, peer.version.size_bytes
        peer.session.send(link.pack(link.PacketKind.READY, [row])[0])
        self._step(Released(peer.sample))
