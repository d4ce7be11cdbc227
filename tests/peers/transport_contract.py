"""What every transport does (mlfs.peers.transport), as two roles that are played against each other.

A role is a generator that yields where it waits. Transports of one process are played in turns; those of MPI by two
processes, each of which plays its own role (this file run as a program, `mpiexec -n 2`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from mlfs.peers.messages import LARGEST_BYTES
from mlfs.peers.transport import PIECE_BYTES, Arrived, Happened, Received, Transport

Role = Iterator[None]
SIZES = (0, 1, 100, 65_536, 3_000_000, 2 * PIECE_BYTES + 5)


def content(number: int, size_bytes: int) -> bytes:
    """Bytes that both roles know."""
    return random.Random(number).randbytes(size_bytes)


class Player:
    """One side, with what happened to it so far."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.other = 1 - transport.node
        self.arrived: list[bytes] = []
        self.received: dict[int, int] = {}

    def until(self, done: Callable[[], bool]) -> Iterator[None]:
        """Poll until something holds."""
        while not done():
            for event in self.transport.poll():
                self._note(event)
            yield

    def _note(self, event: Happened) -> None:
        assert event.node == self.other
        if isinstance(event, Arrived):
            self.arrived.append(bytes(event.data))
        elif isinstance(event, Received):
            assert event.number not in self.received
            self.received[event.number] = event.size_bytes


def asker(transport: Transport) -> Role:
    """Node 0: says where bytes shall land, asks for them, checks what came."""
    player = Player(transport)
    assert transport.nodes == 2
    assert transport.most_numbers >= 32767
    # Messages arrive whole and in their order, up to the largest.
    sent = [content(number, size) for number, size in enumerate([0, 5, 1000, LARGEST_BYTES] * 20)]
    for message in sent:
        transport.send(player.other, message)
    yield from player.until(lambda: len(player.arrived) == 1)
    assert player.arrived.pop() == b"all came"
    # Bytes land where they were expected, also where they come before they are.
    into = {number: bytearray(size) for number, size in enumerate(SIZES) if size}
    for number, place in into.items():
        transport.expect(player.other, number, memoryview(place))
    transport.send(player.other, b"give")
    for number in into:
        transport.look_for(player.other, number)
    yield from player.until(lambda: len(player.received) == len(into))
    assert player.received == {number: len(place) for number, place in into.items()}
    assert all(place == content(number, len(place)) for number, place in into.items())
    yield from player.until(lambda: bool(player.arrived))
    assert player.arrived.pop() == b"early"
    early = bytearray(1000)
    transport.expect(player.other, 77, memoryview(early))
    transport.look_for(player.other, 77)
    yield from player.until(lambda: 77 in player.received)
    assert early == content(77, 1000)
    # Bytes that nobody looks for are not reported, though they came; from then on that they are looked for, they are.
    unseen = bytearray(1000)
    transport.expect(player.other, 78, memoryview(unseen))
    transport.send(player.other, b"unseen")
    yield from player.until(lambda: bool(player.arrived))
    assert player.arrived.pop() == b"unseen"
    assert 78 not in player.received
    transport.look_for(player.other, 78)
    yield from player.until(lambda: 78 in player.received)
    assert unseen == content(78, 1000)
    # A receive that is called off lands nowhere, in one piece or several; the next one of another number does.
    off, large, on = bytearray(50_000), bytearray(PIECE_BYTES + 5), bytearray(50_000)
    transport.expect(player.other, 80, memoryview(off))
    transport.expect(player.other, 81, memoryview(on))
    transport.expect(player.other, 82, memoryview(large))
    transport.look_for(player.other, 81)
    assert transport.expect_no_more(player.other, 80)
    assert not transport.expect_no_more(player.other, 80)
    assert transport.expect_no_more(player.other, 82)
    transport.send(player.other, b"both")
    yield from player.until(lambda: 81 in player.received)
    assert on == content(81, 50_000)
    assert not any(off)
    # Fewer bytes than there is room for: the number that came is said.
    roomy = bytearray(1000)
    transport.expect(player.other, 90, memoryview(roomy))
    transport.look_for(player.other, 90)
    transport.send(player.other, b"short")
    yield from player.until(lambda: 90 in player.received)
    assert player.received[90] == 10
    assert roomy[:10] == content(90, 10)
    transport.send(player.other, b"bye")
    yield from player.until(lambda: bool(player.arrived))
    assert player.arrived == [b"bye"]


def owner(transport: Transport) -> Role:
    """Node 1: gives what it is asked for."""
    player = Player(transport)
    expected = [content(number, size) for number, size in enumerate([0, 5, 1000, LARGEST_BYTES] * 20)]
    yield from player.until(lambda: len(player.arrived) >= len(expected))
    assert player.arrived == expected
    player.arrived.clear()
    transport.send(player.other, b"all came")
    yield from player.until(lambda: player.arrived == [b"give"])
    for number, size in reversed(list(enumerate(SIZES))):
        if size:
            transport.give(player.other, number, content(number, size))
    transport.give(player.other, 77, content(77, 1000))
    transport.send(player.other, b"early")
    yield from player.until(lambda: player.arrived[-1:] == [b"unseen"])
    transport.give(player.other, 78, content(78, 1000))
    transport.send(player.other, b"unseen")
    yield from player.until(lambda: player.arrived[-1:] == [b"both"])
    for number in (80, 81):
        transport.give(player.other, number, content(number, 50_000))
    yield from player.until(lambda: player.arrived[-1:] == [b"short"])
    transport.give(player.other, 90, content(90, 10))
    yield from player.until(lambda: player.arrived[-1:] == [b"bye"])
    transport.send(player.other, b"bye")
    for _ in range(1000):
        list(transport.poll())
        yield


if __name__ == "__main__":
    from mlfs.peers import mpi

    of_this_node = mpi.start()
    for _ in asker(of_this_node) if of_this_node.node == 0 else owner(of_this_node):
        pass
    print(f"node {of_this_node.node}: the contract is kept\n", end="", flush=True)
    of_this_node.close(orderly=False, code=0)  # a message to a receive that was called off is never taken
