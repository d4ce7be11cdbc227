"""Opens a path of any length below a directory descriptor, and never follows a symbolic link.

In: the descriptor of the source's root, which was opened before the mount covered it, a relative path, open flags. Out:
a new descriptor. Used by `mlfs.tree.scan`, `mlfs.tree.index` and `mlfs.places.posix`.

No path of a manifest leads through a symbolic link. So if one is met, somebody has swapped it in since the scan, and
following it could hand out a file from outside the source with the daemon's rights. openat2(2) refuses that in one
call; where it is missing (Linux before 5.6, some sandboxes), the path is walked one component at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

# The kernel takes at most PATH_MAX (4096) bytes with the closing NUL: longer paths are walked in pieces.
PIECE_BYTES: Final = 4000

_SYS_OPENAT2 = 437  # the same on every architecture
_RESOLVE_NO_SYMLINKS = 0x04
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    """struct open_how of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_HOW_BYTES = ctypes.sizeof(_OpenHow)
# One structure for each set of flags, made once, and its address: the kernel only reads it, so threads can share it.
_hows: dict[int, tuple[_OpenHow, int]] = {}


def openat2(root_fd: int, path: bytes, flags: int) -> int:
    if flags not in _hows:
        how = _OpenHow(flags, 0, _RESOLVE_NO_SYMLINKS)
        _hows.setdefault(flags, (how, ctypes.addressof(how)))
    address = _hows[flags][1]
    while True:
        fd: int = _syscall(_SYS_OPENAT2, root_fd, path, address, _HOW_BYTES)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def walk(root_fd: int, path: bytes, flags: int) -> int:
    """As `openat2`, with one openat for each component of the path."""
    *above, last = path.split(b"/")
    at = root_fd
    try:
        for part in above:
            deeper = os.open(part, _DIRECTORY, dir_fd=at)
            if at != root_fd:
                os.close(at)
            at = deeper
        return os.open(last, flags, dir_fd=at)
    finally:
        if at != root_fd:
            os.close(at)


def _has_openat2() -> bool:
    """Whether openat2 can be used: the kernel has it, and no sandbox forbids it."""
    try:
        os.close(openat2(-100, b".", _DIRECTORY))  # -100: AT_FDCWD
    except OSError as error:
        # Any other error, such as EACCES on a working directory that may not be entered, comes from a call that exists.
        return error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)
    return True


open_piece = openat2 if _has_openat2() else walk


def open_beneath(root_fd: int, path: bytes, flags: int) -> int:
    """Open `path` relative to `root_fd`; b"" is the directory itself.

    Args:
        root_fd: a directory's descriptor (O_PATH is enough).
        path: no leading slash, no "..", no NUL, of any length.
        flags: as for os.open; O_NOFOLLOW and O_CLOEXEC are added.

    Returns: a descriptor that the caller closes.
    Raises: OSError; ELOOP when a component is a symbolic link (the last may be one with O_PATH).
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if len(path) <= PIECE_BYTES:
        return open_piece(root_fd, path or b".", flags)
    at = root_fd
    try:
        while len(path) > PIECE_BYTES:
            cut = path.rindex(b"/", 0, PIECE_BYTES + 1)
            deeper = open_piece(at, path[:cut], _DIRECTORY)
            if at != root_fd:
                os.close(at)
            at, path = deeper, path[cut + 1 :]
        return open_piece(at, path, flags)
    finally:
        if at != root_fd:
            os.close(at)
