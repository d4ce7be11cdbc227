"""Writes a copy of a sample to disk, or reads one, where all that stands before the data is known but the sum.

In: the directory of the copies, a file's name in it, the head that `mlfs.places.record` makes, the secret. Out: a file,
or the bytes of one that has exactly this head, and the sum of the secret's owner. Called by `mlfs.places.ssd`, and by
movers (`mountd.mover`): so this imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

# Where the sum stands in a head, and that it is over all that follows it: see `mlfs.places.record`.
SUM_AT: Final = 16
BODY_AT: Final = 32
READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Sum(Protocol):
    """A keyed sum, as `blake3.blake3` makes them."""

    def update(self, data: memoryview, /) -> object:
        """More bytes."""

    def digest(self, length: int) -> bytes:
        """The sum of all of them."""


Summing = Callable[[bytes], Sum]
"""Makes the sum of some bytes, keyed with the secret."""


def sealed(head: bytes, data: memoryview, summing: Summing) -> bytes:
    """The head with its sum, over itself and the data."""
    body = summing(head[BODY_AT:])
    body.update(data)
    return b"".join((head[:SUM_AT], body.digest(BODY_AT - SUM_AT), head[BODY_AT:]))


def write_file(dir_fd: int, name: str, head: bytes, data: memoryview) -> None:
    """Write a file anew, and the directory that it lies in if there is none. Raises: OSError; then no file is left."""
    try:
        fd = os.open(name, _WRITE, 0o600, dir_fd=dir_fd)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(name), 0o700, dir_fd=dir_fd)
        fd = os.open(name, _WRITE, 0o600, dir_fd=dir_fd)
    try:
        parts = [memoryview(head), data.cast("B") if data.format != "B" else data]
        while parts:
            written = os.writev(fd, parts)
            while parts and written >= parts[0].nbytes:
                written -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][written:]
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)


def read_copy(dir_fd: int, name: str, head: bytes, size_bytes: int, summing: Summing) -> memoryview | None:
    """The data of a copy; None where it is not exactly the one that is known, or not all of it. Raises: OSError."""
    fd = os.open(name, READ, dir_fd=dir_fd)
    try:
        whole = memoryview(os.read(fd, len(head) + size_bytes + 1))
    finally:
        os.close(fd)
    data = whole[len(head) :]
    is_it = len(data) == size_bytes and whole[: len(head)] == sealed(head, data, summing)
    return data if is_it else None
