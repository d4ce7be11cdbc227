"""The words between a server and a mover: files to be moved, a batch at a time, and what became of each.

In: what is known of files, where their bytes go. Out: messages, and words in shared memory. Both ends use it
(`mlfs.engine.movers`, `mountd.mover`), and a mover is a small process: so this imports next to nothing.

The words are a byte each, and each is written by one side only: the mover says that it has begun a file and what became
of it, the server that somebody waits for it. Either side writes its word before it looks at the other's. A file
may be fetched twice, or only when the batch is over, if both write at once: that costs time, never a read.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from mlfs.places.known_file import KnownFile

MOST_FILES: Final = 128
LONGEST_PATH_BYTES: Final = 1024
# A socket takes messages of up to 208 KiB where nobody has set it otherwise.
LONGEST_BYTES: Final = 160 << 10

# -- the kinds of messages: their first byte
#
# From the server; a message may have descriptors with it.

WORDS: Final = b"w"  # with the words' memory, where pages are pushed to, and what the places need that keep copies:
# for each of their descriptors the secret of the copies on that disk, or zeros for one of memory
ROOT: Final = b"r"  # with the source's root
MOVE: Final = b"m"
LOOKED_UP: Final = b"l"  # the answer to UNKNOWN

# From the mover. The first three are followed by the number of a file in its batch.

UNKNOWN: Final = b"u"  # the kernel does not know the file: it has to be looked up before its pages are taken
DONE: Final = b"d"  # somebody waits for it
OVER: Final = b"o"  # the batch is over; then seconds that it computed or waited for a processor, and that it gave
# copies to the RAM class
_NUMBER: Final = Struct("=cB")
_OVER: Final = Struct("=cdd")
# target, size, mtime_ns, ctime_ns, mode, uid, gid, is_copied, fd, offset, lengths of path, name and head
_FILE: Final = Struct("=QqqqIII?hqHHH")
SECRET_BYTES: Final = 32


# The outcome for a file: these, added up; 0 as long as it is not over. LEFT: to the server, as the file is not as it
# was known, or something has failed. READ: the source has given all of it. COPIED: a copy has.
LEFT, READ, STAGED, KEPT, COPIED = 1, 2, 4, 8, 16


class Move(NamedTuple):
    """A file to be moved.

    Attributes:
        target: the number under which its pages are pushed; 0: they are not.
        is_copied: whether the bytes come from a copy of this node, and not from the source.
        fd: which descriptor of the places that keep copies; -1: none. offset: of a copy in memory.
        name, head: of a copy on disk, its file and what stands before the data; empty for one in memory.
    """

    path: bytes
    known: KnownFile
    target: int
    is_copied: bool = False
    fd: int = -1
    offset: int = 0
    name: bytes = b""
    head: bytes = b""


def most_files(longest_path_bytes: int) -> int:
    """How many files go into a message. Each has its path, a head, which is 80 bytes longer where the path is long, and
    130 bytes at most."""
    return min(MOST_FILES, LONGEST_BYTES // (2 * longest_path_bytes + 210))


def packed(moves: Sequence[Move]) -> bytes:
    """The message of a batch: `most_files` at most."""
    ends = [end for move in moves for end in (move.path, move.name, move.head)]
    lengths = [*map(len, ends)]
    files = [
        _FILE.pack(move.target, *move.known, *move[3:6], *lengths[3 * number : 3 * number + 3])
        for number, move in enumerate(moves)
    ]
    return b"".join((MOVE, bytes((len(moves),)), *files, *ends))


def unpacked(message: bytes) -> Iterator[Move]:
    """The batch of a message, one at a time: each is used while it is in the processor's caches."""
    path_at = 2 + message[1] * _FILE.size
    for at in range(2, path_at, _FILE.size):
        target, *known, is_copied, fd, offset, path_bytes, name_bytes, head_bytes = _FILE.unpack_from(message, at)
        name_at, head_at = path_at + path_bytes, path_at + path_bytes + name_bytes
        path, name, head = message[path_at:name_at], message[name_at:head_at], message[head_at : head_at + head_bytes]
        yield Move(path, KnownFile(*known), target, is_copied, fd, offset, name, head)
        path_at = head_at + head_bytes


def introduction(secrets: Sequence[bytes]) -> bytes:
    """The first message, which goes with descriptors. Args: secrets: by descriptor of the places, b"" for memory."""
    return WORDS + b"".join(secret or bytes(SECRET_BYTES) for secret in secrets)


def secrets_of(message: bytes) -> list[bytes]:
    """The secrets of the first message."""
    found = [message[at : at + SECRET_BYTES] for at in range(1, len(message), SECRET_BYTES)]
    return [secret if any(secret) else b"" for secret in found]


def numbered(kind: bytes, number: int) -> bytes:
    """A message about one file of a batch."""
    return _NUMBER.pack(kind, number)


def over(busy_s: float, keeping_s: float) -> bytes:
    """The message that a batch is over."""
    return _OVER.pack(OVER, busy_s, keeping_s)


def seconds_of(message: bytes) -> tuple[float, float]:
    """The seconds in the message that a batch is over."""
    return _OVER.unpack(message)[1:]


class Words:
    """A byte for each file of a batch and each thing that is said of it.

    Attributes:
        begun, outcome: written by the mover. failed: as well, the errno of a copy that could not be written.
        waited: written by the server.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd if fd >= 0 else os.memfd_create("mlfs-mover", os.MFD_CLOEXEC)
        if fd < 0:
            os.ftruncate(self.fd, 4 * MOST_FILES)
        memory = memoryview(mmap.mmap(self.fd, 4 * MOST_FILES))
        self.begun, self.outcome, self.waited, self.failed = (
            memory[number * MOST_FILES : (number + 1) * MOST_FILES] for number in range(4)
        )
        self._all = memory

    def close_fd(self) -> None:
        """The other side has the memory."""
        os.close(self.fd)

    def clear(self) -> None:
        """Before a batch: nothing was said yet."""
        self._all[:] = bytes(len(self._all))


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; b"" at the end."""
    message, fds, _, _ = socket.recv_fds(channel, LONGEST_BYTES, 32)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds
