"""Which content a descriptor has now: size and times of change, and no access time.

In: a descriptor of the source. Out: `Content`. Used by `mlfs.sources.posix` after each read. By statx(2), which can
leave the access time out: the read itself has just made that stale, so fstat would ask a network file system's server
each time (one more round trip a file).
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

_AT_EMPTY_PATH = 0x1000
_MTIME_CTIME_SIZE = 0x40 | 0x80 | 0x200
_STATX_BYTES = 256
_SIZE = struct.Struct("40xQ")  # offsets of struct statx: linux/stat.h, the same on all architectures
_CTIME = struct.Struct("96xqI")
_MTIME = struct.Struct("112xqI")

_libc = ctypes.CDLL(None, use_errno=True)


class Content(NamedTuple):
    """A file's content is the same while these are."""

    size: int
    mtime_ns: int
    ctime_ns: int


def content_of(status: os.stat_result) -> Content:
    """The content that a stat found."""
    return Content(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def content_now(fd: int) -> Content:
    """The content of an open file now. Raises: OSError."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(_libc, "statx") or _libc.statx(fd, b"", _AT_EMPTY_PATH, _MTIME_CTIME_SIZE, buffer) != 0:
        return content_of(os.fstat(fd))  # no statx, or it failed: then this says why
    mtime_s, mtime_ns = _MTIME.unpack_from(buffer)
    ctime_s, ctime_ns = _CTIME.unpack_from(buffer)
    return Content(_SIZE.unpack_from(buffer)[0], mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns)
