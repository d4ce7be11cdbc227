"""The server's side of the agent: it lets this node's agent in, and joins the nodes that the agent speaks for.

In: an agent's connection on a Unix socket that only this user can open; what its peers want; what became of what this
node wants. Out: places for the scheduler (PeersJoined), samples that peers want (for mlfs.engine.giving), messages of
peers' servers. One agent at a time; when it dies or leaves, its peers are lost, and this node goes on alone. Runs on
the loop; what agents send is read there, what lanes ask of peers is sent from their threads (mlfs.peers.desk).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from mlfs.engine.agent_session import AgentSession, Hello, hello_of, listen, refusal
from mlfs.engine.context import Cluster, Context
from mlfs.engine.fetch import Fetcher
from mlfs.engine.giving import GIVING, Giving
from mlfs.engine.roll_call import MemberStatistics, RollCall
from mlfs.engine.runner import start
from mlfs.engine.shared_jobs import SharedJobs
from mlfs.engine.shared_plan import SharedPlan
from mlfs.peers import link
from mlfs.peers.desk import NodePlace
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.on_disk import OnDisk
from mlfs.places.place import TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mlfs.plan.members import members_of
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.processes import begun_ticks
from mlfs.tree.samples import Version

log = logging.getLogger("mlfs.peers")

# Files whose change times nodes compare when they join: enough that a few that were replaced meanwhile do not matter.
PROBED_FILES = 32
OTHER_TIMES = (
    "its source shows other change times (ctime): it is another copy of the data set, or its file system makes them up;"
    " each node reads its own"
)

# The most lanes to all peers. Over a slow link each waits for one sample at a time, and few leave it empty meanwhile:
# an epoch (442 kB, 150 Mbit/s, four nodes) took 1.25 times what the model says with 4 lanes, 1.12 with 8, 1.08 with 16.
PEER_LANES = 16
HELLO_PATIENCE_S = 5.0
# How often this node looks who is lost for good and whether its neighbour is there, and tells the others how it does.
LOOK_EVERY_S = 1.0
CHECK_TURNS = 5


@dataclass(frozen=True, slots=True)
class PeeringStatistics:
    """The part of peers in the status.

    Attributes:
        node: the number of this one, -1 without an agent. agent: its process. keeper: the process that runs it, or has
            run the last one and goes on.
        nodes: how many there are. silent: the own agent does not answer. lost: nodes that do not, then all others.
        away: those that are lost for good: others own what they owned. view: how often that was planned anew.
        refused: nodes that are no peers, and why. wanted: samples that peers wanted and the agent did not find.
        members: how each node does.
    """

    node: int = -1
    nodes: int = 0
    agent: int = 0
    keeper: int = 0
    silent: bool = False
    joined: bool = False
    lost: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    view: int = 0
    members: tuple[MemberStatistics, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    wanted: int = 0
    under_way: int = 0


class Peering:
    """Lets this node's agent in, and knows which nodes can be asked."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        scheduler: Scheduler,
        fetcher: Fetcher,
        giving: Giving,
        shared: SharedJobs,
        plan: SharedPlan,
        roll: RollCall,
    ) -> None:
        self._step = context.step
        self._runner = context.runner
        self._clock = context.clock
        self._path = cluster.agent_socket
        self._showcase = cluster.showcase
        self._fingerprint = ""
        self._scheduler = scheduler
        self._samples, self._places = fetcher.samples, fetcher.places
        self._place_of: dict[int, int] = {}  # by node; the peers' places are numbered behind this node's own
        self._giving = giving
        self._alone = trio.Event()  # that no agent is there any more
        self._session: AgentSession | None = None
        self._scope: trio.CancelScope | None = None  # of the session
        self._last, self._note = [*cluster.agent], cluster.note_agent  # the agent that was there, and its keeper
        self._shared = shared
        self._plan = plan
        self._roll = roll

    def statistics(self) -> PeeringStatistics:
        session, (views, away) = self._session, self._plan.view
        if session is None:
            living = [pid if begun and begun_ticks(pid) == begun else 0 for pid, begun in self._last]
            return PeeringStatistics(keeper=living[1] if living and not living[0] else 0, wanted=self._giving.wanted)
        return PeeringStatistics(
            session.node, session.nodes, session.pid, session.keeper, session.silent, session.joined,
            tuple(sorted(session.unreachable)), away, views, self._roll.members(session, self._clock()),
            dict(session.refused), self._giving.wanted, session.desk.under_way,
        )  # fmt: skip

    # -- agents come and go

    async def run(self) -> None:
        """Let agents in for as long as the mount lives, one at a time: one that comes takes the place of another."""
        if self._path is None:
            return
        try:
            listener = trio.socket.from_stdlib_socket(listen(self._path))
        except OSError as error:
            log.warning("no agent can come: %s: %s", self._path, error.strerror)
            return
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    connection, _ = await listener.accept()
                    nursery.start_soon(self._serve, connection)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        """Serve one connection, until its end."""
        with connection:
            try:
                with trio.fail_after(HELLO_PATIENCE_S):
                    packet = await connection.recv(link.LARGEST_BYTES)
                if not packet:
                    return  # `mlfs peers` has looked whether it could come
                hello = hello_of(packet)
                if self._scope is not None:
                    if hello.nodes == 1 and self._session is not None and (living := self._session.shares):
                        await connection.send(refusal(living, "end `mlfs peers` there first, or run it on all nodes"))
                        return
                    log.warning("another agent has come: this mount is in its MPI job from now on")
                    self._scope.cancel()
                    await self._alone.wait()
                with trio.CancelScope() as self._scope:
                    await self._accompany(connection, hello)
            except link.BadPacket as error:
                log.warning("an agent is not let in: %s", error)
                with suppress(OSError):
                    await connection.send(refusal(str(error)))
            except (OSError, trio.TooSlowError) as error:
                log.warning("the agent: %s", error)
            except Exception:  # a bug, or an agent that is none: it costs the peers, never the mount
                log.exception("the agent is not understood")

    async def _accompany(self, connection: trio.socket.SocketType, hello: Hello) -> None:
        """Hear an agent until it is gone."""
        self._alone = trio.Event()
        try:
            session = await self._begin(connection, hello)
            gone = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.run)
                nursery.start_soon(self._look, session)
                session.hear(
                    lambda packet: self._runner.post(self._packet, session, packet, nursery, gone),
                    lambda: self._runner.post(self._speaks, session),
                    lambda: self._runner.post(gone.set),
                )
                await gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._session is not None:
                self._end(self._session)
            self._scope = None
            self._alone.set()

    async def _look(self, session: AgentSession) -> None:
        """Now and then: who is lost for good, is the neighbour there, how does this node do?"""
        turns = 0
        while True:
            await trio.sleep(LOOK_EVERY_S)
            turns += 1
            self._plan.look()
            if not self._plan.planned:
                continue
            self._shared.look()
            if turns % CHECK_TURNS == 0:
                self._check(session, [self._neighbour(session)])
            if turns % self._roll.turns(session.nodes) == 0 and (state := self._roll.news(session)) is not None:
                session.tell({"state": state})

    def _neighbour(self, session: AgentSession) -> int:
        """The next node that is there: each is looked after by one, also while nobody asks anything of it."""
        around = [(session.node + step) % session.nodes for step in range(1, session.nodes)]
        return next((node for node in around if node not in session.lost), session.node)

    def _check(self, session: AgentSession, nodes: Sequence[int]) -> None:
        wanted = [(node,) for node in nodes if node not in session.lost and 0 <= node < session.nodes]
        for packet in link.pack(link.PacketKind.CHECK, [row for row in wanted if row[0] != session.node]):
            session.send(packet)

    async def _begin(self, connection: trio.socket.SocketType, hello: Hello) -> AgentSession:
        """Greet an agent: give it what it may look at, and say what this node has."""
        plain = socket.socket(fileno=os.dup(connection.fileno()))
        plain.setblocking(False)
        session = AgentSession(plain, hello, lambda one: self._runner.post(self._falls_silent, one))
        self._session = session
        self._last = [(pid, begun_ticks(pid)) for pid in (session.pid, session.keeper)]
        self._note(self._last)
        self._fingerprint = self._fingerprint or await self._runner.run("plan", self._samples.fingerprint)
        catalogue_fd = self._showcase.open(len(self._samples))
        memory, ssds, lmdbs = self._shared_fds()
        answer = {
            "protocol": link.PROTOCOL, "samples": len(self._samples), "landing_bytes": session.landing.size_bytes,
            "memory_files": len(memory), "ssds": len(ssds), "secret": self._secret(),
        }  # fmt: skip
        try:
            link.send_with_fds(
                plain,
                link.pack_json(link.PacketKind.HELLO, answer),
                [session.landing.fd, catalogue_fd, *memory, *ssds, *lmdbs],
            )
        finally:
            os.close(catalogue_fd)
            session.landing.handed_over()
        about = {
            "fingerprint": self._fingerprint,
            "name": socket.gethostname(),
            "capacities_bytes": list(self._scheduler.capacities_bytes),
            "buffer_bytes": self._shared.buffer_bytes,
            "ctimes": self._ctimes(),
        }
        session.about[session.node] = about
        session.tell({"about": about})
        log.info("the agent of node %d of %d has come", session.node, session.nodes)
        return session

    def _ctimes(self) -> list[int]:
        """The change times of some files, by which nodes find out whether they see one file system."""
        manifest, files = self._samples.manifest, self._samples.manifest.files
        return [manifest.ctime_ns_view[int(entry)] for entry in files[:: max(1, len(files) // PROBED_FILES)]]

    def _sees_same_times(self, about: Mapping[str, Any]) -> bool:
        """Whether another node sees the change times that this one does, but for files that were replaced meanwhile.

        A copy of another change time is never used: such nodes would ask each other in vain for every sample.
        """
        pairs = list(zip(self._ctimes(), about.get("ctimes", ()), strict=False))
        same = [mine for mine, theirs in pairs if mine == theirs]
        return 2 * len(same) >= len(pairs)

    def _shared_fds(self) -> tuple[list[int], list[int], list[int]]:
        """Descriptors of what the agent may read by itself: files in memory, directories of copies."""
        tiers = [place.tier for place in self._places.storing if isinstance(place, TierPlace)]
        memory = [fd for tier in tiers if isinstance(tier, RamTier) for fd in tier.memory_fds]
        ssds = [tier.directory_fd for tier in tiers if isinstance(tier, SsdTier)]
        lmdbs = [tier.directory_fd for tier in tiers if isinstance(tier, LmdbTier)]
        return memory, ssds, lmdbs

    def _secret(self) -> str:
        """The secret of all checksums of copies on disk, in hexadecimal; "" without a disk."""
        tiers = (place.tier for place in self._places.storing if isinstance(place, TierPlace))
        return next((tier.secret.value.hex() for tier in tiers if isinstance(tier, OnDisk)), "")

    def _end(self, session: AgentSession) -> None:
        """The agent is gone: peers are lost, whoever waits for them goes on."""
        log.warning("the agent of node %d is gone: this node goes on alone", session.node)
        self._showcase.close()
        self._session = None
        session.close()
        self._step(*map(e.PeerLost, self._place_of.values()))
        self._shared.end()
        self._roll.forget()
        for storing in self._places.storing:
            if isinstance(storing, TierPlace) and isinstance(storing.tier, LmdbTier):
                start(self._runner, GIVING, storing.tier.forget_dead_readers, then=_log_error)

    # -- what agents say

    def _packet(self, session: AgentSession, packet: link.Packet, nursery: trio.Nursery, gone: trio.Event) -> None:
        """On the loop. A packet that is not understood ends the session, never the mount."""
        if session is not self._session:
            return
        try:
            self._heed(session, packet, nursery)
        except Exception:
            log.exception("the agent is not understood")
            gone.set()

    def _heed(self, session: AgentSession, packet: link.Packet, nursery: trio.Nursery) -> None:
        if packet.kind is link.PacketKind.WANTED:
            self._plan.adopt()  # whoever asks by a new plan knows that all have it
            for token, sample, size_bytes, mtime_ns, ctime_ns in packet.records.tolist():
                self._giving.ask(session, token, sample, Version(size_bytes, mtime_ns, ctime_ns))
        elif packet.kind is link.PacketKind.LOST:
            self._lose(session, packet.records["node"].tolist())
        elif packet.kind is link.PacketKind.BACK:
            for node in packet.records["node"].tolist():
                session.back(node)
                self._plan.back(node)
                log.warning("node %d answers again", node)
                self._usable([node])
        elif packet.kind is link.PacketKind.COUNTS:
            session.take_counts(packet.value)
        elif packet.kind is link.PacketKind.TOLD:
            self._hear(session, packet.value["node"], packet.value["value"])
        if not session.joining and len(session.about) == session.nodes:
            session.begin_to_join()
            nursery.start_soon(self._join, session)

    def _falls_silent(self, session: AgentSession) -> None:
        """The agent does not answer: nothing is asked of any peer until it speaks, and nobody waits for it."""
        if session is self._session and session.silent:
            log.warning("the agent (process %d) does not answer: all peers' samples come from the source", session.pid)
            self._step(*map(e.PeerLost, self._place_of.values()))

    def _speaks(self, session: AgentSession) -> None:
        if session is self._session and not session.silent:
            log.warning("the agent answers again")
            self._usable(node for node in session.about if node not in {*session.lost, *session.refused})

    def _lose(self, session: AgentSession, nodes: Sequence[int]) -> None:
        new = [node for node in nodes if node not in session.lost]
        after = self._neighbour(session)
        for node in new:
            session.lose(node, self._clock())
            log.warning("node %d does not answer: its samples come from the source", node)
            if (place := self._place_of.get(node)) is not None:
                self._step(e.PeerLost(place))
        self._plan.lose(new)
        if after in new:  # each node is missed by the one before it, and the others see for themselves
            session.tell({"misses": [after]})

    # -- joining

    def _hear(self, session: AgentSession, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something."""
        if "bad" in value:
            session.refuse(node, str(value["bad"]))
            log.warning("node %d is not understood: %s", node, value["bad"])
        if "about" in value:
            if node in session.about and "answers" not in value:  # another server has taken its mount over
                log.warning("node %d has another server", node)
                session.tell({"about": session.about[session.node], "answers": True}, node)
                self._shared.tell_all(node)
                self._plan.back(node)
                self._roll.tell_again()
            session.hear_about(node, value["about"])
        if "misses" in value:
            self._check(session, value["misses"])  # a link between two others may be cut: this node sees for itself
        if "state" in value:
            self._roll.hear(node, value["state"])
        try:
            self._plan.hear(node, value)
            self._shared.hear(node, value)
        except (ValueError, TypeError, KeyError) as error:
            log.warning("node %d says what is not understood: %s", node, error)

    async def _join(self, session: AgentSession) -> None:
        """All nodes have said what they have: make places of them, and plan who owns what."""
        peers: list[int] = []
        for node, about in sorted(session.about.items()):
            if about["fingerprint"] != self._fingerprint:
                session.refuse(node, "it serves another data set, or another state of it")
                log.warning("node %d is no peer: %s", node, session.refused[node])
            elif not self._sees_same_times(about):
                session.refuse(node, OTHER_TIMES)
                log.warning("node %d is no peer: %s", node, OTHER_TIMES)
            elif node != session.node:
                peers.append(node)
        self._enter(session, peers)
        if peers:
            members = members_of(session.node, {node: session.about[node] for node in [*peers, session.node]})
            await self._shared.begin(members, session.tell, session.patience_s)
        if peers or session.nodes == 1:
            session.have_joined()
        session.send(link.pack(link.PacketKind.JOINED, [(len(peers),)])[0])
        log.info("joined %d other nodes", len(peers))

    def _enter(self, session: AgentSession, peers: Sequence[int]) -> None:
        """The peers' places. Those that were made for an agent before serve again, whichever nodes they are now."""
        new = [node for node in peers if node not in self._place_of]
        self._place_of |= {node: place for place, node in enumerate(new, len(self._places))}
        self._places.join([NodePlace(node, session.desk) for node in self._place_of])
        if new:
            self._step(
                e.PeersJoined([PlaceInfo(PlaceKind.PEER, f"node {node}", PEER_LANES, node=node) for node in new])
            )
        self._usable(node for node in peers if node not in session.unreachable)

    def _usable(self, nodes: Iterable[int]) -> None:
        """Note that nodes may be asked again."""
        self._step(*(e.PeerBack(self._place_of[node]) for node in nodes if node in self._place_of))


def _log_error(_: object, error: BaseException | None) -> None:
    if error is not None:
        log.error("after the agent's end", exc_info=error)
