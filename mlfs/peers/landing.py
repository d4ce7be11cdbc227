"""The landing memory: where samples from other nodes land, shared by a node's server, which divides it, and its agent.

In: sizes. Out: pieces of the memory, each given back when nobody refers to its bytes any more. Thread-safe. The memory
is one memfd for each agent: what an agent that was taken for dead still writes lands in memory that nobody reads.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
import weakref
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

_PAGE_BYTES = 4096


class Landing:
    """One memory file, divided into pieces.

    Attributes:
        fd: the memory, for the agent. size_bytes: of all of it.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        self.fd = os.memfd_create("mlfs-landing", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size_bytes)
        self._map = mmap.mmap(self.fd, self.size_bytes)
        self._bytes: npt.NDArray[Any] = np.frombuffer(self._map, np.uint8)
        self._free: list[tuple[int, int]] = [(0, self.size_bytes)]  # offset and size, ascending, never side by side
        self._room = threading.Condition()

    def handed_over(self) -> None:
        """The agent has the descriptor: this side keeps the mapping alone."""
        os.close(self.fd)

    def reserve(self, size_bytes: int, wait_s: float = 0.0) -> int | None:
        """A piece of at least that size: its offset. None when there is none within the time."""
        wanted = max(1, -(-size_bytes // _PAGE_BYTES)) * _PAGE_BYTES
        if wanted > self.size_bytes:
            return None
        with self._room:
            offset = self._take(wanted)
            if offset is None and wait_s > 0:
                self._room.wait_for(lambda: self._has(wanted), wait_s)
                offset = self._take(wanted)
            return offset

    def _has(self, wanted: int) -> bool:
        return any(size >= wanted for _, size in self._free)

    def _take(self, wanted: int) -> int | None:
        for at, (offset, size) in enumerate(self._free):
            if size >= wanted:
                self._free[at : at + 1] = [(offset + wanted, size - wanted)] if size > wanted else []
                return offset
        return None

    def release(self, offset: int, size_bytes: int) -> None:
        """Give a piece back."""
        size = max(1, -(-size_bytes // _PAGE_BYTES)) * _PAGE_BYTES
        with self._room:
            at = bisect.bisect(self._free, (offset, 0))
            if at < len(self._free) and offset + size == self._free[at][0]:
                size += self._free.pop(at)[1]
            if at and sum(self._free[at - 1]) == offset:
                at -= 1
                offset, before = self._free.pop(at)
                size += before
            self._free.insert(at, (offset, size))
            self._room.notify_all()

    def lend(self, offset: int, size_bytes: int) -> memoryview:
        """The bytes of a piece, read-only. The piece is given back when nothing refers to them any more."""
        piece = self._bytes[offset : offset + size_bytes]
        piece.flags.writeable = False
        weakref.finalize(piece, partial(self.release, offset, size_bytes))
        return memoryview(piece)  # type: ignore[arg-type] # an array has the buffer protocol

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Fill a piece."""
        self._bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    @property
    def free_bytes(self) -> int:
        with self._room:
            return sum(size for _, size in self._free)
