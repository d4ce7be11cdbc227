"""A machine's own words: files below /proc, /sys and /etc, programs, limits, free space.

In: the running system. Out: texts and numbers for mlfs.doctor.checks, which decides what they mean. A test gives the
checks another object of this shape.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
import shutil
import time

from mlfs.limits import read_text
from mlfs.memory import cgroup_limit_bytes, memory_limit_bytes

_STA_UNSYNC = 0x40
_TIMEX_BYTES = 208  # sizeof(struct timex)
_TIMEX_STATUS = 40  # offset of its field status, an int


class Machine:
    """The files, programs and limits of this machine. A thing that it does not have is None, empty or False."""

    is_root = property(lambda _self: os.geteuid() == 0)

    def read(self, path: str) -> str | None:
        """The content of a file."""
        return read_text(path)

    def is_openable(self, path: str) -> bool:
        """Whether this user can open a device to read and write."""
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    def exists(self, path: str) -> bool:
        """Whether something lies there."""
        return os.path.exists(path)

    def program(self, name: str) -> str | None:
        """The path of a program."""
        return shutil.which(name)

    def has_module(self, name: str) -> bool:
        """Whether a Python module can be imported."""
        return importlib.util.find_spec(name) is not None

    def kernel(self) -> str:
        """The kernel's release, as `uname -r`."""
        return os.uname().release

    def open_files(self) -> tuple[int, int]:
        """How many files a process of this user may have open: now, and at most. -1 is no limit."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def address_space_bytes(self) -> int:
        """How much memory a process of this user may map; -1 is no limit."""
        return resource.getrlimit(resource.RLIMIT_AS)[0]

    def memory(self) -> tuple[int, int | None]:
        """Memory that may be used, in bytes, and the limit of the cgroup if it has one."""
        return memory_limit_bytes(), cgroup_limit_bytes(self.read("/proc/self/cgroup") or "")

    def free_bytes(self, directory: str) -> int | None:
        """Bytes that this user can still write to a directory's file system."""
        try:
            room = os.statvfs(directory)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def is_writable(self, directory: str) -> bool:
        """Whether this user can make files in a directory."""
        return os.access(directory, os.W_OK | os.X_OK)

    def clock_is_set(self) -> bool | None:
        """Whether something keeps the clock right (NTP); None where the kernel does not say."""
        timex = ctypes.create_string_buffer(_TIMEX_BYTES)
        try:
            known = ctypes.CDLL(None).adjtimex(timex)
        except (OSError, AttributeError):
            return None
        status = int.from_bytes(timex.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
        return None if known < 0 else not status & _STA_UNSYNC

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()
