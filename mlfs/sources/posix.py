"""The source as a directory tree: a local or parallel file system, reached through a directory descriptor.

In: the descriptor of the source's root, opened before the mount covered its path, and the manifest for the paths.
Out: what `mlfs.sources.contract` promises. Made by the daemon at start, called from the engine's worker threads.

That a content is whole is known from fstat before and after the read: size, mtime and ctime must be the same, and not
so fresh that a second change could hide behind them (`mlfs.sources.settle`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from typing import Final, NoReturn

from mlfs.manifest import Manifest, clamp_ns
from mlfs.sources.content import content_now, content_of
from mlfs.sources.contract import Fetched, Version
from mlfs.sources.openat import open_beneath
from mlfs.sources.settle import settled_status

_RETRIES: Final = 3
# O_NONBLOCK so that a FIFO that has taken a file's place cannot hang the open; it is taken away again before the read.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# One read(2) gives at most this much, and one allocation up to here is left to the kernel to fill in one go.
_ONE_READ_BYTES: Final = 1 << 30


def _raise(number: int, why: str) -> NoReturn:
    raise OSError(number, f"{os.strerror(number)}: {why}")


def _pread_all(fd: int, offset: int, size: int) -> bytes | bytearray:
    """`size` bytes from `offset`, or what there is of them."""
    if size == 0:
        return b""  # an offset far beyond the end is no error
    if size <= _ONE_READ_BYTES:
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
    else:
        data = b""
    # Rare: a signal, a file that shrinks, more than one read gives.
    whole = bytearray(size)
    view = memoryview(whole)
    done = len(data)
    whole[:done] = data
    while done < size:
        count = os.preadv(fd, [view[done : done + _ONE_READ_BYTES]], offset + done)
        if not count:
            break
        done += count
    view.release()
    del whole[done:]
    return whole


class PosixFile:
    """See `mlfs.sources.contract.OpenFile`."""

    __slots__ = ("_source", "changed", "ctime_ns", "fd", "version")

    def __init__(self, source: PosixSource, fd: int, status: os.stat_result, changed: bool) -> None:
        self._source = source
        self.fd = fd
        self.version = Version(status.st_size, status.st_mtime_ns, status.st_ino)
        self.ctime_ns = status.st_ctime_ns
        self.changed = changed

    def read(self, offset: int, size: int) -> bytes:
        """See the contract. ctime is not compared: it moves when the name is replaced, and the content stays."""
        if self.fd < 0:
            _raise(errno.EBADF, "the source file is closed")
        wanted = max(0, min(size, self.version.size - offset))
        data = _pread_all(self.fd, offset, wanted)
        self._source.count(0, len(data))
        if content_now(self.fd)[:2] != self.version[:2]:
            _raise(errno.ESTALE, "the source file was changed while it was open")
        if len(data) != wanted:
            _raise(errno.EIO, "the source gave fewer bytes than the file has")
        return data if isinstance(data, bytes) else bytes(data)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close  # whoever asked may have given up before the source answered


class PosixSource:
    """See `mlfs.sources.contract.Source`.

    Args:
        root_fd: the source's root; duplicated, so the caller keeps its own.
        manifest: whose entries the calls name.
    """

    def __init__(self, root_fd: int, manifest: Manifest) -> None:
        self._root_fd = os.dup(root_fd)
        self._manifest = manifest
        self._lock = threading.Lock()
        self.open_count = 0
        self.bytes_read = 0

    def count(self, opens: int, bytes_read: int) -> None:
        """Add to the counters."""
        with self._lock:
            self.open_count += opens
            self.bytes_read += bytes_read

    def _open(self, entry: int) -> tuple[int, os.stat_result]:
        path = self._manifest.path(entry)
        try:
            fd = open_beneath(self._root_fd, path, _READ)
        except BlockingIOError:
            # Somebody holds a write lease on it: wait until it is given back, as any reader does.
            fd = open_beneath(self._root_fd, path, _READ & ~os.O_NONBLOCK)
        try:
            status = settled_status(fd)
            if not stat.S_ISREG(status.st_mode):
                _raise(errno.ESTALE, "no longer a regular file in the source")
            # File systems that keep files on tape answer EAGAIN to a read that may not block.
            fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd, status

    def _changed(self, entry: int, status: os.stat_result) -> bool:
        manifest = self._manifest
        return (
            status.st_size != manifest.size_view[entry] or clamp_ns(status.st_mtime_ns) != manifest.mtime_ns_view[entry]
        )

    def read_whole(self, entry: int) -> Fetched:
        fd, before = self._open(entry)
        bytes_read = 0
        try:
            for _ in range(1 + _RETRIES):
                size = before.st_size
                data = _pread_all(fd, 0, size)
                bytes_read += len(data)
                if content_of(before) == content_now(fd):
                    if len(data) != size:
                        _raise(errno.EIO, "the source gave fewer bytes than the file has")
                    return Fetched(data, size, before.st_mtime_ns, before.st_ctime_ns, self._changed(entry, before))
                before = settled_status(fd)
        except MemoryError:
            _raise(errno.ENOMEM, "the source file is too big to be read at once")
        finally:
            os.close(fd)
            self.count(1, bytes_read)
        _raise(errno.ESTALE, "the source file kept changing while it was read")

    def open(self, entry: int) -> PosixFile:
        fd, status = self._open(entry)
        self.count(1, 0)
        return PosixFile(self, fd, status, self._changed(entry, status))

    def stat(self, entry: int) -> os.stat_result:
        fd = open_beneath(self._root_fd, self._manifest.path(entry), os.O_PATH)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def statvfs(self) -> os.statvfs_result:
        return os.fstatvfs(self._root_fd)

    def close(self) -> None:
        fd, self._root_fd = self._root_fd, -1
        if fd >= 0:
            os.close(fd)
