"""Which content a descriptor has now: size and times of change, and no access time.

In: a descriptor of the source. Out: `Content`. Used by `mlfs.places.posix` before and after each read. By statx(2),
which can leave the access time out: each read makes that stale, so fstat would ask a network file system's server
(one more round trip before a file's second read, and one after each).
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

_AT_EMPTY_PATH = 0x1000
_ALL_BUT_ATIME = 0x01 | 0x02 | 0x40 | 0x80 | 0x100 | 0x200  # type, mode, mtime, ctime, ino, size
_STATX_BYTES = 256
_STATX = struct.Struct("28xH2xQQ48xqI4xqI")  # mode, ino, size, ctime, mtime: linux/stat.h, on all architectures

_libc = ctypes.CDLL(None, use_errno=True)


class Content(NamedTuple):
    """A file's content is the same while size and times are."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    ino: int


def content_now(fd: int) -> Content:
    """The content of an open file now. Raises: OSError."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(_libc, "statx") or _libc.statx(fd, b"", _AT_EMPTY_PATH, _ALL_BUT_ATIME, buffer) != 0:
        status = os.fstat(fd)  # no statx, or it failed: then this says why
        return Content(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_ino)
    mode, ino, size, ctime_s, ctime_ns, mtime_s, mtime_ns = _STATX.unpack_from(buffer)
    return Content(size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns, mode, ino)
