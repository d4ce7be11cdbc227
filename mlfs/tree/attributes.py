"""The attributes of an open file that tell its content from another one, and who may read it.

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
_AT_STATX_FORCE_SYNC = 0x2000
# type, mode, nlink, uid, gid, mtime, ctime, ino, size
_ALL_BUT_ATIME = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80 | 0x100 | 0x200
_Memory = ctypes.c_char * 256  # struct statx
_STATX = struct.Struct("16xIIIH2xQQ48xqI4xqI")
# nlink, uid, gid, mode, ino, size, ctime, mtime: linux/stat.h, on all architectures

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # None in a C library that is older than it


class Rights(NamedTuple):
    """The rights on a file or a directory: its mode, with the file type, its owner, and its ACL's names."""

    mode: int
    uid: int
    gid: int
    nlink: int


class FileAttributes(NamedTuple):
    """Two looks at a file that give the same attributes have met the same content (see mlfs.tree.stable_stat)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    ino: int
    uid: int
    gid: int
    nlink: int

    @property
    def rights(self) -> Rights:
        """The attributes that say who may read the entry."""
        return Rights(self.mode, self.uid, self.gid, self.nlink)


def attributes_of(status: os.stat_result) -> FileAttributes:
    """The attributes as stat(2) says them."""
    return FileAttributes(
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_ino,
        status.st_uid, status.st_gid, status.st_nlink,
    )  # fmt: skip


def attributes_now(fd: int, ask: bool = False) -> FileAttributes:
    """The attributes of an open file now. Raises: OSError.

    Args:
        ask: a client of a network file system that believes to know them is told to ask its server all the same.
    """
    flags = _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC if ask else _AT_EMPTY_PATH
    buffer = _Memory()
    if _statx is None or _statx(fd, b"", flags, _ALL_BUT_ATIME, buffer) != 0:
        return attributes_of(os.fstat(fd))  # where statx failed, this says why
    nlink, uid, gid, mode, ino, size, ctime_s, ctime_ns, mtime_s, mtime_ns = _STATX.unpack_from(buffer)
    return FileAttributes(
        size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns, mode, ino, uid, gid, nlink
    )  # fmt: skip


def memory_for_looks() -> ctypes.Array[ctypes.c_char]:
    """Memory for the looks of one thread (`known_now`)."""
    return _Memory()


def known_now(fd: int, memory: ctypes.Array[ctypes.c_char]) -> tuple[int, int, int, int, int, int]:
    """Size, mtime_ns, ctime_ns, mode, uid and gid of an open file now. Raises: OSError."""
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _ALL_BUT_ATIME, memory) != 0:
        now = attributes_of(os.fstat(fd))
        return now.size, now.mtime_ns, now.ctime_ns, now.mode, now.uid, now.gid
    _, uid, gid, mode, _, size, ctime_s, ctime_ns, mtime_s, mtime_ns = _STATX.unpack_from(memory)
    return size, mtime_s * 10**9 + mtime_ns, ctime_s * 10**9 + ctime_ns, mode, uid, gid
