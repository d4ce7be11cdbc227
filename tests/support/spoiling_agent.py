"""`mlfs` with a network that now and then spoils what an agent gives: a program that takes the command's words."""

from __future__ import annotations

import sys

from mlfs.cli.main import main
from mlfs.peers.mpi import MpiTransport
from mlfs.peers.transport import Buffer

EACH = 7  # one in so many samples is spoilt

give = MpiTransport.give
given = 0


def give_spoilt(self: MpiTransport, node: int, number: int, data: Buffer) -> None:
    """As `give`, but that a bit of some samples is another."""
    global given
    given += 1
    if given % EACH == 0 and len(data):
        data = bytearray(data)
        data[given % len(data)] ^= 1 << given % 8
    give(self, node, number, data)


MpiTransport.give = give_spoilt  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
