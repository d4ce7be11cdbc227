"""The transport over MPI, by two-sided messages that nobody waits in.

In: messages and bytes of this node's agent. Out: those of its peers'. Messages and bytes have a communicator each, so
that a number of a receive, which is MPI's tag, is never taken for a message. Nothing here blocks, because a peer may be
dead or stopped: sends that never end stay in `_sending`, and an agent that has lost a peer leaves without MPI_Finalize,
which would wait for it.

MPI is imported when a transport is made: whoever does not use peers needs no mpi4py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlfs.errors import ExitCode, MlfsError
from mlfs.peers.messages import LARGEST_BYTES
from mlfs.peers.transport import NUMBERS, Arrived, Buffer, Happened, Received

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 1  # of all messages
# Messages that are taken at one poll: what came for us is not to keep us from what is to be sent.
_AT_ONCE = 64
# Some library needs that long on a busy machine, when all peers are there.
FINALIZE_PATIENCE_S = 10.0


def start() -> MpiTransport:
    """Start MPI and join the other agents. Every agent of the MPI job has to call it.

    Raises: MlfsError without mpi4py or an MPI library.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_FUNNELED)
    except (ImportError, RuntimeError) as error:
        raise MlfsError(
            f"MPI cannot be used: {' '.join(str(error).split())}",
            "pip install 'mlfs[mpi]', and load your cluster's MPI module (or pip install mpich)",
            ExitCode.FAILURE,
        ) from error
    return MpiTransport(MPI.COMM_WORLD)


class MpiTransport:
    """See the module, and mlfs.peers.transport for the methods.

    Args:
        world: all agents. Every one of them has to make its transport.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._messages, self._bytes = world.Dup(), world.Dup()
        for communicator in (self._messages, self._bytes):
            communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self._node, self._nodes = int(world.Get_rank()), int(world.Get_size())
        self._most_numbers = int(world.Get_attr(MPI.TAG_UB) or NUMBERS)
        self._buffer = bytearray(LARGEST_BYTES)
        self._status = MPI.Status()
        # By position, as Testsome wants lists: requests; of receives, node and number; what they read or write.
        self._requests: list[Any] = []
        self._waiting: list[tuple[int, int] | None] = []
        self._kept: list[Buffer] = []
        self._receives: dict[tuple[int, int], Any] = {}

    @property
    def node(self) -> int:
        """See Transport."""
        return self._node

    @property
    def nodes(self) -> int:
        """See Transport."""
        return self._nodes

    @property
    def most_numbers(self) -> int:
        """See Transport."""
        return self._most_numbers

    def send(self, node: int, message: bytes) -> None:
        """See Transport."""
        request = self._messages.Isend([message, self._mpi.BYTE], dest=node, tag=_TAG)
        if not request.Test():
            self._add(request, None, message)

    def expect(self, node: int, number: int, into: memoryview) -> None:
        """See Transport."""
        request = self._bytes.Irecv([into, self._mpi.BYTE], source=node, tag=number)
        self._receives[node, number] = request
        self._add(request, (node, number), into)

    def expect_no_more(self, node: int, number: int) -> bool:
        """See Transport."""
        request = self._receives.get((node, number))
        if request is None:
            return False
        request.Cancel()
        if not request.Test(self._status):
            return False
        position = self._requests.index(request)
        self._forget([position])
        del self._receives[node, number]
        return bool(self._status.Is_cancelled())

    def give(self, node: int, number: int, data: Buffer) -> None:
        """See Transport."""
        self._add(self._bytes.Isend([data, self._mpi.BYTE], dest=node, tag=number), None, data)

    def _add(self, request: Any, waiting: tuple[int, int] | None, kept: Buffer) -> None:
        self._requests.append(request)
        self._waiting.append(waiting)
        self._kept.append(kept)

    def poll(self) -> Sequence[Happened]:
        """See Transport."""
        happened: list[Happened] = []
        for _ in range(_AT_ONCE):
            if not self._messages.Iprobe(self._mpi.ANY_SOURCE, _TAG, self._status):
                break
            source = self._status.Get_source()
            self._messages.Recv([self._buffer, self._mpi.BYTE], source=source, tag=_TAG, status=self._status)
            happened.append(Arrived(source, bytes(memoryview(self._buffer)[: self._status.Get_count()])))
        if self._requests:
            happened += self._ended()
        return happened

    def _ended(self) -> list[Happened]:
        """Sends and receives that are over. One that failed (a peer that is gone, or that sends what was not asked for)
        is over too: a receive then says that nothing came."""
        statuses = [self._mpi.Status() for _ in self._requests]
        try:
            done = self._mpi.Request.Testsome(self._requests, statuses) or []
            ends = [(position, status.Get_count()) for position, status in zip(done, statuses, strict=False)]
        except self._mpi.Exception:
            ends = [(position, size) for position in range(len(self._requests)) if (size := self._test(position)) >= -1]
        happened: list[Happened] = []
        for position, size_bytes in ends:
            waiting = self._waiting[position]
            if waiting is not None:
                del self._receives[waiting]
                happened.append(Received(waiting[0], waiting[1], size_bytes))
        self._forget([position for position, _ in ends])
        return happened

    def _test(self, position: int) -> int:
        """The bytes that came with a request that is over, -1 if it failed, -2 if it goes on."""
        try:
            return self._status.Get_count() if self._requests[position].Test(self._status) else -2
        except self._mpi.Exception:
            return -1

    def _forget(self, positions: Sequence[int]) -> None:
        for position in sorted(positions, reverse=True):  # the last one fills each gap
            _take_out(self._requests, position)
            _take_out(self._waiting, position)
            _take_out(self._kept, position)

    def close(self, orderly: bool, code: int) -> None:
        """See Transport. Does not return where the end is not orderly."""
        sys.stdout.flush()
        sys.stderr.flush()
        if not orderly:
            os._exit(code)
        # A peer that ends at this very moment without it would leave this process waiting for ever.
        watch = threading.Timer(FINALIZE_PATIENCE_S, os._exit, [code])
        watch.daemon = True
        watch.start()
        self._mpi.Finalize()
        watch.cancel()


def _take_out(column: list[Any], position: int) -> None:
    last = column.pop()
    if position < len(column):
        column[position] = last
