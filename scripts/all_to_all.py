"""One node of an exchange of all with all over plain TCP: the least that links need, for scripts/demo-cluster.

    python scripts/all_to_all.py OWN BYTES ADDRESS...    on each node; ADDRESS: of all nodes, in the same order

In: this node's number, how many bytes it sends to each other node. Out: a line, the seconds from the moment in which it
was connected to all until it had received all. Bytes are sent from one buffer and thrown away: no copy, no checksum.
"""

from __future__ import annotations

import socket
import sys
import threading
import time

PORT = 29512
PATIENCE_S = 20.0
BUFFER_BYTES = 1 << 20


def connected(address: str) -> socket.socket:
    """A connection to a node, which may not listen yet."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, PORT), PATIENCE_S)
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


def send(to: socket.socket, count: int) -> None:
    """Send so many bytes."""
    buffer = memoryview(bytes(BUFFER_BYTES))
    for start in range(0, count, BUFFER_BYTES):
        to.sendall(buffer[: min(BUFFER_BYTES, count - start)])


def receive(of: socket.socket, count: int) -> None:
    """Receive so many bytes."""
    buffer = bytearray(BUFFER_BYTES)
    while count > 0:
        got = of.recv_into(buffer)
        if not got:
            raise SystemExit("a node has ended before it had sent all")
        count -= got


def main() -> None:
    own, count, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    listener = socket.create_server(("", PORT), backlog=len(addresses))
    others = [address for number, address in enumerate(addresses) if number != own]
    to = [connected(address) for address in others]
    of = [listener.accept()[0] for _ in others]
    began_s = time.perf_counter()
    threads = [threading.Thread(target=send, args=(one, count)) for one in to]
    threads += [threading.Thread(target=receive, args=(one, count)) for one in of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
