"""Reads files past the page cache (O_DIRECT): copies whose bytes go into the page cache of a mount anyway.

In: a file's name in a directory, and how many bytes it has at most. Out: its bytes. Called by `mlfs.places.ssd`.

Such a read costs a fifth of the processor's time: the kernel takes no pages and copies nothing. It asks the disk for
all bytes at once, and the data set does not lie in memory twice. A file that lies in the page cache is read from there.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Final

import numpy as np

from mlfs.places.known_copy import READ

# Memory, offset and length are whole pages: no disk asks for more.
_ALIGNED_BYTES: Final = 4096
_CACHESTAT: Final = 451  # its number on all architectures; since Linux 6.5
_ALL: Final = (ctypes.c_uint64 * 2)(0, 0)  # struct cachestat_range: from 0 to the end
_libc = ctypes.CDLL(None, use_errno=True)


def read_direct(dir_fd: int, name: str, most_bytes: int) -> memoryview:
    """All of a file; the first bytes of one that has more than `most_bytes`. Raises: OSError, EINVAL where the file
    system does not have such reads."""
    fd = os.open(name, READ, dir_fd=dir_fd)
    try:
        if not _is_cached(fd, most_bytes):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        room_bytes = -(-most_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        room = np.empty(room_bytes + _ALIGNED_BYTES, np.uint8)
        begin = -room.__array_interface__["data"][0] % _ALIGNED_BYTES
        view = room.data[begin : begin + room_bytes]
        return view[: os.readv(fd, [view])]
    finally:
        os.close(fd)


def _is_cached(fd: int, size_bytes: int) -> bool:
    """Whether most of a file lies in the page cache; False where the kernel does not tell."""
    found = (ctypes.c_uint64 * 5)()  # struct cachestat, which begins with the pages that are there
    if _libc.syscall(_CACHESTAT, fd, _ALL, found, 0):
        return False
    return found[0] * _ALIGNED_BYTES > size_bytes // 2
