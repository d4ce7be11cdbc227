"""How fast nodes give each other samples: mlfs's agents beside plain loops over MPI, all in one run on one machine.

    python scripts/benchmark/peer_rank.py WHAT SAMPLES SIZE_BYTES    one of two ranks under mpiexec; prints JSON

WHAT is `agents` (two agents of mlfs: the owner's arena, MPI, the asker's landing memory, checksums), `plain` (the same
loop written plainly: a copy, a checksum and a send on one side, a receive, a copy and a checksum on the other),
`messages` (a request and bytes in answer, nothing else) or `rma` (one-sided reads of the owner's registered arena).
In: how many samples, their size. Out: samples a second and CPU time of both ranks, for scripts/benchmark/peers.py.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import mpi4py
import numpy as np
import xxhash

mpi4py.rc.initialize = len(sys.argv) > 1 and sys.argv[1] in ("plain", "messages", "rma")
mpi4py.rc.finalize = mpi4py.rc.initialize

from mpi4py import MPI  # noqa: E402 - the agents' transport starts MPI by itself, and imported by others it shall not

from mlfs.peers import link, mpi  # noqa: E402
from mlfs.peers.agent import Agent  # noqa: E402
from mlfs.peers.liveness import Liveness  # noqa: E402
from mlfs.peers.shelf import Shelf  # noqa: E402
from mlfs.places.catalogue import Catalogue, CopyKind  # noqa: E402
from mlfs.places.ram import RamTier  # noqa: E402
from mlfs.places.showcase import Showcase  # noqa: E402
from mlfs.tree.samples import Version  # noqa: E402

ASKER, OWNER = 0, 1
# Samples under way at once: what four lanes of a mount ask for in small batches. More gains nothing.
WINDOW = 64
BATCH = 16
# The owner's memory: much more than processors cache, and no more than any test machine has.
ARENA_BYTES = 256 << 20


class Node:
    """An agent with a shelf full of samples, and landing memory that nobody else divides."""

    def __init__(self, size_bytes: int) -> None:
        self.transport = mpi.start()
        self.version = Version(size_bytes, 1)
        self.kept = max(1, ARENA_BYTES // size_bytes)
        self.packets: list[bytes] = []  # to its server
        tier, showcase = RamTier(2 * ARENA_BYTES), Showcase()
        catalogue = Catalogue(showcase.open(self.kept), self.kept)
        self.room_bytes = -(-size_bytes // 4096) * 4096
        self.landing = mmap.mmap(-1, WINDOW * self.room_bytes)
        for sample in range(self.kept if self.transport.node == OWNER else 0):
            data = np.full(size_bytes, sample % 251, np.uint8).tobytes()
            tier.put(b"%d" % sample, self.version, memoryview(data))
            where = tier.where(b"%d" % sample, self.version)
            assert where is not None
            showcase.kept(sample, CopyKind.RAM, where, self.version, data)
        shelf, liveness = Shelf(catalogue, tier.memory_fds), Liveness(2, self.transport.node, 10.0)
        self.agent = Agent(self.transport, shelf, memoryview(self.landing), self.packets.append, liveness)

    def turn(self) -> list[bytes]:
        """Look at the transport as an agent's process does; what was said to the server."""
        if not self.agent.poll(time.monotonic()):
            os.sched_yield()
        said = self.packets[:]
        self.packets.clear()
        return said


def agents(samples: int, size_bytes: int) -> None:
    """Samples that one agent gets from another, as an agent's process does it but for the socket to its server."""
    node = Node(size_bytes)
    if node.transport.node == ASKER:
        order = np.random.default_rng(1).integers(0, node.kept, samples).tolist()
        cpu, began = time.process_time(), time.perf_counter()
        _ask_for_all(node, order)
        report(samples, time.perf_counter() - began, time.process_time() - cpu)
        node.agent.leave(time.monotonic())
        for _ in range(1000):
            node.transport.poll()
    else:
        while not node.agent.poll(time.monotonic()):
            os.sched_yield()
        cpu = time.process_time()
        while not any(packet[0] == link.PacketKind.LOST for packet in node.turn()):
            pass
        report(samples, 0.0, time.process_time() - cpu)
    node.transport.close(orderly=False, code=0)


def _ask_for_all(node: Node, order: list[int]) -> None:
    """Ask as a server with four lanes does: a batch whenever there is room for one to land."""
    free = deque(number * node.room_bytes for number in range(WINDOW))
    lies: dict[int, int] = {}
    asked = done = 0
    while done < len(order):
        if len(free) >= BATCH and asked < len(order):
            batch = order[asked : asked + BATCH]
            rows = [
                (number, OWNER, sample, 0, *node.version, free.popleft()) for number, sample in enumerate(batch, asked)
            ]
            lies.update((row[0], row[-1]) for row in rows)
            asked += len(batch)
            for packet in link.pack(link.PacketKind.FETCH, rows):
                node.agent.packet(link.unpack(packet), time.monotonic())
        for packet in node.turn():
            for number, end in link.unpack(packet).records.tolist():
                assert end == link.Ended.HERE
                free.append(lies.pop(number))
                done += 1


