"""The agent of a node: gets samples from other nodes' agents for its server, and gives them this node's.

In: packets of the server, what happened on the transport, the time. Out: the same two ways. It runs in a process of its
own, because MPI may take its process along when a peer dies, and the mount must not go with it; but nothing here knows
of processes, sockets or MPI: see mlfs.peers.process, and tests/peers for agents on simulated time.

A sample's way: the server names it, its owner and where it shall land (FETCH). The agent says that to the transport and
asks the owner (ASK). The owner's agent finds the bytes on its shelf, or asks its server for them (WANTED, READY); it
gives them to the transport and says their checksum (GIVE). When both have come, and agree, the server hears ENDED. Any
failure ends in MISSING or LOST; then the server reads the source: it costs time, never a read.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from mlfs.peers import link, messages
from mlfs.peers.link import Ended, Ready
from mlfs.peers.liveness import Liveness
from mlfs.peers.messages import BadMessage, Unpacker
from mlfs.peers.outflow import Outflow
from mlfs.peers.transport import Arrived, Buffer, Received, Transport
from mlfs.places.checksum import checksum
from mlfs.tree.samples import Version

# Bytes under way to all peers together, each of which has the same share of it: what is read from disks takes memory
# until it is sent. As much as the landing memory of one asker, so that one that asks alone is not held back; far more
# than what lies between two nodes (1.2 MB at 100 Gbit/s and 100 us). A single sample always goes. Over slow links less
# is given at a time (mlfs.peers.outflow).
UNSENT_BYTES = 64 << 20
# News that are kept for one lost peer: what a node tells in days, but for what it holds, which it tells anew to whoever
# comes back.
UNHEARD_BYTES = 16 << 20


class Finds(Protocol):
    """The samples that a node can give by itself: `mlfs.peers.shelf`, and in drawn failures a simulated node."""

    def find(self, sample: int, version: Version) -> tuple[memoryview, int] | None:
        """The bytes of that version and their checksum."""


@dataclass(slots=True)
class _Ask:
    """A sample that was asked of a peer.

    Attributes:
        number: the server's. into: where it lands. sum: its checksum, None until the owner has said it. landed: the
            bytes that came, below 0 before. ended: the server was told of its end.
    """

    number: int
    node: int
    sample: int
    version: Version
    into: memoryview
    sum: int | None = None
    landed: int = -1
    ended: bool = False


class _Owed(NamedTuple):
    """A sample that a peer wants and this node's server is looking for."""

    node: int
    number: int
    sample: int
    version: Version


class _Found(NamedTuple):
    """A sample that a peer wants and this node's server has found: its bytes, None where they are on the shelf now."""

    owed: _Owed
    data: bytes | None


class _Unheard(NamedTuple):
    """News that a lost peer is told when it is back. is_state: they say how this node does."""

    is_state: bool
    messages: list[bytes]


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """Counts since the start.

    Attributes:
        given: samples given to peers. missed: samples that peers wanted and this node did not have. got, got_bytes:
            samples that peers gave. missing: samples that a peer did not have. spoilt: of those, samples whose
            checksum was wrong.
    """

    given: int = 0
    given_bytes: int = 0
    missed: int = 0
    got: int = 0
    got_bytes: int = 0
    missing: int = 0
    spoilt: int = 0


