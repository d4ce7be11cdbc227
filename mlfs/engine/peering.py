"""The server's side of the agent: it lets this node's agent in, joins the nodes that it speaks for, serves its wishes.

In: an agent's connection on a Unix socket that only this user can open; what its peers want; what became of what this
node wants. Out: places for the scheduler (PeersJoined), samples for peers, words of peers' servers. One agent at a
time; when it dies or leaves, its peers are lost, and this node goes on alone. Runs on the loop; what agents send is
read there, what lanes ask of peers is sent from their threads (mlfs.peers.desk).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.runner import Runner, start
from mlfs.engine.shared_jobs import SharedJobs
from mlfs.engine.tickets import Tickets
from mlfs.peers import link
from mlfs.peers.desk import Desk
from mlfs.peers.landing import Landing
from mlfs.peers.link import Ready
from mlfs.peers.place import NodePlace
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.place import Places, TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.showcase import Showcase
from mlfs.places.ssd import SsdTier
from mlfs.plan.members import Members
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.tree.samples import Samples, Version

log = logging.getLogger("mlfs.peers")

# Samples from peers that are on their way or not yet kept: more than lanes take at once, for a fast network.
LANDING_BYTES = 64 << 20
PEER_LANES = 4
HELLO_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class PeeringStatistics:
    """What `status` shows.

    Attributes:
        node: the number of this one, -1 without an agent. nodes: how many there are. lost: those that do not answer.
        refused: nodes that are no peers, and why. wanted: samples that peers wanted and the agent did not find.
    """

    node: int = -1
    nodes: int = 0
    joined: bool = False
    lost: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    wanted: int = 0
    under_way: int = 0


class _Session:
    """One agent, from its HELLO to its end."""

    def __init__(self, connection: socket.socket, node: int, nodes: int, patience_s: float) -> None:
        self.connection = connection
        self.node, self.nodes = node, nodes
        self.landing = Landing(LANDING_BYTES)
        self.desk = Desk(self.landing, self.send, patience_s)
        self.lost: set[int] = set()
        self.about: dict[int, Mapping[str, Any]] = {}
        self.joined = False

    def tell(self, value: Mapping[str, Any]) -> None:
        """Say something to the servers of all other nodes."""
        self.send(link.pack_json(link.Kind.TELL, value))

    def send(self, packet: bytes) -> bool:
        """From any thread: whether the agent's socket took a packet; one that is stopped does not hold a lane up."""
        try:
            self.connection.send(packet, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True


class _Wish:
    """A peer's wish for a sample: see PeerTicket."""

    def __init__(self, peering: Peering, session: _Session, token: int, sample: int, version: Version) -> None:
        self._peering = peering
        self._session = session
        self._token = token
        self._sample = sample
        self._version = version

    def ready(self, brought: Fetched | None) -> None:
        self._peering.hand_over(self._session, self._token, self._sample, self._version, brought)

    def missing(self) -> None:
        self._peering.answer(self._session, self._token, self._sample, self._version, Ready.MISSING)


class Peering:
    """See the module.

    Args:
        path: the socket's; None: no agent can come. infos: the places as decisions see them; peers are appended.
    """

    def __init__(
        self,
        path: str | None,
        samples: Samples,
        scheduler: Scheduler,
        step: Callable[..., None],
        tickets: Tickets,
        fetcher: Fetcher,
        places: Places,
        infos: list[PlaceInfo],
        showcase: Showcase,
        runner: Runner,
        shared: SharedJobs,
    ) -> None:
        self._path = path
        self._samples = samples
        self._fingerprint = ""
        self._scheduler = scheduler
        self._step = step
        self._tickets = tickets
        self._fetcher = fetcher
        self._places = places
        self._infos = infos
        self._showcase = showcase
        self._runner = runner
        self._session: _Session | None = None
        self._shared = shared
        self._wanted = 0
        self._refused: dict[int, str] = {}

    def statistics(self) -> PeeringStatistics:
        """Frozen figures."""
        session = self._session
        if session is None:
            return PeeringStatistics(wanted=self._wanted)
        return PeeringStatistics(
            session.node, session.nodes, session.joined, tuple(sorted(session.lost)), dict(self._refused), self._wanted,
            session.desk.under_way,
        )  # fmt: skip

    # -- agents come and go

    async def run(self) -> None:
        """Let agents in, one after the other, for as long as the mount lives."""
        if self._path is None:
            return
        try:
            listener = trio.socket.from_stdlib_socket(_listen(self._path))
        except OSError as error:
            log.warning("no agent can come: %s: %s", self._path, error.strerror)
            return
        try:
            while True:
                connection, _ = await listener.accept()
                with connection:
                    await self._serve(connection)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        try:
            session = await self._begin(connection)
            while data := await connection.recv(link.LARGEST_BYTES):
                self._packet(session, link.unpack(data))
        except (OSError, link.BadPacket, trio.TooSlowError) as error:
            log.warning("the agent: %s", error)
        except Exception:  # a bug, or an agent that is none: it costs the peers, never the mount
            log.exception("the agent is not understood")
        finally:
            if self._session is not None:
                self._end(self._session)

    async def _begin(self, connection: trio.socket.SocketType) -> _Session:
        """Greet an agent: give it what it may look at, and say what this node has."""
        with trio.fail_after(HELLO_PATIENCE_S):
            hello = link.unpack(await connection.recv(link.LARGEST_BYTES)).value
        if not isinstance(hello, dict) or hello.get("protocol") != link.PROTOCOL:
            raise link.BadPacket("it is of another version of mlfs")
        plain = socket.socket(fileno=os.dup(connection.fileno()))
        plain.setblocking(False)
        session = _Session(plain, hello["node"], hello["nodes"], hello["patience_s"])
        self._session = session
        self._refused.clear()
        self._fingerprint = self._fingerprint or await self._runner.run("plan", self._samples.manifest.fingerprint)
        catalogue_fd = self._showcase.open(len(self._samples))
        memory, ssds, lmdbs = self._shared_fds()
        answer = {
            "protocol": link.PROTOCOL, "samples": len(self._samples), "landing_bytes": session.landing.size_bytes,
            "memory_files": len(memory), "ssds": len(ssds),
        }  # fmt: skip
        try:
            link.send_with_fds(
                plain,
                link.pack_json(link.Kind.HELLO, answer),
                [session.landing.fd, catalogue_fd, *memory, *ssds, *lmdbs],
            )
        finally:
            os.close(catalogue_fd)
            session.landing.handed_over()
        about = {
            "fingerprint": self._fingerprint,
            "capacities_bytes": list(self._scheduler.capacities_bytes),
        }
        session.about[session.node] = about
        session.tell({"about": about})
        log.info("the agent of node %d of %d has come", session.node, session.nodes)
        self._join(session)
        return session

    def _shared_fds(self) -> tuple[list[int], list[int], list[int]]:
        """Descriptors of what the agent may read by itself: files in memory, directories of copies."""
        tiers = [place.tier for place in self._places.storing if isinstance(place, TierPlace)]
        memory = [fd for tier in tiers if isinstance(tier, RamTier) for fd in tier.memory_fds]
        ssds = [tier.directory_fd for tier in tiers if isinstance(tier, SsdTier)]
        lmdbs = [tier.directory_fd for tier in tiers if isinstance(tier, LmdbTier)]
        return memory, ssds, lmdbs

    def _end(self, session: _Session) -> None:
        """The agent is gone: peers are lost, whoever waits for them goes on."""
        log.warning("the agent of node %d is gone: this node goes on alone", session.node)
        self._showcase.close()
        session.desk.close()
        if session.joined:
            self._lose(session, [node for node in range(session.nodes) if node != session.node])
            self._shared.end()
        session.connection.close()
        self._session = None
        for place in self._places.storing:
            if isinstance(place, TierPlace) and isinstance(place.tier, LmdbTier):
                start(self._runner, "peers", place.tier.forget_dead_readers, then=_log_error)

    # -- what agents say

    def _packet(self, session: _Session, packet: link.Packet) -> None:
        if packet.kind is link.Kind.ENDED:
            session.desk.ended(packet.records.tolist())
        elif packet.kind is link.Kind.WANTED:
            for token, sample, size_bytes, mtime_ns in packet.records.tolist():
                self._wish(session, token, sample, Version(size_bytes, mtime_ns))
        elif packet.kind is link.Kind.FREE:
            for offset, size_bytes in packet.records.tolist():
                session.landing.release(offset, size_bytes)
        elif packet.kind is link.Kind.LOST:
            self._lose(session, packet.records["node"].tolist())
        elif packet.kind is link.Kind.BACK:
            for node in packet.records["node"].tolist():
                session.lost.discard(node)
                self._shared.back(node)
                log.warning("node %d answers again", node)
                if (place := self._place_of(node)) is not None:
                    self._step(e.PeerBack(place))
        elif packet.kind is link.Kind.TOLD:
            self._told(session, packet.value["node"], packet.value["value"])

    def _place_of(self, node: int) -> int | None:
        return next((number for number, info in enumerate(self._infos) if info.node == node), None)

    def _lose(self, session: _Session, nodes: Sequence[int]) -> None:
        for node in nodes:
            if node in session.lost:
                continue
            session.lost.add(node)
            self._shared.lose(node)
            log.warning("node %d does not answer: its samples come from the source", node)
            if (place := self._place_of(node)) is not None:
                self._step(e.PeerLost(place))

    # -- joining

    def _told(self, session: _Session, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something."""
        if "bad" in value:
            self._refused[node] = str(value["bad"])
            log.warning("node %d is not understood: %s", node, value["bad"])
        self._shared.hear(node, value)
        if "about" in value:
            session.about[node] = value["about"]
            self._join(session)

    def _join(self, session: _Session) -> None:
        """When all nodes have said what they have: make places of them, and plan who owns what."""
        if session.joined or len(session.about) < session.nodes:
            return
        peers: list[int] = []
        for node, about in sorted(session.about.items()):
            if about["fingerprint"] != self._fingerprint:
                self._refused[node] = "it serves another data set, or another state of it"
                log.warning("node %d is no peer: %s", node, self._refused[node])
            elif node != session.node:
                peers.append(node)
        if not self._enter(session, peers):
            return
        nodes = tuple(sorted([*peers, session.node]))
        capacities = [session.about[node]["capacities_bytes"] for node in nodes]
        classes = max(map(len, capacities))
        rows = tuple(tuple(row) + (0,) * (classes - len(row)) for row in capacities)
        session.joined = True
        log.info("joined %d other nodes", len(peers))
        self._shared.begin(Members(nodes, session.node, rows), session.tell)

    def _enter(self, session: _Session, peers: Sequence[int]) -> bool:
        """The peers' places: those of an agent before have the same numbers. Returns whether they could be made."""
        before = [info.node for info in self._infos if info.node >= 0]
        if before and before != peers:
            for node in peers:
                self._refused[node] = "this mount has joined other nodes before: mount it again"
            log.warning("no peers: this mount has joined nodes %s before, not %s: mount it again", before, peers)
            return False
        if not before:
            infos = [PlaceInfo(PlaceKind.PEER, f"node {node}", PEER_LANES, node=node) for node in peers]
            self._infos += infos
            self._places.join([NodePlace(node, session.desk) for node in peers])
            self._step(e.PeersJoined(infos))
            return True
        self._places.join([NodePlace(node, session.desk) for node in peers])
        self._step(*(e.PeerBack(place) for node in peers if (place := self._place_of(node)) is not None))
        return True

    # -- what peers want

    def _wish(self, session: _Session, token: int, sample: int, version: Version) -> None:
        self._wanted += 1
        self._shared.adopt()  # whoever asks by a new plan knows that all have it
        if not 0 <= sample < len(self._samples) or self._samples.version_of(sample) != version:
            session.send(link.pack(link.Kind.READY, [(token, Ready.MISSING, 0, 0)])[0])
            return
        self._tickets.ask(sample, _Wish(self, session, token, sample, version))

    def hand_over(self, session: _Session, token: int, sample: int, version: Version, brought: Fetched | None) -> None:
        """On the loop: a sample that a peer wants is in place; its bytes are put where the agent can send them from."""

        def over(answer: tuple[Ready, int] | None, error: BaseException | None) -> None:
            if error is not None:
                log.error("a peer's wish failed", exc_info=error)
            how, offset = answer or (Ready.MISSING, 0)
            self.answer(session, token, sample, version, how, offset)

        self._runner.start("peers", self._lay_out, session, sample, version, brought, then=over)

    def _lay_out(self, session: _Session, sample: int, version: Version, brought: Fetched | None) -> tuple[Ready, int]:
        """In a worker: where the agent finds the bytes."""
        if self._showcase.shows(sample, version):
            return Ready.LOOK, 0
        fetched = (
            brought if brought is not None and brought.data is not None else self._fetcher.for_peer(sample, version)
        )
        if fetched is None or fetched.data is None or fetched.version != version:
            return Ready.MISSING, 0
        offset = session.landing.reserve(version.size_bytes)
        if offset is None:
            return Ready.MISSING, 0
        session.landing.write(offset, fetched.data)
        return Ready.LIES, offset

    def answer(self, session: _Session, token: int, sample: int, version: Version, how: Ready, offset: int = 0) -> None:
        """On the loop: tell the agent, and be done with the sample."""
        session.send(link.pack(link.Kind.READY, [(token, how, offset, version.size_bytes)])[0])
        self._step(e.Released(sample))


def _log_error(_: object, error: BaseException | None) -> None:
    if error is not None:
        log.error("after the agent's end", exc_info=error)


def _listen(path: str) -> socket.socket:
    """A socket that only this user can connect to."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        with link.short_name(path) as name:
            listener.bind(name)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener
