"""`python -m mountd.mover --channel-fd N`: a mover, a process that fetches files ahead of the readers.

In: batches of files, from the server of the mount (`mlfs.engine.movers`). Out: their bytes, pushed into the page cache
of the mount and written to the RAM class or the SSD class; what became of each. It fetches what is plain: a file that
is at the source as the server knows it, or a copy of it that this node has. All else is left to the server.

A mover has the descriptor of /dev/fuse, so it asks nothing of the mount: a request that it waits for would keep it, and
by it the connection, alive when the server is gone. It ends with its server. It imports next to nothing.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from blake3 import blake3

from mlfs.engine import moves
from mlfs.engine.moves import Move, Words
from mlfs.places.known_copy import Summing, read_copy, sealed, write_file
from mlfs.places.known_file import READ, pread_all
from mlfs.processes import OF_MOVER, be_killed_sooner, end_with_parent, reuse_memory
from mlfs.tree.attributes import known_now, memory_for_looks
from mlfs.tree.openat import open_piece
from mlfs.tree.stable_stat import COARSE_TICK_NS, is_settled
from mountd.wire import stored_head

# A larger file is pushed in pieces: a notification holds pages locked until it is through.
_PIECE_BYTES = 8 << 20
_READ = READ | os.O_NOFOLLOW | os.O_CLOEXEC


class Mover:
    """Moves what its server tells it to, until that is gone."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._words: Words
        self._pages = self._root = -1
        self._fds: list[int] = []  # of the places that keep copies
        self._summing: list[Summing | None] = []  # how copies on each are summed; None for memory
        self._memory = memory_for_looks()
        self._delays = -1  # how long it has waited for a processor, where the kernel says it
        with suppress(OSError):
            self._delays = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._keeping_s = 0.0
        self._settled_ns = 0  # what was changed before is settled

    def run(self) -> None:
        """Until the server closes the channel."""
        while True:
            message, fds = moves.receive(self._channel)
            if not message:
                return
            kind = message[:1]
            if kind == moves.MOVE:
                self._move_all(moves.unpacked(message))
            elif kind == moves.WORDS:
                words, self._pages, *self._fds = fds
                self._words = Words(words)
                self._words.close_fd()
                self._summing = [_summing(secret) for secret in moves.secrets_of(message)]
            elif kind == moves.ROOT:
                if self._root >= 0:
                    os.close(self._root)
                (self._root,) = fds

    def _move_all(self, batch: Iterable[Move]) -> None:
        words, began_s = self._words, self._busy_s()
        begun, waited, outcome = words.begun, words.waited, words.outcome
        self._keeping_s, self._settled_ns = 0.0, time.time_ns() - COARSE_TICK_NS
        for number, move in enumerate(batch):
            begun[number] = 1
            if waited[number]:
                outcome[number] = moves.LEFT
                continue
            outcome[number] = self._move_copy(number, move) if move.is_copied else self._move(number, move)
            if waited[number]:
                self._channel.send(moves.numbered(moves.DONE, number))
        self._channel.send(moves.over(self._busy_s() - began_s, self._keeping_s))

    def _busy_s(self) -> float:
        """Seconds that it has computed, or waited for a processor: a source for which it waits answers meanwhile."""
        delayed = os.pread(self._delays, 64, 0).split() if self._delays >= 0 else ()
        return time.process_time() + (int(delayed[1]) / 1e9 if len(delayed) > 1 else 0.0)

    def _move(self, number: int, move: Move) -> int:
        """Few calls, as a file's bytes take what code there is out of the processor's caches each time."""
        path, known, target, _, fd, offset, _, _ = move
        size, mtime_ns, ctime_ns = known[:3]
        settled_ns = self._settled_ns
        if (ctime_ns >= settled_ns or mtime_ns >= settled_ns) and not is_settled(ctime_ns, mtime_ns):
            return moves.LEFT
        try:
            file = open_piece(self._root, path, _READ)
            try:
                data = os.pread(file, size + 1, 0)  # a byte more: it comes where the file has become longer
                now = known_now(file, self._memory)
            finally:
                os.close(file)
        except (OSError, MemoryError):
            return moves.LEFT
        if len(data) != size or now != known:
            return moves.LEFT | moves.READ
        outcome = moves.READ
        if fd >= 0:
            began_s = time.perf_counter()
            try:
                if self._summing[fd] is None:
                    is_kept = os.pwrite(self._fds[fd], data, offset) == size
                else:
                    is_kept = self._keep_on_disk(move, data)
                outcome |= moves.KEPT if is_kept else 0
            except OSError as error:
                self._words.failed[number] = min(error.errno or errno.EIO, 255)
            self._keeping_s += time.perf_counter() - began_s
        if target and self._push(number, target, data):
            outcome |= moves.STAGED
        return outcome

    def _keep_on_disk(self, move: Move, data: bytes) -> bool:
        summing, view = self._summing[move.fd], memoryview(data)
        assert summing is not None
        write_file(self._fds[move.fd], os.fsdecode(move.name), sealed(move.head, view, summing), view)
        return True

    def _move_copy(self, number: int, move: Move) -> int:
        fd, size_bytes, summing = self._fds[move.fd], move.known.size, self._summing[move.fd]
        data: bytes | bytearray | memoryview | None
        try:
            if summing is None:
                data = pread_all(fd, move.offset, size_bytes)
            else:
                data = read_copy(fd, os.fsdecode(move.name), move.head, size_bytes, summing)
        except (OSError, MemoryError):
            return moves.LEFT
        if data is None or len(data) != size_bytes:
            return moves.LEFT
        staged = move.target and self._push(number, move.target, data)
        return moves.COPIED | (moves.STAGED if staged else 0)

    def _push(self, number: int, target: int, data: bytes | bytearray | memoryview) -> bool:
        size = len(data)
        try:
            if size <= _PIECE_BYTES:
                os.writev(self._pages, (stored_head(target, 0, size), data))
            else:
                self._push_pieces(target, data)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
            self._channel.send(moves.numbered(moves.UNKNOWN, number))
            if self._channel.recv(1) != moves.LOOKED_UP:
                return False
            try:
                self._push_pieces(target, data)
            except OSError:
                return False
        return True

    def _push_pieces(self, target: int, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(data), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            os.writev(self._pages, (stored_head(target, start, len(piece)), piece))


def _summing(secret: bytes) -> Summing | None:
    return partial(blake3, key=secret) if secret else None


def main() -> int:
    """Move until the server is gone."""
    end_with_parent(signal.SIGKILL, os.getppid())  # it hears by its channel of a server that died before
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # the server's affair
        signal.signal(number, signal.SIG_IGN)
    reuse_memory()
    be_killed_sooner(OF_MOVER)
    with suppress(ConnectionError):  # the server is gone
        Mover(socket.socket(fileno=int(sys.argv[sys.argv.index("--channel-fd") + 1]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
