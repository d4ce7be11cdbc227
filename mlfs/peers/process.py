"""The agent's process: waits for its server, for MPI and for its keeper at once, and ends with any of them.

A server that is killed is followed by another one (docs/processes.md), to which the agent speaks from then on: until
that answers, other nodes get what lies in the memory that both servers have.

In: the socket of the mount's server, MPI, the keeper's line. Out: an `Agent` that hears of them. MPI has nothing that a
process could sleep on, so it is looked at again and again: at once while something happens, and less and less often
when nothing does (`LookPace`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from mmap import mmap
from typing import Any

from mlfs.errors import ExitCode, MlfsError
from mlfs.peers import link, mpi
from mlfs.peers.agent import Agent, AgentStatistics
from mlfs.peers.keeper import KeeperLine
from mlfs.peers.liveness import LEAVE_PATIENCE_S, Liveness
from mlfs.peers.shelf import Shelf
from mlfs.peers.transport import Transport
from mlfs.places.catalogue import Catalogue
from mlfs.places.secret import Secret
from mlfs.processes import OF_AGENT, be_killed_sooner, outlive_parent

# Looking again at once for so long after something happened: what comes next mostly comes within that. With 200 us
# two agents took a third more CPU time for the same samples, from servers and readers on the same cores.
SPIN_S = 50e-6
# Then sleeping between two looks, for a part of the time in which nothing has happened: what comes after a pause waits
# at most a twentieth of it, and 80 ms at most. A look costs 100 to 300 us of a busy machine, most of it waking up:
# every 5 ms they took 2.4 % of a core, every 25 ms 0.4 to 1.2 %, every 40 ms 0.4 to 1.0 %. While somebody waits for
# something, looks are closer.
NAP_OF_PAUSE = 1 / 20
SHORTEST_NAP_S = 50e-6
LONGEST_NAP_S = 80e-3
LONGEST_NAP_AWAITED_S = 500e-6
# A server that does not take packets (stopped, or at its limit) has so many kept for it.
MOST_KEPT_PACKETS = 1024
# A server is followed by another one within a second or two, or some ten on a busy machine. None follows one that ends
# by itself and takes its socket away, or that has let another agent in and listens still. For a moment either is so of
# a server that dies.
NEXT_SERVER_S, NO_OTHER_S, TRY_EVERY_S = 60.0, 2.0, 0.05


class LookPace:
    """How long to sleep before the next look."""

    def __init__(self) -> None:
        self._busy_s = 0.0

    def nap_s(self, now_s: float, busy: bool, awaited: bool) -> float:
        """Seconds to sleep; 0 for none.

        Args:
            busy: something happened at the last look. awaited: somebody waits for something.
        """
        if busy:
            self._busy_s = now_s
        pause_s = now_s - self._busy_s
        if pause_s < SPIN_S:
            return 0.0
        longest_s = LONGEST_NAP_AWAITED_S if awaited else LONGEST_NAP_S
        return min(max(SHORTEST_NAP_S, pause_s * NAP_OF_PAUSE), longest_s)


class AgentProcess:
    """Has an agent run until its mount, MPI or its keeper ends.

    Args:
        connect: makes a connection to the server. It raises MlfsError where there is none.
    """

    def __init__(self, connect: Callable[[], socket.socket], transport: Transport, patience_s: float) -> None:
        self._connect = connect
        self._connection = connect()
        self._server = _process_behind(self._connection)
        self._transport = transport
        self._patience_s = patience_s
        self._unsent: deque[bytes] = deque()
        self._alone_s: float | None = None  # since when there is no server
        self._try_s = 0.0
        self._server_gone = False  # and none is going to come
        self._peers: int | None = None  # nodes that have joined this one's, None before all have come
        self._last_sent: AgentStatistics | None = None
        self._shelf: Shelf | None = None
        landing, shelf = self._greet()
        self._liveness = Liveness(transport.nodes, transport.node, patience_s)
        self._agent = Agent(transport, shelf, landing, self._to_server, self._liveness)

    def _greet(self) -> tuple[memoryview, Shelf]:
        """Say who this is, and map what the server hands over."""
        hello = {
            "protocol": link.PROTOCOL, "node": self._transport.node, "nodes": self._transport.nodes,
            "patience_s": self._patience_s, "pid": os.getpid(), "keeper": os.getppid(),
        }  # fmt: skip
        about, fds = _introduced(self._connection, hello)
        landing_fd, catalogue_fd, *rest = fds
        memory, disks = rest[: about["memory_files"]], rest[about["memory_files"] :]
        ssds, lmdbs = disks[: about["ssds"]], disks[about["ssds"] :]
        landing = memoryview(mmap(landing_fd, about["landing_bytes"]))
        secret = Secret(bytes.fromhex(about["secret"])) if about["secret"] else None
        if self._shelf is not None:  # of the server before: no process may have an LMDB environment open twice
            self._shelf.close()
        shelf = self._shelf = Shelf(Catalogue(catalogue_fd, about["samples"]), memory, ssds, lmdbs, secret)
        os.close(landing_fd)
        os.close(catalogue_fd)
        return landing, shelf

    def _to_server(self, packet: bytes) -> None:
        if len(self._unsent) < MOST_KEPT_PACKETS and (self._alone_s is None or _is_of_others(packet)):
            self._unsent.append(packet)

    def join(self, end: int) -> int | None:
        """Serve until all nodes have come. Returns how many are peers of this one; None where `run` would end."""
        self._serve(end, lambda: self._peers is not None)
        return self._peers

    def run(self, line: KeeperLine) -> None:
        """Serve until the keeper says that this agent shall leave, until the server is gone, or until this node and all
        others are done."""
        while not self._server_gone:
            self._serve(line.end, lambda: self._agent.all_done)
            if not select.select([line.end], [], [], 0)[0] or not line.hear():
                return
            self._agent.done(time.monotonic())

    def leave(self) -> bool:
        """Take leave of the peers. Returns whether all leave at the same time: then they can end MPI together."""
        left_s = time.monotonic()
        together = len(self._liveness.to_be_left(left_s)) == self._transport.nodes - 1
        self._agent.leave(left_s)
        until_s = left_s + LEAVE_PATIENCE_S
        while not self._liveness.nobody_stays and time.monotonic() < until_s:
            self._agent.poll(time.monotonic())
            time.sleep(LONGEST_NAP_AWAITED_S)
        return together and self._liveness.all_left

    def _serve(self, end: int, enough: Callable[[], bool]) -> None:
        """Serve until the descriptor can be read, the server is gone, or it is enough."""
        self._connection.setblocking(False)
        pace, beat_s, ended = LookPace(), 0.0, False
        while not (ended or self._server_gone or enough()):
            now_s = time.monotonic()
            if self._alone_s is not None and now_s >= self._try_s:
                self._find_server(now_s, self._alone_s)
            busy = self._alone_s is None and self._hear_server(now_s)
            busy = self._agent.poll(now_s) or busy
            if now_s >= beat_s:
                self._agent.beat(now_s)
                self._tell_counts()
                beat_s = now_s + self._liveness.beat_s
            self._send_on()
            nap_s = pace.nap_s(now_s, busy, self._agent.waits)
            if nap_s:
                ears = [end, self._connection.fileno()] if self._alone_s is None else [end]
                ended = end in select.select(ears, [], [], nap_s)[0]
            else:
                os.sched_yield()

    def _tell_counts(self) -> None:
        """Tell the server the agent's figures, if they are others by now."""
        counts = self._agent.statistics()
        if counts != self._last_sent:
            self._last_sent = counts
            self._to_server(link.pack_json(link.PacketKind.COUNTS, asdict(counts)))

    def _hear_server(self, now_s: float) -> bool:
        heard = False
        try:
            while data := self._connection.recv(link.LARGEST_BYTES):
                packet = link.unpack(data)
                if packet.kind is link.PacketKind.JOINED:
                    self._peers = int(packet.records["peers"][0])
                self._agent.packet(packet, now_s)
                heard = True
        except BlockingIOError:
            return heard
        except OSError:
            pass
        self._lose_server()
        return heard

    def _lose_server(self) -> None:
        """It has ended, or was killed. The next one hears the words of other nodes, no ends of requests: its own have
        the same numbers."""
        self._connection.close()
        self._alone_s = self._try_s = time.monotonic()
        self._unsent = deque(filter(_is_of_others, self._unsent))

    def _find_server(self, now_s: float, since_s: float) -> None:
        """Speak to the server that has taken the mount over, if there is one."""
        self._try_s = now_s + TRY_EVERY_S
        try:
            self._connection = self._connect()
            if _process_behind(self._connection) == self._server:
                self._connection.close()
                self._server_gone = now_s - since_s > NO_OTHER_S
                return
            landing, shelf = self._greet()
        except MlfsError as error:
            self._connection.close()
            no_socket = isinstance(error.__cause__, FileNotFoundError)
            self._server_gone = now_s - since_s > (NO_OTHER_S if no_socket else NEXT_SERVER_S)
            return
        self._connection.setblocking(False)
        self._server = _process_behind(self._connection)
        self._alone_s, self._last_sent = None, None
        self._agent.serve_another(landing, shelf)

    def _send_on(self) -> None:
        while self._unsent and self._alone_s is None:
            try:
                self._connection.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._lose_server()
                return
            self._unsent.popleft()