def plain(samples: int, size_bytes: int) -> None:
    """The same by hand: the owner copies from its arena, checksums, sends; the asker receives, copies, checksums."""
    world = MPI.COMM_WORLD
    other = 1 - world.Get_rank()
    kept = max(1, ARENA_BYTES // size_bytes)
    arena = np.zeros((kept if world.Get_rank() == OWNER else WINDOW, size_bytes), np.uint8)
    arena[:] = np.arange(len(arena), dtype=np.uint8)[:, None]
    order = np.random.default_rng(1).integers(0, kept, samples).tolist()
    buffers = np.zeros((WINDOW, size_bytes), np.uint8)
    requests: list[Any] = [MPI.REQUEST_NULL] * WINDOW
    sums = np.zeros(samples, np.uint64)
    world.Barrier()
    cpu, began = time.process_time(), time.perf_counter()
    if world.Get_rank() == OWNER:
        for number, sample in enumerate(order):
            slot = number % WINDOW
            requests[slot].Wait()
            buffers[slot] = arena[sample]
            sums[number] = xxhash.xxh3_64_intdigest(buffers[slot])
            requests[slot] = world.Isend(buffers[slot], dest=other)
        MPI.Request.Waitall(requests)
    else:
        for slot in range(WINDOW):
            requests[slot] = world.Irecv(buffers[slot], source=other)
        for number in range(samples):
            slot = number % WINDOW
            requests[slot].Wait()
            arena[slot] = buffers[slot]
            sums[number] = xxhash.xxh3_64_intdigest(arena[slot])
            if number + WINDOW < samples:
                requests[slot] = world.Irecv(buffers[slot], source=other)
    report(samples, time.perf_counter() - began, time.process_time() - cpu)
    world.Barrier()


def messages(samples: int, size_bytes: int) -> None:
    """Requests in batches, and the bytes in answer, sent from the arena into place: no checksum, no copy but MPI's."""
    world = MPI.COMM_WORLD
    other = 1 - world.Get_rank()
    window = _window(size_bytes)
    batch = max(1, window // 4)
    kept = max(window, ARENA_BYTES // size_bytes)
    order = np.random.default_rng(1).integers(0, kept, samples // batch * batch).reshape(-1, batch)
    if world.Get_rank() == OWNER:
        arena = np.ones((kept, size_bytes), np.uint8)
        requests: deque[list[Any]] = deque()
        asking = np.zeros((batch,), np.int64)
        world.Barrier()
        cpu, began = time.process_time(), time.perf_counter()
        for _ in order:
            world.Recv(asking, source=other, tag=1)
            requests.append([world.Isend(arena[sample], dest=other, tag=2) for sample in asking.tolist()])
            if len(requests) > window // batch:
                MPI.Request.Waitall(requests.popleft())
        for sends in requests:
            MPI.Request.Waitall(sends)
    else:
        places = np.zeros((window, size_bytes), np.uint8)
        receives: deque[list[Any]] = deque()
        world.Barrier()
        cpu, began = time.process_time(), time.perf_counter()
        for number, wanted in enumerate(order):
            if len(receives) >= window // batch:
                MPI.Request.Waitall(receives.popleft())
            slots = [(number * batch + at) % window for at in range(batch)]
            receives.append([world.Irecv(places[slot], source=other, tag=2) for slot in slots])
            world.Send(wanted, dest=other, tag=1)
        for some in receives:
            MPI.Request.Waitall(some)
        assert places.all(), "bytes did not come"
    report(samples, time.perf_counter() - began, time.process_time() - cpu)
    world.Barrier()


def rma(samples: int, size_bytes: int) -> None:
    """One-sided reads: the asker gets each sample out of the owner's arena, flushing whenever its places are full."""
    world = MPI.COMM_WORLD
    window = _window(size_bytes)
    kept = max(window, ARENA_BYTES // size_bytes)
    owns = world.Get_rank() == OWNER
    arena = np.ones((kept if owns else 1, size_bytes), np.uint8)
    order = np.random.default_rng(1).integers(0, kept, samples).tolist()
    registered = MPI.Win.Create(arena, 1, comm=world)
    places = np.zeros((window, size_bytes), np.uint8)
    registered.Lock_all()
    world.Barrier()
    cpu, began = time.process_time(), time.perf_counter()
    if not owns:
        for number, sample in enumerate(order):
            registered.Get(places[number % window], OWNER, sample * size_bytes)
            if number % window == window - 1:
                registered.Flush(OWNER)
        registered.Flush(OWNER)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    assert owns or places.all(), "bytes did not come"
    done = world.Ibarrier()
    while not done.Test():  # so that one-sided reads go on where MPI needs the owner's help
        os.sched_yield()
    if owns:
        used = time.process_time() - cpu
    report(samples, seconds, used)
    registered.Unlock_all()
    registered.Free()


def _window(size_bytes: int) -> int:
    return max(4, min(WINDOW, (32 << 20) // size_bytes))


def report(samples: int, seconds: float, cpu_s: float) -> None:
    """A rank's figures, in one write: ranks share their standard output."""
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    figures = {
        "rank": rank, "rate": samples / seconds if seconds else 0.0, "cpu_us": cpu_s / samples * 1e6,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }  # fmt: skip
    os.write(1, json.dumps(figures).encode() + b"\n")


RANKS: dict[str, Callable[[int, int], None]] = {"agents": agents, "plain": plain, "messages": messages, "rma": rma}

if __name__ == "__main__":
    RANKS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
