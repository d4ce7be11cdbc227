"""The root of the source: its descriptor, which is opened again by its path when the file system below has died.

In: failures of calls on the source, from worker threads. Out: whether the file system is there again, so that a call
may be tried once more; what became of it, for `mlfs status`. Made by `mlfs.places.posix`.

A network file system whose server or client restarts, or one that somebody unmounts by force, leaves a descriptor that
answers nothing any more (ENOTCONN, ESTALE, EIO) or hangs. When the file system is mounted again at its path, reads go
on by that. It is taken for the same source only if most of some files that are looked for are there as the manifest
says: not an empty mount point, and not another data set. Whatever it is, each file is compared with the manifest when
it is read, so nobody gets other bytes than its attributes say.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from mlfs.places.source_statistics import RootState, RootStatistics
from mlfs.tree.manifest import Manifest, clamp_ns
from mlfs.tree.openat import open_beneath

# The errors of calls on a file system that is gone. Each can also be the failure of one file.
GONE: Final = frozenset(
    {errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.EIO, errno.ENODEV, errno.EHOSTDOWN, errno.ESHUTDOWN}
)
# How long a worker waits for another one that looks: no longer than a reader is to wait for an error.
_PATIENCE_S: Final = 1.0
# Files that are looked for: enough that another data set is not taken for this one, few enough for a slow server.
_PROBES: Final = 64
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SourceRoot:
    """Holds the descriptor of the source's root, and opens it again.

    Thread-safe; `look` and `is_back` may take as long as the file system does.

    Args:
        root_fd: the source's root; duplicated, so the caller keeps its own.
        path: where the source can be mounted again; None where the mount covers that path.

    Attributes:
        fd: stays the same number, whichever file system it leads to.
        number: of the file system that it leads to, one more with each that was opened.
    """

    def __init__(
        self, root_fd: int, manifest: Manifest, path: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fd = os.dup(root_fd)
        self.number = 0
        self._manifest = manifest
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._device = os.fstat(root_fd).st_dev
        self._error, self._other = "", False
        self._gone_at_s = self._opened_at_s = 0.0

    def statistics(self) -> RootStatistics:
        now_s, error = self._clock(), self._error
        state = RootState.THERE if not error else RootState.OTHER if self._other else RootState.GONE
        since_s = now_s - self._gone_at_s if error else 0.0
        opened_s = now_s - self._opened_at_s if self.number else 0.0
        return RootStatistics(state, error, since_s, self.number, opened_s, self._path is None)

    def is_back(self, error: OSError, number: int) -> bool:
        """Whether a call that has failed may succeed now. `number`: the file system that it was made on."""
        if error.errno not in GONE:
            return False
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return self.number != number
        try:
            if self.number == number:
                self._look()
            return self.number != number
        finally:
            self._lock.release()

    def look(self) -> None:
        """While this file system is gone or hangs: whether it answers again, or another one is at its path now."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._error:
                self._look()
            elif self._path is not None and os.stat(self._path).st_dev != self._device:
                self._open_again()
        except OSError:
            return  # nothing is there yet
        finally:
            self._lock.release()

    def _look(self) -> None:
        """Whether the file system answers, and if it does not, whether it can be opened again."""
        dead = self._why_dead(self.fd)
        if not dead:
            self._error = ""  # one file has failed, or the file system came back by itself
            return
        if not self._error:
            self._gone_at_s = self._clock()
        instead = self._open_again()
        if instead is None:
            self._error = ""
        else:
            self._other, self._error = bool(instead), instead or dead

    def _why_dead(self, fd: int) -> str:
        """The reason why a root's file system is dead; empty if it answers."""
        try:
            os.fstatvfs(fd)
            with os.scandir(fd) as entries:
                next(entries, None)
        except OSError as error:
            return os.strerror(error.errno) if error.errno in GONE else ""
        return ""

    def _open_again(self) -> str | None:
        """Go on by what is at the path, if it is the same source. Returns: None if so, else what is there instead."""
        if self._path is None:
            return ""
        try:
            fd = os.open(self._path, _DIRECTORY)
        except OSError:
            return ""
        try:
            if self._why_dead(fd):
                return ""
            found, looked_for = self._found(fd)
            if 2 * found <= looked_for:
                return f"{found} of {looked_for} files that were looked for are there as they were"
            self._device = os.fstat(fd).st_dev
            os.dup2(fd, self.fd, inheritable=False)
            self._opened_at_s = self._clock()
            self.number += 1
            return None
        finally:
            os.close(fd)

    def _found(self, fd: int) -> tuple[int, int]:
        """How many of some files are there as the manifest says, and how many were looked for."""
        manifest, files = self._manifest, self._manifest.files
        wanted = files[np.linspace(0, len(files) - 1, min(_PROBES, len(files))).astype(np.int64)].tolist()
        found = 0
        for entry in wanted:
            with suppress(OSError):
                at = open_beneath(fd, manifest.path(entry), os.O_PATH)
                try:
                    now = os.fstat(at)
                finally:
                    os.close(at)
                known = manifest.size_view[entry], manifest.mtime_ns_view[entry]
                found += stat.S_ISREG(now.st_mode) and (now.st_size, clamp_ns(now.st_mtime_ns)) == known
        return found, len(wanted)

    def close(self) -> None:
        """Close the descriptor; every later call on it fails."""
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