class Agent:
    """Takes packets of its server and messages of its peers, and answers both.

    Args:
        landing: the memory in which what peers give lands. to_server: takes packets.
    """

    def __init__(
        self,
        transport: Transport,
        shelf: Finds,
        landing: memoryview,
        to_server: Callable[[bytes], None],
        liveness: Liveness,
    ) -> None:
        self._transport = transport
        self._shelf = shelf
        self._landing = landing
        self._to_server = to_server
        self._liveness = liveness
        self._unpackers = [Unpacker() for _ in range(transport.nodes)]
        self._numbers = itertools.cycle(range(transport.most_numbers))
        self._asks: dict[int, _Ask] = {}  # by the transport's number
        self._owed: dict[int, _Owed] = {}  # by token
        self._tokens = itertools.count(1)
        self._asked_of = [0] * transport.nodes  # asks by peer
        self._asking: dict[int, deque[_Owed]] = {}  # what peers want and was not looked for yet, by peer; none is empty
        self._share_bytes = UNSENT_BYTES // max(1, transport.nodes - 1)
        self._found: dict[int, deque[_Found]] = {}  # what the server found, by peer; none is empty
        self._owed_bytes = [0] * transport.nodes  # by peer, of `_owed` and `_found`
        self._outflows = [Outflow(self._share_bytes) for _ in range(transport.nodes)]
        self._gives: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._ends: list[tuple[int, int]] = []
        self._unheard: defaultdict[int, list[_Unheard]] = defaultdict(list)  # news for lost peers, oldest first
        self._wanted: list[tuple[int, int, int, int, int]] = []
        self._done = False
        self._given = self._given_bytes = self._missed = 0
        self._got = self._got_bytes = self._missing = self._spoilt = 0

    # -- what others may see

    @property
    def waits(self) -> bool:
        """Whether somebody waits for something: then the transport is worth a look often."""
        return bool(self._asks or self._owed or self._found or self._asking)

    def statistics(self) -> AgentStatistics:
        """The agent's counts, frozen."""
        return AgentStatistics(
            self._given, self._given_bytes, self._missed, self._got, self._got_bytes, self._missing, self._spoilt
        )  # fmt: skip

    # -- from the server

    def serve_another(self, landing: memoryview, shelf: Finds) -> None:
        """Another server has taken the mount over. It looks for what peers still want, and knows nothing of what the
        one before has asked for: that has no number any more, and lands where nobody looks."""
        self._landing, self._shelf = landing, shelf
        for ask in self._asks.values():
            ask.number = 0
        self._ends.clear()
        self._wanted = [(token, owed.sample, *owed.version) for token, owed in self._owed.items()]
        for packet in link.pack(link.PacketKind.LOST, [(node,) for node in sorted(self._liveness.lost)]):
            self._to_server(packet)

    def packet(self, packet: link.Packet, now_s: float) -> None:
        """The server says something."""
        if packet.kind is link.PacketKind.FETCH:
            self._fetch(packet.records, now_s)
        elif packet.kind is link.PacketKind.READY:
            for token, how, offset, size_bytes in packet.records.tolist():
                self._ready(token, Ready(how), offset, size_bytes, now_s)
        elif packet.kind is link.PacketKind.TELL:
            to, value = packet.value["to"], packet.value["value"]
            for node in {*(range(self._transport.nodes) if to is None else (int(to),))} - {self._transport.node}:
                if node in self._liveness.lost and node not in self._liveness.left:
                    self._keep_for(node, value)
                elif node not in self._liveness.left:
                    self._tell(node, value)
        elif packet.kind is link.PacketKind.CHECK:
            for node in packet.records["node"].tolist():
                self._say(node, messages.MessageKind.PING, now_s)
                self._liveness.asked(node, now_s)
        self._flush(now_s)

    def _tell(self, node: int, value: Any) -> None:
        for message in messages.pack_news(value):
            self._transport.send(node, message)

    def _keep_for(self, node: int, value: Any) -> None:
        """Keep news for a lost peer until it is back, the newest UNHEARD_BYTES of them. The last word of how
        this node does is enough."""
        kept = self._unheard[node]
        if "state" in value:
            kept[:] = [one for one in kept if not one.is_state]
        kept.append(_Unheard("state" in value, messages.pack_news(value)))
        while sum(len(message) for one in kept for message in one.messages) > UNHEARD_BYTES:
            del kept[0]

    def _fetch(self, records: link.Records, now_s: float) -> None:
        """Ask peers for samples: all of one peer in as few messages as possible."""
        asked: defaultdict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for number, node, sample, _, size_bytes, mtime_ns, ctime_ns, offset in records.tolist():
            into = self._landing[offset : offset + size_bytes]
            if not 0 <= node < self._transport.nodes or node in self._liveness.lost or len(into) < size_bytes:
                self._ends.append((number, Ended.MISSING))
                continue
            of = self._free_number()
            ask = self._asks[of] = _Ask(number, node, sample, Version(size_bytes, mtime_ns, ctime_ns), into)
            self._asked_of[node] += 1
            if size_bytes:
                self._transport.expect(node, of, into)
            else:
                ask.landed = 0
            asked[node].append((of, sample, size_bytes, mtime_ns, ctime_ns))
        for node, rows in asked.items():
            self._send(node, messages.MessageKind.ASK, rows, now_s)
            self._liveness.asked(node, now_s)

    def _free_number(self) -> int:
        while (number := next(self._numbers)) in self._asks:
            pass
        return number

    def _send(self, node: int, kind: messages.MessageKind, rows: list[Any], now_s: float) -> None:
        step = messages.most_records(kind)
        dtype = messages.ASK if kind is messages.MessageKind.ASK else messages.GIVE
        for start in range(0, len(rows), step):
            self._transport.send(node, messages.pack(kind, np.array(rows[start : start + step], dtype)))
        self._liveness.said(node, now_s)

    def _ready(self, token: int, how: Ready, offset: int, size_bytes: int, now_s: float) -> None:
        """The server says what became of a sample that a peer wants."""
        owed, data = self._owed.pop(token, None), None
        if how is Ready.LIES:
            # Copied, so that the landing memory does not fill with what dead peers never take.
            data = bytes(self._landing[offset : offset + size_bytes])
            for packet in link.pack(link.PacketKind.FREE, [(offset, size_bytes)]):
                self._to_server(packet)
        if owed is None:
            return
        if how is Ready.MISSING or owed.node in self._liveness.lost:
            self._owed_bytes[owed.node] -= owed.version.size_bytes
            self._give(owed, None, 0, now_s)
        else:
            self._found.setdefault(owed.node, deque()).append(_Found(owed, data))
            self._give_found(owed.node, now_s)

    def _give_found(self, node: int, now_s: float) -> None:
        """Give a peer what the server has found for it, as much as the link takes."""
        found = self._found[node]
        while found and self._outflows[node].may_give(
            found[0].owed.version.size_bytes, self._transport.unsent_bytes(node), now_s
        ):
            owed, data = found.popleft()
            self._owed_bytes[node] -= owed.version.size_bytes
            if data is None:
                on_shelf = self._shelf.find(owed.sample, owed.version)
                self._give(owed, on_shelf[0] if on_shelf else None, on_shelf[1] if on_shelf else 0, now_s)
            else:
                self._give(owed, data, checksum(data, owed.sample, owed.version), now_s)
        if not found:
            del self._found[node]

    def _give(self, owed: _Owed, data: Buffer | None, sum_: int, now_s: float) -> None:
        """Give a sample to a peer, or say that it is missing: also to one that is lost, which may only have slept."""
        if owed.node in self._liveness.left:
            return
        if owed.node in self._liveness.lost:
            data = None
        self._gives[owed.node].append((owed.number, data is None, sum_))
        if data is None:
            self._missed += 1
            return
        self._given += 1
        self._given_bytes += len(data)
        if len(data):
            self._transport.give(owed.node, owed.number, data)
            self._outflows[owed.node].gives(len(data), self._transport.unsent_bytes(owed.node), now_s)

    # -- from the transport

    def poll(self, now_s: float) -> bool:
        """See what happened on the transport. Returns whether anything did."""
        happened = self._transport.poll()
        for event in happened:
            if isinstance(event, Arrived):
                self._arrived(event, now_s)
            elif isinstance(event, Received):
                self._received(event, now_s)
            else:
                self._heard(event.node, now_s)
        for node in list(self._found):
            self._give_found(node, now_s)
        if self._asking:
            self._serve(now_s)
        self._flush(now_s)
        return bool(happened)

    def _arrived(self, event: Arrived, now_s: float) -> None:
        self._heard(event.node, now_s)
        try:
            message = self._unpackers[event.node].unpack(event.data)
        except BadMessage as error:
            value = {"bad": str(error)}
            self._to_server(link.pack_json(link.PacketKind.TOLD, {"node": event.node, "value": value}))
            return
        if message is None:
            return
        if message.kind is messages.MessageKind.ASK:
            self._asked(event.node, message.records)
        elif message.kind is messages.MessageKind.GIVE:
            self._gave(event.node, message.records)
        elif message.kind is messages.MessageKind.NEWS:
            self._to_server(link.pack_json(link.PacketKind.TOLD, {"node": event.node, "value": message.news}))
        elif message.kind is messages.MessageKind.PING:
            self._say(event.node, messages.MessageKind.ALIVE, now_s)
        elif message.kind is messages.MessageKind.DONE:
            self._liveness.is_done(event.node)
            self._say(event.node, messages.MessageKind.ALIVE, now_s)
        elif message.kind is messages.MessageKind.LEAVE and self._liveness.leaves(event.node, now_s):
            self._lose([event.node], now_s)

    def _asked(self, node: int, records: messages.Records | None) -> None:
        """Take an ASK: note the samples that a peer wants."""
        assert records is not None
        if len(records):
            self._asking.setdefault(node, deque()).extend(
                _Owed(node, number, sample, Version(size_bytes, mtime_ns, ctime_ns))
                for number, sample, size_bytes, mtime_ns, ctime_ns in records.tolist()
            )

    def _serve(self, now_s: float) -> None:
        """Look for what peers want, one sample for each of them in turns, as long as they take what they get.

        Those on the shelf are given at once, the server is asked for the others. A peer that asks for much waits for
        its own samples, not the others for it; and what is read from a disk for it takes no more memory than its share.
        """
        turn = list(self._asking)
        while turn:
            turn = [node for node in turn if self._serve_one(node, now_s)]

    def _serve_one(self, node: int, now_s: float) -> bool:
        """Look for the next sample that a peer wants. Returns whether it may have one more now."""
        wanted = self._asking[node]
        size_bytes = wanted[0].version.size_bytes
        unsent_bytes = self._transport.unsent_bytes(node)
        under_way = unsent_bytes + self._owed_bytes[node]
        if under_way and under_way + size_bytes > self._share_bytes:
            return False
        if not self._outflows[node].may_give(size_bytes, unsent_bytes, now_s):
            return False
        owed = wanted.popleft()
        found = self._shelf.find(owed.sample, owed.version)
        if found is not None:
            self._give(owed, *found, now_s)
        else:
            token = next(self._tokens) & 0xFFFFFFFF
            self._owed[token] = owed
            self._owed_bytes[node] += owed.version.size_bytes
            self._wanted.append((token, owed.sample, *owed.version))
        if not wanted:
            del self._asking[node]
        return bool(wanted)

    def _gave(self, node: int, records: messages.Records | None) -> None:
        assert records is not None
        for of, missing, sum_ in records.tolist():
            ask = self._asks.get(of)
            if ask is None or ask.node != node:
                continue
            if missing:
                if ask.version.size_bytes:
                    self._transport.expect_no_more(node, of)
                self._missing += 1
                self._over(of, ask, Ended.MISSING)
            else:
                ask.sum = sum_
                if ask.landed < 0:
                    self._transport.look_for(node, of)
                self._perhaps_whole(of, ask)

    def _received(self, event: Received, now_s: float) -> None:
        self._heard(event.node, now_s)
        ask = self._asks.get(event.number)
        if ask is not None and ask.node == event.node:
            ask.landed = max(0, event.size_bytes)  # below 0 it failed: it is over, and not what was asked for
            self._perhaps_whole(event.number, ask)

    def _perhaps_whole(self, of: int, ask: _Ask) -> None:
        """End a request when its bytes and their checksum have both come."""
        if ask.ended:  # its peer was taken for lost meanwhile, and may have died before it could say the checksum
            if ask.landed >= 0:
                self._over(of, ask, Ended.OFF)
            return
        if ask.sum is None or ask.landed < 0:
            return
        if ask.landed == ask.version.size_bytes and checksum(ask.into, ask.sample, ask.version) == ask.sum:
            self._got += 1
            self._got_bytes += ask.landed
            self._over(of, ask, Ended.HERE)
        else:
            self._missing += 1
            self._spoilt += 1
            self._over(of, ask, Ended.MISSING)

    def _over(self, of: int, ask: _Ask, end: Ended) -> None:
        del self._asks[of]
        self._ends.append((ask.number, Ended.OFF if ask.ended else end))
        self._asked_of[ask.node] -= 1
        if not self._asked_of[ask.node]:
            self._liveness.owes_nothing(ask.node)

    # -- who lives

    def _heard(self, node: int, now_s: float) -> None:
        if not self._asked_of[node]:
            self._liveness.owes_nothing(node)
        if self._liveness.heard(node, now_s):
            for news in self._unheard.pop(node, ()):
                for message in news.messages:
                    self._transport.send(node, message)
            if self._done:
                self._say(node, messages.MessageKind.DONE, now_s)
            for packet in link.pack(link.PacketKind.BACK, [(node,)]):
                self._to_server(packet)

    def beat(self, now_s: float) -> None:
        """Every `Liveness.beat_s`: who is lost, and who is to be told that this node lives?"""
        lost = self._liveness.found_lost(now_s)
        if lost:
            self._lose(lost, now_s)
        for node in self._liveness.to_be_told(
            {*self._asking, *self._found, *(owed.node for owed in self._owed.values())}, now_s
        ):
            kind = messages.MessageKind.PING if node in self._liveness.lost else messages.MessageKind.ALIVE
            self._say(node, kind, now_s)
        self._flush(now_s)

    def _say(self, node: int, kind: messages.MessageKind, now_s: float) -> None:
        self._transport.send(node, messages.pack(kind))
        self._liveness.said(node, now_s)

    def _lose(self, nodes: list[int], now_s: float) -> None:
        """Whoever waits for these peers goes on without them. Memory where something may still land stays reserved."""
        for packet in link.pack(link.PacketKind.LOST, [(node,) for node in nodes]):
            self._to_server(packet)
        for of, ask in list(self._asks.items()):
            if ask.node not in nodes or ask.ended:
                continue
            self._ends.append((ask.number, Ended.LOST))
            ask.ended = True
            if not ask.version.size_bytes or ask.landed >= 0 or self._transport.expect_no_more(ask.node, of):
                self._over(of, ask, Ended.OFF)
        for node in nodes:
            self._liveness.owes_nothing(node)
            for found in self._found.pop(node, ()):
                self._owed_bytes[node] -= found.owed.version.size_bytes
                self._give(found.owed, None, 0, now_s)
            for owed in self._asking.pop(node, ()):
                self._give(owed, None, 0, now_s)

    def done(self, now_s: float) -> None:
        """This node's COMMAND is done: the peers that are there are told, the others when they are back."""
        self._done = True
        for node in range(self._transport.nodes):
            if node != self._transport.node and node not in self._liveness.lost:
                self._say(node, messages.MessageKind.DONE, now_s)
                self._liveness.asked(node, now_s)  # one that has died is not waited for

    @property
    def all_done(self) -> bool:
        """Whether this node and all that are there are done."""
        return self._done and self._liveness.all_done

    def leave(self, now_s: float) -> None:
        """Tell the peers that this node leaves."""
        for node in self._liveness.to_be_left(now_s):
            self._transport.send(node, messages.pack(messages.MessageKind.LEAVE))

    # -- what has collected

    def _flush(self, now_s: float) -> None:
        if self._gives:
            gives, self._gives = self._gives, defaultdict(list)
            for node, rows in gives.items():
                self._send(node, messages.MessageKind.GIVE, rows, now_s)
        if self._ends:
            ends, self._ends = self._ends, []
            self._tell_server(link.PacketKind.ENDED, ends)
        if self._wanted:
            wanted, self._wanted = self._wanted, []
            self._tell_server(link.PacketKind.WANTED, wanted)

    def _tell_server(self, kind: link.PacketKind, records: Sequence[tuple[int, ...]]) -> None:
        for packet in link.pack(kind, records):
            self._to_server(packet)
