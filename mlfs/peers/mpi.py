"""The transport over MPI, by two-sided messages that nobody waits in.

In: messages and bytes of this node's agent. Out: those of its peers'. Messages and bytes have a communicator each, so
that a number of a receive, which is MPI's tag, is never taken for a message. Large samples travel in pieces under one
number, which MPI keeps in their order. Nothing here blocks, because a peer may be dead or stopped: sends that never end
stay in `_sends`, and an agent that has lost a peer leaves without MPI_Finalize, which would wait for it.

The cost of a poll does not grow with what is under way: MPI is asked only about receives whose bytes were said to come,
and about sends, for which few wait, not at each poll.

MPI is imported when a transport is made: whoever does not use peers needs no mpi4py.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mlfs.errors import ExitCode, MlfsError
from mlfs.peers.messages import LARGEST_BYTES
from mlfs.peers.transport import NUMBERS, PIECE_BYTES, Arrived, Buffer, Happened, PieceCame, Received

if TYPE_CHECKING:
    from mpi4py import MPI

_About = TypeVar("_About")

_TAG = 1  # of all messages
# Messages that are taken at one poll: what came for us is not to keep us from what is to be sent.
_AT_ONCE = 64
# Requests that MPI is asked about at once. mpi4py makes arrays of them for each question.
_LOOKED_AT = 64
# MPI moves the bytes of about one sample in each call, so while some are awaited a poll makes so many: eight cost some
# 8 us where nothing comes. With one, an agent got 0.47 of a plain loop's samples, with eight 0.6. The same where sends
# go on: each call hears of the end of about one, and a peer's next wish waits behind all of them.
_CALLS_AWAITING = 8
# Sends are looked at in each so manyth poll.
_SENDS_EVERY = 8
_GOES_ON = -2  # stands for the size of what has not ended
# UCX hands so much to the kernel of each TCP connection at most; the kernel makes it twice that. The bytes that lie
# there are sent before any message: by itself the kernel takes 4 MB, over a link of 150 Mbit/s 0.2 s of it. This much
# keeps 20 Gbit/s of one connection busy over 100 us. A user who has set it otherwise is not overruled.
_SETTINGS = {"UCX_TCP_SNDBUF": "128k"}
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

        with _settings():
            MPI.Init_thread(MPI.THREAD_FUNNELED)
        # UCX has taken it, to write all that it does to standard error from then on. Python knows what it was.
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGHUP))
    except (ImportError, RuntimeError) as error:
        raise MlfsError(
            f"MPI cannot be used: {' '.join(str(error).split())}",
            "pip install 'mlfs[mpi]', and load your cluster's MPI module (or pip install mpich)",
            ExitCode.FAILURE,
        ) from error
    return MpiTransport(MPI.COMM_WORLD)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Set the environment for MPI's start alone: the training that this process starts may have an MPI of its own."""
    ours = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _forget_files() -> None:
    """Take away the names of memory that MPICH shares on a node, once all agents of it have that: megabytes of it would
    stay for good where one of them is killed."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for name in set(re.findall(r"/dev/shm/mpich_shm_\S+$", maps.read(), re.MULTILINE)):
            with contextlib.suppress(FileNotFoundError):  # another agent of this node was sooner
                os.unlink(name)


class MpiTransport:
    """Keeps the contract of `mlfs.peers.transport` over MPI.

    Args:
        world: all agents. Every one of them has to make its transport.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._messages, self._bytes = world.Dup(), world.Dup()
        for communicator in (self._messages, self._bytes):
            communicator.Set_errhandler(MPI.ERRORS_RETURN)
        _forget_files()
        self._node, self._nodes = int(world.Get_rank()), int(world.Get_size())
        self._most_numbers = int(world.Get_attr(MPI.TAG_UB) or NUMBERS)
        self._buffer = bytearray(LARGEST_BYTES)
        self._status = MPI.Status()
        self._receives: dict[tuple[int, int], _Receive] = {}  # all that are under way, by node and number
        self._looked_for: _Requests[_Receive] = _Requests(MPI)
        self._sends: _Requests[tuple[int, Buffer]] = _Requests(MPI)  # and to whom, and what they read
        self._unsent_bytes = [0] * self._nodes
        self._polls = 0

    @property
    def node(self) -> int:
        return self._node

    @property
    def nodes(self) -> int:
        return self._nodes

    @property
    def most_numbers(self) -> int:
        return self._most_numbers

    def send(self, node: int, message: bytes) -> None:
        request = self._messages.Isend([message, self._mpi.BYTE], dest=node, tag=_TAG)
        if not request.Test():
            self._sends.add(request, (node, message))
            self._unsent_bytes[node] += len(message)

    def expect(self, node: int, number: int, into: memoryview) -> None:
        pieces = [into]
        if len(into) > PIECE_BYTES:
            pieces = [into[start : start + PIECE_BYTES] for start in range(0, len(into), PIECE_BYTES)]
        requests = [self._bytes.Irecv([piece, self._mpi.BYTE], source=node, tag=number) for piece in pieces]
        self._receives[node, number] = _Receive(node, number, requests)

    def look_for(self, node: int, number: int) -> None:
        receive = self._receives.get((node, number))
        if receive is not None:
            self._look_for(receive)

    def _look_for(self, receive: _Receive) -> None:
        receive.left = len(receive.requests) or receive.left
        for request in receive.requests:
            self._looked_for.add(request, receive)
        receive.requests = []

    def expect_no_more(self, node: int, number: int) -> bool:
        receive = self._receives.get((node, number))
        if receive is None:
            return False
        receive.requests += self._looked_for.take(receive)
        for request in receive.requests:
            request.Cancel()
        receive.requests = [request for request in receive.requests if not self._is_off(request)]
        if not receive.requests:
            del self._receives[node, number]
            return True
        self._look_for(receive)
        return False

    def _is_off(self, request: Any) -> bool:
        """Whether a cancelled receive is off: MPI says so when it is over, at once unless its bytes are coming."""
        over = request.Get_status(self._status)
        return bool(over) and bool(self._status.Is_cancelled()) and (request.Wait() or True)

    def give(self, node: int, number: int, data: Buffer) -> None:
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            self._sends.add(self._bytes.Isend([piece, self._mpi.BYTE], dest=node, tag=number), (node, piece))
        self._unsent_bytes[node] += len(view)

    def unsent_bytes(self, node: int) -> int:
        return self._unsent_bytes[node]

    def poll(self) -> Sequence[Happened]:
        happened: list[Happened] = []
        quiet, most_quiet = 0, _CALLS_AWAITING if self._receives or self._sends.any else 1
        while quiet < most_quiet and len(happened) < _AT_ONCE:
            try:
                if not self._messages.Iprobe(self._mpi.ANY_SOURCE, _TAG, self._status):
                    quiet += 1
                    continue
                source = self._status.Get_source()
                self._messages.Recv([self._buffer, self._mpi.BYTE], source=source, tag=_TAG, status=self._status)
            except self._mpi.Exception as error:
                self._acknowledge(error)
                break
            happened.append(Arrived(source, bytes(memoryview(self._buffer)[: self._status.Get_count()])))
        for receive, size_bytes in self._looked_for.ended():
            happened.append(receive.came(size_bytes))
            if not receive.left:
                del self._receives[receive.node, receive.number]
        self._polls += 1
        if self._polls % _SENDS_EVERY == 0:
            for (node, data), _ in self._sends.ended():
                self._unsent_bytes[node] -= len(data)
        return happened

    def _acknowledge(self, error: Any) -> None:
        """Have MPI go on where a peer has died: Open MPI refuses to look for messages until that is acknowledged.

        Time tells who has died, as with an MPI that does not tell. Raises: the error, if it is another.
        """
        if error.Get_error_class() not in (self._mpi.ERR_PROC_FAILED, self._mpi.ERR_PROC_FAILED_PENDING):
            raise error
        self._messages.Ack_failed()

    def close(self, orderly: bool, code: int) -> None:
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


