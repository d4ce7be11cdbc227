"""The source as a directory tree: a local or parallel file system, reached through a directory descriptor.

In: the descriptor of the source's root, opened before the mount covered its path, and the manifest for the paths.
When the file system dies and is there again, calls go on by what is at its path (`mlfs.places.source_root`).
Out: what `mlfs.places.source` promises. Made by the daemon at start, called from the engine's worker threads.

The bytes of a read are of one content if the attributes (size, mtime, ctime) were the same before and after it, and if
they are old enough that no second change can hide behind them (`mlfs.tree.stable_stat`). Where the attributes after the
read are those of the manifest, the scan was the look before it, and no other one is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, TypeVar

from mlfs.places.source import FileVersion, WholeFile
from mlfs.places.source_root import SourceRoot
from mlfs.places.source_statistics import SourceStatistics
from mlfs.tree.attributes import FileAttributes, attributes_now
from mlfs.tree.manifest import Manifest, clamp_ns
from mlfs.tree.openat import open_beneath
from mlfs.tree.stable_stat import is_settled, settled_attributes

# How often a file is read again that changed meanwhile. A file that is written all the time would be read for ever.
_RETRIES: Final = 3
# O_NONBLOCK, so that a FIFO that has taken a file's place cannot hang the open. It is cleared again before the read.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# What a read fails with on something that is no file, or on a file that cannot be read without waiting.
_NO_FILE: Final = frozenset({errno.EAGAIN, errno.ESPIPE, errno.EISDIR, errno.EINVAL, errno.ENXIO})
# One read(2) gives at most 2 GiB less a page. Up to half of that a file is read by one call into one allocation.
_ONE_READ_BYTES: Final = 1 << 30
# A call that takes longer is told of: no source that is well takes so long for the first bytes of a file.
HANGS_S: Final = 2.0

T = TypeVar("T")


def _raise(number: int, why: str) -> NoReturn:
    raise OSError(number, f"{os.strerror(number)}: {why}")


def _pread_all(fd: int, offset: int, size: int) -> bytes | bytearray:
    """`size` bytes from `offset`, fewer only where the file ends."""
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


def _rights_and_links(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """When a file was last changed in any way, and what changes besides its bytes."""
    return status.st_ctime_ns, status.st_mode, status.st_uid, status.st_gid, status.st_nlink


class PosixFile:
    """See `mlfs.places.source.OpenFile`."""

    __slots__ = ("_before", "_entry", "_number", "_seen", "_source", "changed", "ctime_ns", "fd", "rights", "version")

    def __init__(
        self, source: PosixSource, entry: int, number: int, fd: int, content: FileAttributes, changed: bool
    ) -> None:
        self._source = source
        self._entry = entry
        self._number = number
        self._before: list[int] = []  # on file systems that have died: another thread may still be reading from them
        self.fd = fd
        self.version = FileVersion(content.size, content.mtime_ns, content.ino)
        self.ctime_ns = content.ctime_ns
        self.rights = content.rights
        self.changed = changed
        self._seen = _rights_and_links(os.fstat(fd))

    def read(self, offset: int, size: int) -> bytes:
        """See the contract."""
        if self.fd < 0:
            _raise(errno.EBADF, "the source file is closed")
        with self._source.at_work(self._entry):
            try:
                return self._read(offset, size)
            except OSError as error:
                if not self._is_open_again(error):
                    raise
            return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        wanted = max(0, min(size, self.version.size - offset))
        data = _pread_all(self.fd, offset, wanted)
        self._source.count(0, len(data))
        if attributes_now(self.fd)[:2] != self.version[:2] or self._was_written():
            _raise(errno.ESTALE, "the source file was changed while it was open")
        if len(data) != wanted:
            _raise(errno.EIO, "the source gave fewer bytes than the file has")
        return data if isinstance(data, bytes) else bytes(data)

    def _was_written(self) -> bool:
        """Whether ctime has moved since the last look for no other reason than that bytes were written.

        It also moves with rights, and when another file takes the name: then one of those has changed as well.
        """
        now, before = _rights_and_links(os.fstat(self.fd)), self._seen
        if now != before and now[1:] == before[1:]:
            return True
        self._seen = now
        return False

    def _is_open_again(self, error: OSError) -> bool:
        """Whether the file was opened again, with the same content, on a file system that took the place of its own."""
        opened = self._source.open_again(self._entry, error, self._number)
        if opened is None:
            return False
        fd, number, content = opened
        same = (content.size, content.mtime_ns, content.ctime_ns) == (*self.version[:2], self.ctime_ns)
        if not same or not self._source.swap(self, fd, number):
            os.close(fd)
            return False
        return True

    def take(self, fd: int, number: int) -> None:
        """Go on by this descriptor. Called by the source, which keeps `close` out."""
        self._before.append(self.fd)
        self.fd, self._number = fd, number
        self._seen = _rights_and_links(os.fstat(fd))

    def close(self) -> None:
        for fd in self._source.give_up(self):
            os.close(fd)

    def descriptors(self) -> list[int]:
        """All descriptors that the file has; it has none from now on. Called by the source."""
        fds = [self.fd, *self._before] if self.fd >= 0 else []
        self.fd, self._before = -1, []
        return fds

    __del__ = close  # the reader may have given up before the source answered, so that nobody got this object


class PosixSource:
    """See `mlfs.places.source.Source`.

    Args:
        root_fd: the source's root; duplicated, so the caller keeps its own.
        manifest: whose entries the calls name.
        path: where the source's file system can be found again; None where the mount covers that path.

    Attributes:
        root: the root of the source.
    """

    def __init__(
        self, root_fd: int, manifest: Manifest, path: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.root = SourceRoot(root_fd, manifest, path, clock)
        self._manifest = manifest
        self._clock = clock
        self._at_work: dict[int, tuple[int, float]] = {}  # by thread: the entry, and since when
        self._lock = threading.RLock()  # a file that nobody uses any more may be closed in the middle of a count
        self._read: deque[int] = deque()
        self.open_count = 0
        self.bytes_read = 0

    def count(self, opens: int, bytes_read: int) -> None:
        """Add to the counters."""
        with self._lock:
            self.open_count += opens
            self.bytes_read += bytes_read

    def statistics(self) -> SourceStatistics:
        """Frozen figures; waits for nothing."""
        now_s = self._clock()
        hanging = sorted(
            (since_s, entry) for entry, since_s in tuple(self._at_work.values()) if now_s - since_s > HANGS_S
        )
        if not hanging:
            return SourceStatistics(self.root.statistics())
        since_s, entry = hanging[0]
        return SourceStatistics(
            self.root.statistics(), len(hanging), now_s - since_s, os.fsdecode(self._manifest.path(entry))
        )

    def look(self) -> None:
        """Now and then: if the source is gone or hangs, look whether it is at its path again. May take long."""
        now = self.statistics()
        if now.root.error or now.hanging:
            self.root.look()

    @contextlib.contextmanager
    def at_work(self, entry: int) -> Iterator[None]:
        """Within it, this thread waits for the source to answer about a file."""
        thread = threading.get_ident()
        self._at_work[thread] = entry, self._clock()
        try:
            yield
        finally:
            del self._at_work[thread]

    def _on_root(self, call: Callable[[int], T]) -> T:
        """What the call returns for the root's descriptor. Raises: OSError, as the call does."""
        number = self.root.number
        try:
            return call(self.root.fd)
        except OSError as error:
            if not self.root.is_back(error, number):
                raise
        return call(self.root.fd)

    def _open(self, entry: int) -> int:
        if self._manifest.is_gone(entry):  # whatever has its name now is no content of this entry
            _raise(errno.ENOENT, "the file was taken out of the mount by a refresh")
        path = self._manifest.path(entry)

        def beneath(root_fd: int) -> int:
            try:
                return open_beneath(root_fd, path, _READ)
            except BlockingIOError:
                # Another process holds a write lease on the file. Wait until it gives it back, as any reader does.
                return open_beneath(root_fd, path, _READ & ~os.O_NONBLOCK)

        return self._on_root(beneath)

    def open_again(self, entry: int, error: OSError, number: int) -> tuple[int, int, FileAttributes] | None:
        """A file that failed to be read, on the file system that took the place of its own; None while there is none.

        Returns: its descriptor, the file system's number, and what it has.
        """
        if not self.root.is_back(error, number):
            return None
        number = self.root.number
        fd = self._open(entry)
        try:
            return fd, number, self._checked(fd)
        except BaseException:
            os.close(fd)
            raise

    def swap(self, file: PosixFile, fd: int, number: int) -> bool:
        """Have an open file go on by another descriptor; False if it was closed meanwhile."""
        with self._lock:
            if file.fd < 0:
                return False
            file.take(fd, number)
            return True

    def give_up(self, file: PosixFile) -> list[int]:
        """The descriptors of a file that is not used any more, which are to be closed."""
        with self._lock:
            return file.descriptors()

    def _checked(self, fd: int) -> FileAttributes:
        """The attributes of a descriptor that was just opened, which is then ready to be read."""
        content = settled_attributes(fd)
        if not stat.S_ISREG(content.mode):
            _raise(errno.ESTALE, "no longer a regular file in the source")
        # File systems that keep files on tape answer EAGAIN to a read that may not block.
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        return content

    def _read_as_known(self, entry: int, fd: int) -> WholeFile | int:
        """The whole file if it is as the manifest says, which one look after the read tells; else how much was read.

        What the manifest says is taken before the read, as it may change meanwhile.
        """
        manifest = self._manifest
        size, mtime_ns = manifest.size_view[entry], manifest.mtime_ns_view[entry]
        ctime_ns = manifest.ctime_ns_view[entry]
        if not is_settled(ctime_ns, mtime_ns):
            return 0
        try:
            data = _pread_all(fd, 0, size)
            now = attributes_now(fd)
        except OSError as error:
            if error.errno in _NO_FILE:
                return 0
            self.count(1, 0)
            raise
        found = (len(data), now.size, clamp_ns(now.mtime_ns), clamp_ns(now.ctime_ns))
        if found == (size, size, mtime_ns, ctime_ns) and stat.S_ISREG(now.mode):
            self.count(1, size)
            return WholeFile(data, size, now.mtime_ns, now.ctime_ns, self._for_others(entry, now), now.rights)
        return len(data)

    def _changed(self, entry: int, content: FileAttributes) -> bool:
        """Whether this may be another content than the manifest's.

        ctime tells what size and mtime do not: another file of the same size and mtime under the old name, and bytes
        that were written over before mtime was set back. It also moves with rights and links: then a file is read anew
        that has not changed, which costs time only.
        """
        manifest = self._manifest
        known = manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
        return known != (
            content.size, clamp_ns(content.mtime_ns), clamp_ns(content.ctime_ns)
        ) or self._for_others(entry, content)  # fmt: skip

    def _for_others(self, entry: int, content: FileAttributes) -> bool:
        """Whether others may read the file than the manifest says. Its number of names says nothing of that."""
        manifest = self._manifest
        known = manifest.mode_view[entry], manifest.uid_view[entry], manifest.gid_view[entry]
        return known != (content.mode, content.uid, content.gid)

    def read_whole(self, entry: int, close_later: bool = False) -> WholeFile:
        thread = threading.get_ident()  # as `at_work`, which takes a microsecond more on everybody's way
        self._at_work[thread] = entry, self._clock()
        try:
            return self._read_whole(entry, close_later)
        finally:
            del self._at_work[thread]

    def _read_whole(self, entry: int, close_later: bool) -> WholeFile:
        fd = self._open(entry)
        try:
            known = self._read_as_known(entry, fd)
            return known if isinstance(known, WholeFile) else self._read_anew(entry, fd, known)
        except MemoryError:
            _raise(errno.ENOMEM, "the source file is too big to be read at once")
        finally:
            if close_later:
                self._read.append(fd)
            else:
                os.close(fd)

    def close_read(self) -> None:
        while self._read:
            with contextlib.suppress(IndexError):  # another thread took the last one
                os.close(self._read.popleft())

    def _read_anew(self, entry: int, fd: int, bytes_read: int) -> WholeFile:
        """The whole file as it is now, whatever the manifest says. `bytes_read`: how much an earlier attempt read."""
        before = self._checked(fd)
        try:
            for _ in range(_RETRIES + (not bytes_read)):
                size = before.size
                data = _pread_all(fd, 0, size)
                bytes_read += len(data)
                if before == attributes_now(fd):
                    if len(data) != size:
                        _raise(errno.EIO, "the source gave fewer bytes than the file has")
                    changed = self._changed(entry, before)
                    return WholeFile(data, size, before.mtime_ns, before.ctime_ns, changed, before.rights)
                before = settled_attributes(fd)
        finally:
            self.count(1, bytes_read)
        _raise(errno.ESTALE, "the source file kept changing while it was read")

    def open(self, entry: int) -> PosixFile:
        with self.at_work(entry):
            number = self.root.number
            fd = self._open(entry)
            try:
                content = self._checked(fd)
            except BaseException:
                os.close(fd)
                raise
        self.count(1, 0)
        return PosixFile(self, entry, number, fd, content, self._changed(entry, content))

    def _look(self, entry: int, call: Callable[[int], T]) -> T:
        """What the call returns for a descriptor of the entry, which cannot be read."""
        path = self._manifest.path(entry)

        def look(root_fd: int) -> T:
            fd = open_beneath(root_fd, path, os.O_PATH)
            try:
                return call(fd)
            finally:
                os.close(fd)

        with self.at_work(entry):
            return self._on_root(look)

    def stat(self, entry: int) -> os.stat_result:
        return self._look(entry, os.fstat)

    # By its path in /proc, as a descriptor that cannot be read has no extended attributes.

    def attribute(self, entry: int, name: bytes) -> bytes:
        return self._look(entry, lambda fd: os.getxattr(f"/proc/self/fd/{fd}", name))

    def attribute_names(self, entry: int) -> list[bytes]:
        return [os.fsencode(name) for name in self._look(entry, lambda fd: os.listxattr(f"/proc/self/fd/{fd}"))]

    def statvfs(self) -> os.statvfs_result:
        return self._on_root(os.fstatvfs)

    def close(self) -> None:
        self.root.close()