def serve(path: str, mountpoint: str, patience_s: float, line: KeeperLine) -> None:
    """Be the agent of a mount, from the start of MPI to its end. Does not return where that is not orderly.

    The server is spoken to when MPI has started: it waits for the other nodes, which may be minutes late.

    Raises: MlfsError.
    """
    be_killed_sooner(OF_AGENT)
    line.say("in MPI")
    transport = mpi.start()
    outlive_parent()
    agent = AgentProcess(partial(connect, path, mountpoint), transport, patience_s)
    if (peers := agent.join(line.end)) is not None:
        line.say("joined", transport.node, transport.nodes, peers)
    agent.run(line)
    line.say("leaves")
    transport.close(agent.leave(), 0)
    line.say("MPI ended")


def _introduced(connection: socket.socket, hello: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The server's answer, with descriptors. Raises: MlfsError where it does not let this agent in."""
    fds: list[int] = []
    data = b""
    try:
        connection.send(link.pack_json(link.PacketKind.HELLO, hello))
        data, fds = link.receive_with_fds(connection)
        about = link.unpack(data).value if data else {"refused": "it ended, or is of another version"}
    except (OSError, link.BadPacket) as error:
        about = {"refused": str(error)}
    if "refused" in about:
        raise MlfsError(
            f"the mount's server does not let this agent in: {about['refused']}",
            about.get("hint", "see `mlfs status`; mlfs must be of the same version there"),
            ExitCode.BUSY if "hint" in about else ExitCode.FAILURE,
        )
    return about, fds


def _is_of_others(packet: bytes) -> bool:
    """Whether a packet brings words of another node, which any server of this one may hear."""
    return link.unpack(packet).kind is link.PacketKind.TOLD


def _process_behind(connection: socket.socket) -> int:
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def connect(path: str, mountpoint: str) -> socket.socket:
    """A connection to the server of a mount. Raises: MlfsError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(10.0)
        with link.short_name(path) as name:
            connection.connect(name)
    except OSError as error:
        connection.close()
        raise MlfsError(
            f"the mount at {mountpoint} does not let an agent in: {error.strerror}",
            "is it mounted, by you, with this version of mlfs? see `mlfs status`",
            ExitCode.NOT_MOUNTED,
        ) from error
    return connection