class _Receive:
    """A receive, in one piece or several.

    Attributes:
        requests: MPI's, of the pieces, until they are looked for. left: pieces that are looked for and have not come.
    """

    __slots__ = ("came_bytes", "left", "node", "number", "requests")

    def __init__(self, node: int, number: int, requests: list[Any]) -> None:
        self.node, self.number = node, number
        self.requests = requests
        self.left = self.came_bytes = 0

    def came(self, size_bytes: int) -> Happened:
        """A piece came, or failed: then its bytes are below 0, and so are those of the whole."""
        self.left -= 1
        self.came_bytes = -1 if min(size_bytes, self.came_bytes) < 0 else self.came_bytes + size_bytes
        return PieceCame(self.node) if self.left else Received(self.node, self.number, self.came_bytes)


class _Requests(Generic[_About]):
    """MPI's requests that go on, oldest first, and what each is about."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._requests: list[Any] = []
        self._about: list[_About] = []
        self._statuses = [mpi.Status() for _ in range(_LOOKED_AT)]
        self._first = 0  # of those that are looked at next

    @property
    def any(self) -> bool:
        return bool(self._requests)

    def add(self, request: Any, about: _About) -> None:
        self._requests.append(request)
        self._about.append(about)

    def take(self, about: _About) -> list[Any]:
        """Take out the requests that are about this, and return them."""
        taken = [request for request, other in zip(self._requests, self._about, strict=True) if other is about]
        if taken:
            rest = [
                (request, other)
                for request, other in zip(self._requests, self._about, strict=True)
                if other is not about
            ]
            self._requests, self._about = [request for request, _ in rest], [other for _, other in rest]
        return taken

    def ended(self) -> list[tuple[_About, int]]:
        """Those among some that have ended since, and the bytes that came: below 0 where it failed (a peer that is
        gone, or that sends what was not asked for). If there are many, all are looked at in turns."""
        if not self._requests:
            return []
        first = self._first if self._first < len(self._requests) else 0
        some = self._requests[first : first + _LOOKED_AT]
        self._first = first + len(some)
        try:
            done = self._mpi.Request.Testsome(some, self._statuses[: len(some)]) or []
            ends = [(first + at, status.Get_count()) for at, status in zip(done, self._statuses, strict=False)]
        except self._mpi.Exception:
            ends = [(first + at, size) for at, request in enumerate(some) if (size := self._test(request)) > _GOES_ON]
        found = [(self._about[at], size) for at, size in ends]
        for at in sorted((at for at, _ in ends), reverse=True):
            del self._requests[at], self._about[at]
        if ends:
            self._first = first
        return found

    def _test(self, request: Any) -> int:
        """The bytes that came with a request that is over, -1 if it failed."""
        try:
            return int(self._statuses[0].Get_count()) if request.Test(self._statuses[0]) else _GOES_ON
        except self._mpi.Exception:
            return -1
