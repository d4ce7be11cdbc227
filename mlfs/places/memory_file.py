"""An anonymous file in memory (a memfd) that holds samples: it grows at its end and has holes where they were dropped.

In: bytes, and the offset that was reserved for them. Out: the same bytes. Used by `mlfs.places.ram`, which knows what
lies where, and counts it.

Samples lie in whole pages, one behind the other. The offset of the next one only grows, and what is dropped is punched
out of the file as a hole. So there is no fragmentation to manage: the offsets reach to 2^63, and only what lies between
the holes takes memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable

PAGE_BYTES = 4096
_PADDING = memoryview(bytes(PAGE_BYTES))
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def in_pages(size_bytes: int) -> int:
    """Bytes of the whole pages that a sample takes: at least one page, as even an empty sample is in the index."""
    return (-(-size_bytes // PAGE_BYTES) or 1) * PAGE_BYTES


class MemoryFile:
    """One memfd. One thread at a time calls `reserve`, `begin_again` and `close`, any thread the rest. OSError says why
    a call failed.

    Args:
        fd: a file to be used in the same way; it belongs to this object.
        end: the offset that is reserved first.

    Invariant: no two reserved ranges overlap, and all of them end at `_end` or before.
    """

    def __init__(self, fd: int = -1, end: int = 0) -> None:
        self._fd = fd if fd >= 0 else os.memfd_create("mlfs-ram", os.MFD_CLOEXEC)
        self._end = end

    @property
    def fd(self) -> int:
        """The memfd, for a process that shall read it too; it belongs to this file."""
        return self._fd

    @property
    def end(self) -> int:
        """The offset that is reserved next."""
        return self._end

    def begin_again(self) -> None:
        """Reserve from the beginning on. All that was reserved must have been dropped."""
        self._end = 0

    def reserve(self, footprint_bytes: int) -> int:
        """Reserve whole pages for a sample behind the last one (`in_pages`); returns its offset."""
        offset = self._end
        self._end += footprint_bytes
        return offset

    def write(self, data: memoryview, offset: int) -> None:
        """Write a sample to what is reserved for it."""
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], offset + written)

    def write_side_by_side(self, samples: Iterable[memoryview], offset: int) -> bool:
        """Write samples whose reserved pages follow each other, in one call. Returns whether all was written."""
        parts: list[memoryview] = []
        for data in samples:
            parts.append(data)
            parts.append(_PADDING[: in_pages(len(data)) - len(data)])
        try:
            return os.pwritev(self._fd, parts, offset) == sum(map(len, parts))
        except OSError:
            return False  # the caller writes one by one then, and so finds out which of them fails

    def read(self, size_bytes: int, offset: int) -> bytes:
        """Read a sample: zeros, once it was dropped."""
        data = os.pread(self._fd, size_bytes, offset)
        if len(data) == size_bytes:
            return data
        parts, got = [data], len(data)
        while got < size_bytes:  # one call reads at most 2 GiB
            part = os.pread(self._fd, size_bytes - got, offset + got)
            if not part:
                raise OSError(errno.EIO, "the RAM tier ends early")
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def drop(self, size_bytes: int, offset: int) -> None:
        """Give the memory of a sample's pages back."""
        if _libc.fallocate(self._fd, _PUNCH_HOLE_KEEP_SIZE, offset, in_pages(size_bytes)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def close(self) -> None:
        """Give all memory back. From then on each call fails; it may be closed twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
