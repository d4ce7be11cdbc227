"""The attributes of an open file that tell its content from another one: size, times of change, mode, inode number.

In: a descriptor of a file of the source. Out: `FileAttributes`. Used by `mlfs.places.posix` before and after each read.

They are asked for with statx(2), which can leave the access time out. Each read makes that one stale, so fstat, which
cannot, would cost a round trip to a network file system's server before and after each read.
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


class FileAttributes(NamedTuple):
    """Two looks at a file that give the same attributes have met the same content (see mlfs.tree.stable_stat)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    ino: int


def attributes_now(fd: int) -> FileAttributes:
    """The attributes of an open file now. Raises: OSError."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(_libc, "statx") or _libc.statx(fd, b"", _AT_EMPTY_PATH, _ALL_BUT_ATIME, buffer) != 0:
        status = os.fstat(fd)  # no statx, or it failed: then this says why
        return FileAttributes(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_ino)
    mode, ino, size, ctime_s, ctime_ns, mtime_s, mtime_ns = _STATX.unpack_from(buffer)
    return FileAttributes(size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns, mode, ino)
