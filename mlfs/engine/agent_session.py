"""One agent of this node, from its HELLO to its end: how it is let in, its connection, the landing memory.

In: packets for the agent, from any thread; messages for other nodes' servers, from the loop; the agent's own packets.
Out: the first two on the agent's socket; the third to the desk, or to the loop. Used by `peering`.

A thread of its own reads the agent's packets. The loop mostly sleeps where only requests and workers wake it
(mountd.poll_wait), for up to 10 ms while lanes wait for the agent: they would wait for it and for the loop.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import trio

from mlfs.peers import link
from mlfs.peers.desk import Desk
from mlfs.peers.landing import Landing

log = logging.getLogger("mlfs.peers")

# Samples from peers that are on their way or not yet kept: more than lanes take at once, for a fast network.
LANDING_BYTES = 64 << 20
# More than any cluster has, and few enough for what is kept of each node.
MOST_NODES = 1 << 16
MOST_PATIENCE_S = 86_400.0
_MOST_PIDS = 1 << 22  # the kernel's limit


# -- how an agent is let in


class Hello(NamedTuple):
    """An agent's account of itself.

    Attributes:
        node: its number among so many `nodes`. patience_s: `--peer-timeout`. pid: its process. keeper: the one of
            `mlfs peers`, which runs it.
    """

    node: int
    nodes: int
    patience_s: float
    pid: int
    keeper: int


def hello_of(packet: bytes) -> Hello:
    """The agent's account of itself. Raises: BadPacket for what none of this version can have said."""
    said = link.unpack(packet).value
    if not isinstance(said, dict) or said.get("protocol") != link.PROTOCOL:
        raise link.BadPacket("it is of another version of mlfs")
    nodes = _whole(said, "nodes", 1, MOST_NODES)
    node = _whole(said, "node", 0, nodes - 1)
    patience_s = said.get("patience_s")
    if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not 0 < patience_s <= MOST_PATIENCE_S:
        raise link.BadPacket(f"its patience is no number of seconds up to {MOST_PATIENCE_S:g}")
    pid, keeper = (_whole(said, name, 0, _MOST_PIDS) for name in ("pid", "keeper"))
    return Hello(node, nodes, float(patience_s), pid, keeper)


def _whole(said: dict[str, Any], name: str, lowest: int, highest: int) -> int:
    number = said.get(name)
    if type(number) is not int or not lowest <= number <= highest:
        raise link.BadPacket(f"its {name} is no whole number from {lowest} to {highest}")
    return number


def refusal(why: str, hint: str = "") -> bytes:
    """The answer to an agent that is not let in."""
    return link.pack_json(link.PacketKind.HELLO, {"refused": why} | ({"hint": hint} if hint else {}))


def listen(path: str) -> socket.socket:
    """A socket that only this user can connect to. Raises: OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        with link.short_name(path) as name:
            listener.bind(name)
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


# -- an agent that was let in


class AgentSession:
    """One agent's connection, landing memory and messages, for as long as it is there.

    Attributes:
        node, nodes: the number of this node, and how many there are. about: what each has said of itself when it came.
        lost: those that do not answer, and since when. refused: those that are no peers, and why.
        silent: whether the agent itself does not answer. counts: its figures.
        joining, joined: whether all nodes have come, and whether they plan alike.
    """

    def __init__(self, connection: socket.socket, hello: Hello, silent: Callable[[AgentSession], None]) -> None:
        self.node, self.nodes, self.patience_s, self.pid, self.keeper = hello
        self.landing = Landing(LANDING_BYTES)
        self.desk = Desk(self.landing, self.send, self.patience_s, lambda: silent(self))
        self.about: dict[int, Mapping[str, Any]] = {}
        self.lost: dict[int, float] = {}
        self.joining = self.joined = False
        self.refused: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self._connection = connection
        self._messages: deque[bytes] = deque()
        self._waiting = trio.Event()  # that messages wait

    def tell(self, value: Mapping[str, Any], to: int | None = None) -> None:
        """Say something to the server of a node, None: of all others. It comes after what was said before, and
        surely."""
        self._messages.append(link.pack_json(link.PacketKind.TELL, {"to": to, "value": value}))
        self._waiting.set()

    # -- what becomes of the nodes

    def hear_about(self, node: int, about: Mapping[str, Any]) -> None:
        self.about[node] = about

    def begin_to_join(self) -> None:
        """All nodes have come."""
        self.joining = True

    def have_joined(self) -> None:
        """All plan alike, or none is waited for any more."""
        self.joined = True

    def lose(self, node: int, now_s: float) -> None:
        """Note that a node does not answer."""
        self.lost[node] = now_s

    def back(self, node: int) -> None:
        """Note that a node answers again."""
        self.lost.pop(node, None)

    @property
    def silent(self) -> bool:
        """Whether the agent itself does not answer."""
        return self.desk.silent

    @property
    def unreachable(self) -> set[int]:
        """Nodes that nothing can be asked of now."""
        return {node for node in range(self.nodes) if node != self.node} if self.silent else set(self.lost)

    @property
    def shares(self) -> str:
        """With how many nodes the agent shares this one, in words; "" for none. An agent that comes alone ends it."""
        others = self.nodes - 1 - len(self.unreachable)
        return f"its agent (process {self.pid}) shares it with {others} other node{'s' * (others > 1)}" * (others > 0)

    def refuse(self, node: int, why: str) -> None:
        """Note that a node is no peer."""
        self.refused[node] = why

    def take_counts(self, counts: Mapping[str, Any]) -> None:
        """The agent tells its figures."""
        self.counts = {str(name): int(number) for name, number in counts.items()}

    # -- to the agent

    async def run(self) -> None:
        """Send messages as fast as the agent takes them."""
        while True:
            await self._waiting.wait()
            self._waiting = trio.Event()
            while self._messages:
                if self.send(self._messages[0]):
                    self._messages.popleft()
                else:
                    await trio.lowlevel.wait_writable(self._connection)

    # -- from the agent

    def hear(self, tell: Callable[[link.Packet], None], speaks: Callable[[], None], gone: Callable[[], None]) -> None:
        """Begin to read what the agent sends. `tell` takes each packet that is no lane's own, `speaks` hears that it
        was silent and is not any more, `gone` of its end; all are called in the thread that reads. Raises: RuntimeError
        when there is no thread."""
        threading.Thread(target=self._read, args=(tell, speaks, gone), name="agent", daemon=True).start()

    def _read(self, tell: Callable[[link.Packet], None], speaks: Callable[[], None], gone: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        try:
            while True:
                poll.poll()
                data = self._connection.recv(link.LARGEST_BYTES)
                if not data:
                    return
                packet = link.unpack(data)
                if self.desk.hears():
                    speaks()
                if packet.kind is link.PacketKind.ENDED:
                    self.desk.ended(packet.records.tolist())
                elif packet.kind is link.PacketKind.FREE:
                    for offset, size_bytes in packet.records.tolist():
                        self.landing.release(offset, size_bytes)
                else:
                    tell(packet)
        except (OSError, link.BadPacket) as error:
            log.warning("the agent: %s", error)
        finally:
            with suppress(trio.RunFinishedError):  # the mount is gone
                gone()

    # -- to the agent, and its end

    def send(self, packet: bytes) -> bool:
        """From any thread: whether the agent's socket took a packet; one that is stopped does not hold a lane up."""
        try:
            self._connection.send(packet, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """The agent is gone."""
        self.desk.close()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # the thread that reads ends
        self._connection.close()
