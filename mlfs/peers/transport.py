"""The contract of a transport: how agents move messages and the bytes of samples.

Nodes are numbers from 0 to `nodes - 1`. Messages from one node to another arrive in their order, once, whole. The bytes
of a sample travel apart from messages: the receiver says where they shall land, under a number of its own, before it
asks for them; so nobody copies them on the way. No method blocks, and none fails because the other side is gone:
whoever waits for it judges that by time (mlfs.peers.liveness).

`mlfs.peers.mpi` keeps this contract over MPI, `mlfs.peers.memory` in one process, for tests and simulated time;
tests/peers/transport_contract.py says what both do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

# Numbers of receives: MPI's tags, of which a standard-conforming library has at least so many less one. A number comes
# again only after all the others, when nothing of the first use can be under way any more.
NUMBERS = 1 << 15
# Samples above this travel in pieces of it, so that each piece that comes is a sign of life: 4 MiB take 0.3 s at 100
# Mbit/s, well below the patience with peers (1 s), and are so many that what a piece costs does not show.
PIECE_BYTES = 4 << 20


class Arrived(NamedTuple):
    """A message came."""

    node: int
    data: Buffer


class Received(NamedTuple):
    """All bytes came that were to land under this number: so many. It is said of receives that are looked for."""

    node: int
    number: int
    size_bytes: int


class PieceCame(NamedTuple):
    """A piece of a large sample came, and others are under way."""

    node: int


Happened = Arrived | Received | PieceCame


class Transport(Protocol):
    @property
    def node(self) -> int:
        """The number of this node."""

    @property
    def nodes(self) -> int:
        """The number of nodes, this one included."""

    @property
    def most_numbers(self) -> int:
        """Numbers of receives lie below this."""

    def send(self, node: int, message: bytes) -> None:
        """Send a message of at most mlfs.peers.messages.LARGEST_BYTES."""

    def expect(self, node: int, number: int, into: memoryview) -> None:
        """Bytes that this node gives under the number land here."""

    def look_for(self, node: int, number: int) -> None:
        """The node says that it gives these bytes: `poll` reports them when they have come.

        Looking only for those keeps a poll short, however many receives wait for nodes that take their time.
        """

    def expect_no_more(self, node: int, number: int) -> bool:
        """Whether the receive is called off: nothing lands there any more. Else it is looked for."""

    def give(self, node: int, number: int, data: Buffer) -> None:
        """Send bytes to where the node expects them under the number. They are kept until they are sent."""

    def unsent_bytes(self, node: int) -> int:
        """Bytes given to a node that are still kept for it. Those of a node that is gone may be kept for good."""

    def poll(self) -> Sequence[Happened]:
        """The events since the last call."""

    def close(self, orderly: bool, code: int) -> None:
        """The end. orderly: all nodes take part in it; else this one just goes, with this exit code."""
