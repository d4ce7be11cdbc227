"""A source that fails, hangs, is slow or changes on command, around a real one.

For tests of what stands above a source (engine, demand path). Thread-safe like any source: each fault is armed from the
test's thread and strikes in the worker's.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from mlfs.places.posix import FileVersion, PosixFile, PosixSource, WholeFile


class FaultySource:
    """See `mlfs.places.posix.PosixSource`; every call to the file system below passes `_strike` first.

    Args:
        below: the source that answers when no fault strikes.
        hang_limit_s: a hang that nobody releases ends after this with EIO, so that a test cannot hang.
    """

    def __init__(self, below: PosixSource, hang_limit_s: float = 20.0) -> None:
        self._below = below
        self._hang_limit_s = hang_limit_s
        self._lock = threading.Lock()
        self._skip = 0  # calls that still pass before the failures begin
        self._fail = 0  # calls that then fail
        self._errno = errno.EIO
        self._gate = threading.Event()
        self._gate.set()
        self._hanging_entries: frozenset[int] | None = None
        self.delay_s = 0.0
        self.before_read: Callable[[int], None] | None = None  # changes the tree below, say; gets the entry
        self.hanging = 0  # calls that hang now

    # -- arming

    def fail(self, count: int, after: int = 0, number: int = errno.EIO) -> None:
        """Let `after` calls pass, then fail `count` of them with errno `number`."""
        with self._lock:
            self._skip, self._fail, self._errno = after, count, number

    def hang(self, entries: set[int] | None = None) -> None:
        """From now on calls (of these entries, or all) wait for `release`."""
        self._hanging_entries = None if entries is None else frozenset(entries)
        self._gate.clear()

    def release(self) -> None:
        """Let everything that hangs go on."""
        self._gate.set()

    def _strike(self, entry: int) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        if not self._gate.is_set() and (self._hanging_entries is None or entry in self._hanging_entries):
            self._wait()
        with self._lock:
            if self._skip:
                self._skip -= 1
            elif self._fail:
                self._fail -= 1
                raise OSError(self._errno, os.strerror(self._errno))

    def _wait(self) -> None:
        with self._lock:
            self.hanging += 1
        try:
            if not self._gate.wait(self._hang_limit_s):
                raise OSError(errno.EIO, "the hang was never released")
        finally:
            with self._lock:
                self.hanging -= 1

    # -- the source

    @property
    def open_count(self) -> int:
        return self._below.open_count

    @property
    def bytes_read(self) -> int:
        return self._below.bytes_read

    def read_whole(self, entry: int, close_later: bool = False) -> WholeFile:
        self._strike(entry)
        if self.before_read is not None:
            self.before_read(entry)
        return self._below.read_whole(entry, close_later)

    def close_read(self) -> None:
        self._below.close_read()

    def open(self, entry: int) -> PosixFile:
        self._strike(entry)
        return FaultyFile(self, entry, self._below.open(entry))

    def stat(self, entry: int) -> os.stat_result:
        self._strike(entry)
        return self._below.stat(entry)

    def statvfs(self) -> os.statvfs_result:
        self._strike(0)
        return self._below.statvfs()

    def close(self) -> None:
        self.release()
        self._below.close()


class FaultyFile:
    """An open file whose reads pass the faults of its source."""

    def __init__(self, source: FaultySource, entry: int, below: PosixFile) -> None:
        self._source = source
        self._entry = entry
        self._below = below

    @property
    def fd(self) -> int:
        return self._below.fd

    @property
    def version(self) -> FileVersion:
        return self._below.version

    @property
    def ctime_ns(self) -> int:
        return self._below.ctime_ns

    @property
    def changed(self) -> bool:
        return self._below.changed

    @property
    def unsized(self) -> bool:
        return self._below.unsized

    def read(self, offset: int, size: int) -> bytes:
        self._source._strike(self._entry)
        if self._source.before_read is not None:
            self._source.before_read(self._entry)
        return self._below.read(offset, size)

    def close(self) -> None:
        self._below.close()
