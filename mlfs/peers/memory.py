"""A transport within one process: the twin of `mlfs.peers.mpi` for tests and simulated time.

In: messages and bytes of the nodes' agents. Out: the same, after a delay that the owner of the network says. Messages
and links may be cut, so that what is sent is lost, and bytes may be spoilt on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfs.peers.transport import NUMBERS, PIECE_BYTES, Arrived, Buffer, Happened, PieceCame, Received


class _Piece(NamedTuple):
    """A piece of a sample on its way."""

    offset: int
    data: bytes
    is_last: bool


@dataclass(slots=True)
class _Port:
    """One node's side: messages that it has received, where it expects bytes, which landed, and which it looks for."""

    happened: list[Happened] = field(default_factory=list)
    expected: dict[tuple[int, int], memoryview] = field(default_factory=dict)
    landed: dict[tuple[int, int], int] = field(default_factory=dict)
    looked_for: set[tuple[int, int]] = field(default_factory=set)
    early: dict[tuple[int, int], list[_Piece]] = field(default_factory=dict)
    gone: bool = False

    def take(self) -> list[Happened]:
        """The events since the last call."""
        happened, self.happened = self.happened, []
        return happened

    def report(self, source: int, number: int) -> None:
        """Report the bytes that have landed and are looked for."""
        if (source, number) in self.looked_for and (source, number) in self.landed:
            self.looked_for.discard((source, number))
            self.happened.append(Received(source, number, self.landed.pop((source, number))))

    def close(self) -> None:
        """The node is gone: nothing arrives any more."""
        self.gone = True


class MemoryNetwork:
    """All nodes' ports.

    Args:
        later: has a function called after what bytes to that node take; None: at once. spoil: what becomes of bytes
            of samples on their way. garble: what becomes of messages.

    Attributes:
        cut: pairs (from, to) between which everything is lost. spoil, garble: as above.
    """

    def __init__(
        self,
        nodes: int,
        later: Callable[[int, int, int, Callable[[], None]], None] | None = None,
        spoil: Callable[[bytes], bytes] = bytes,
        garble: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.cut: set[tuple[int, int]] = set()
        self.spoil, self.garble = spoil, garble
        self._later = later
        self._ports = [_Port() for _ in range(nodes)]

    @property
    def nodes(self) -> int:
        return len(self._ports)

    def port(self, node: int) -> MemoryTransport:
        return MemoryTransport(self, node, self._ports[node])

    def carry(self, source: int, to: int, size_bytes: int, arrive: Callable[[_Port], None]) -> None:
        """Have something arrive at a node, unless it is lost."""
        if (source, to) in self.cut or self._ports[to].gone:
            return
        if self._later is None:
            arrive(self._ports[to])
        else:
            self._later(source, to, size_bytes, lambda: arrive(self._ports[to]))


class MemoryTransport:
    """The transport of one node: see mlfs.peers.transport."""

    def __init__(self, network: MemoryNetwork, node: int, port: _Port) -> None:
        self._network = network
        self._node = node
        self._port = port
        self._unsent_bytes: Counter[int] = Counter()

    @property
    def node(self) -> int:
        return self._node

    @property
    def nodes(self) -> int:
        return self._network.nodes

    @property
    def most_numbers(self) -> int:
        return NUMBERS

    def send(self, node: int, message: bytes) -> None:
        arrived = Arrived(self._node, self._network.garble(message))
        self._network.carry(self._node, node, len(message), lambda port: port.happened.append(arrived))

    def expect(self, node: int, number: int, into: memoryview) -> None:
        self._port.expected[node, number] = into
        for piece in self._port.early.pop((node, number), ()):
            _land(self._port, node, number, piece)

    def look_for(self, node: int, number: int) -> None:
        if (node, number) in self._port.expected or (node, number) in self._port.landed:
            self._port.looked_for.add((node, number))
            self._port.report(node, number)

    def expect_no_more(self, node: int, number: int) -> bool:
        if self._port.expected.pop((node, number), None) is None:
            self.look_for(node, number)
            return False
        self._port.looked_for.discard((node, number))
        return True

    def give(self, node: int, number: int, data: Buffer) -> None:
        spoilt = self._network.spoil(bytes(data))
        for start in range(0, len(spoilt), PIECE_BYTES):
            end = start + PIECE_BYTES
            self._give_piece(node, number, _Piece(start, spoilt[start:end], end >= len(spoilt)))

    def _give_piece(self, node: int, number: int, piece: _Piece) -> None:
        self._unsent_bytes[node] += len(piece.data)

        def arrive(port: _Port) -> None:
            self._unsent_bytes[node] -= len(piece.data)
            _land(port, self._node, number, piece)

        self._network.carry(self._node, node, len(piece.data), arrive)

    def unsent_bytes(self, node: int) -> int:
        return self._unsent_bytes[node]

    def poll(self) -> list[Happened]:
        return self._port.take()

    def close(self, orderly: bool, code: int) -> None:
        self._port.close()


def _land(port: _Port, source: int, number: int, piece: _Piece) -> None:
    into = port.expected.get((source, number))
    if into is None:
        port.early.setdefault((source, number), []).append(piece)
        return
    size = max(0, min(len(piece.data), len(into) - piece.offset))
    into[piece.offset : piece.offset + size] = piece.data[:size]
    if piece.is_last:
        del port.expected[source, number]
        port.landed[source, number] = piece.offset + size
        port.report(source, number)
    elif (source, number) in port.looked_for:
        port.happened.append(PieceCame(source))
