"""The source as a directory tree: a local or parallel file system, reached through a directory descriptor.

In: the descriptor of the source's root, opened before the mount covered its path, and the manifest for the paths.
When the file system dies and is there again, calls go on by what is at its path (`mlfs.places.source_root`).
Out: the bytes of the manifest's entries with the attributes that they belong to, or an OSError. The daemon makes it at
start. All methods block, are thread-safe, and are called from worker threads only: any of them can hang for as long as
the file system does.

A source never gives part of a file for the whole, nor parts of two versions of a file.

The bytes of a read are of one content if the attributes (size, mtime, ctime) were the same before and after it, and if
they are old enough that no second change can hide behind them (`mlfs.tree.stable_stat`). The scan counts as the look
before the read where the attributes after it are those of the manifest, and no other look is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, NoReturn, TypeVar

from mlfs.places import known_file
from mlfs.places.doubts import Doubts
from mlfs.places.known_file import READ, KnownFile, read_known
from mlfs.places.source_root import SourceRoot
from mlfs.places.source_statistics import SourceStatistics
from mlfs.tree.attributes import FileAttributes, Rights, attributes_now
from mlfs.tree.manifest import Manifest, clamp_ns
from mlfs.tree.openat import open_beneath
from mlfs.tree.stable_stat import is_settled, settled_attributes

# The arguments of the OSError of a file that cannot be read as a whole, as nobody knows how long it is. It can be read
# as it comes, through a file that was opened.
UNSIZED: Final = (errno.EOVERFLOW, "the source file has another number of bytes than its size says")
# How often a file is read again that changed meanwhile. A file that is written all the time would be read for ever.
_RETRIES: Final = 3
# The errors of a read of something that is no file, or on a file that cannot be read without waiting.
_NO_FILE: Final = frozenset({errno.EAGAIN, errno.ESPIPE, errno.EISDIR, errno.EINVAL, errno.ENXIO})
# A call that takes longer is told of: no source that is well takes so long for the first bytes of a file.
HANGS_S: Final = 2.0
# So often the server is asked what became of an open file, also where the client believes to know.
ASKED_S: Final = 1.0

log = logging.getLogger("mlfs.places")
T = TypeVar("T")
COUNTED_BYTES: Final = 64 << 20
"""Of a file whose size is wrong so many bytes are counted, once: a larger one keeps the size that its source tells."""


class WholeFile(NamedTuple):
    """A whole file, and the attributes of exactly this content.

    Attributes:
        size: in bytes; `len(data)`.
        changed: whether it, or who may read it, is not what the manifest said at the time of the call.
        rights: who may read it; None where it is as the manifest said.
    """

    data: bytes | bytearray
    size: int
    mtime_ns: int
    ctime_ns: int
    changed: bool
    rights: Rights | None = None


class FileVersion(NamedTuple):
    """The content of an open file, told from others of that file; `size` is in bytes."""

    size: int
    mtime_ns: int
    ino: int


def _raise(number: int, why: str) -> NoReturn:
    raise OSError(number, f"{os.strerror(number)}: {why}")


class PosixFile:
    """A file of the source that is held open for reads of ranges. It survives that its name is replaced or removed.

    One that is only looked at (O_PATH) costs the source no open before it is read. It is then opened as what was looked
    at, whatever has the name. A source that has removed that meanwhile, as most do over a network, gives ESTALE.

    Attributes:
        fd: the descriptor; -1 once the file is closed.
        version: the content that was there at open; `read` gives bytes of no other one.
        ctime_ns: the time of the last change of the attributes, as it was at open.
        changed: whether it, or who may read it, is not what the manifest says now.
        rights: the rights of the file, as they were at open.
        unsized: whether the size was not the number of its bytes at open: then `read` gives them as they come.
    """

    __slots__ = (
        "_asked_s", "_before", "_entry", "_number", "_opening", "_seen", "_source", "ctime_ns", "fd", "rights",
        "unsized", "version",
    )  # fmt: skip

    def __init__(
        self, source: PosixSource, entry: int, number: int, fd: int, content: FileAttributes, unsized: bool,
        is_looked_at: bool = False,
    ) -> None:  # fmt: skip
        self._opening = threading.Lock() if is_looked_at else None  # None: it can be read
        self._source = source
        self._entry = entry
        self._number = number
        self._before: list[int] = []  # on file systems that have died: another thread may still be reading from them
        self.fd = fd
        shown = source.manifest.as_known(entry, content)
        self.version = FileVersion(content.size, shown.mtime_ns, content.ino)
        self.ctime_ns = shown.ctime_ns
        self.rights = content.rights
        self.unsized = unsized
        self._seen = content
        self._asked_s = source.now_s()

    @property
    def changed(self) -> bool:
        return self._source.is_changed(self._entry, self._seen)

    def is_at_its_name(self) -> bool:
        """Whether the file's name leads to this content still. Raises: OSError."""
        now = self._source.attributes(self._entry)
        return now.ino == self.version.ino and now.rights == self.rights and not self._was_written(now)

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer only where the file ends.

        Raises: OSError; ESTALE when the file was written in place, so that it no longer has this version.
        """
        if self.fd < 0:
            _raise(errno.EBADF, "the source file is closed")
        with self._source.at_work(self._entry):
            try:
                return self._read(offset, size)
            except OSError as error:
                if not self._is_open_again(error):
                    raise
            return self._read(offset, size)

    def seek(self, offset: int, whence: int) -> int:
        """As lseek(2), which moves nothing here. Raises: OSError."""
        self._open()
        return os.lseek(self.fd, offset, whence)

    def _read(self, offset: int, size: int) -> bytes:
        self._open()
        left = self.version.size - offset
        wanted = size if self.unsized else max(0, min(size, left))
        ends = not self.unsized and 0 <= left <= size
        data = os.pread(self.fd, size, offset) if self.unsized else known_file.pread_all(self.fd, offset, wanted, ends)
        self._source.count(0, len(data))
        asks = (len(data) != wanted and not self.unsized) or self._source.now_s() - self._asked_s > ASKED_S
        if self._was_written(attributes_now(self.fd, asks)):
            _raise(errno.ESTALE, "the source file was changed while it was open")
        if asks:
            self._asked_s = self._source.now_s()
        if len(data) > wanted:
            self._source.is_unsized(self._entry)
            raise OSError(*UNSIZED)
        if len(data) != wanted and not self.unsized:
            _raise(errno.EIO, "the source gave fewer bytes than the file has")
        return data if isinstance(data, bytes) else bytes(data)

    def _open(self) -> None:
        """Open what was only looked at. One thread does it; the others wait for that, but not for one that hangs."""
        if (opening := self._opening) is None:
            return
        has_lock = opening.acquire(timeout=HANGS_S)
        try:
            if self._opening is None:
                return
            fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
            try:
                now, seen = attributes_now(fd, ask=True), self._seen
                same = (now.ino, now.size, now.mtime_ns) == (seen.ino, seen.size, seen.mtime_ns)
                # A file that has lost its name has another ctime. A source that finds files by their names has a name
                # for what has taken it.
                if not same or (now.ctime_ns != seen.ctime_ns and now.nlink) or _is_unsized(fd, now.size):
                    _raise(errno.ESTALE, "the source has another content than was looked at")
                if not self._source.swap(self, fd, self._number):
                    _raise(errno.EBADF, "the source file is closed")
            except BaseException:
                os.close(fd)
                raise
            self._source.count(1, 0)
        finally:
            if has_lock:
                opening.release()

    def _was_written(self, now: FileAttributes) -> bool:
        """Whether the file has been written since the last look.

        mtime says so, and ctime where it has moved for no other reason. It also moves with rights, and when another
        file takes the name: then one of those has changed as well.
        """
        before, times = self._seen, self._source.times
        if now == before:
            return False
        if now.size != before.size or (times.mtime and now.mtime_ns != before.mtime_ns):
            return True
        alike = now.rights == before.rights
        if times.ctime and now.ctime_ns != before.ctime_ns and alike:
            return True
        self._seen = now
        return False

    def _is_open_again(self, error: OSError) -> bool:
        """Whether the file was opened again, with the same content, on a file system that took the place of its own."""
        opened = self._source.open_again(self._entry, error, self._number)
        if opened is None:
            return False
        fd, number, content = opened
        proved = self._source.times.proved
        was = self.version.size, *proved(self.version.mtime_ns, self.ctime_ns)
        same = (content.size, *proved(content.mtime_ns, content.ctime_ns)) == was
        if not same or not self._source.swap(self, fd, number):
            os.close(fd)
            return False
        return True

    def take(self, fd: int, number: int) -> None:
        """Go on by this descriptor. Called by the source, which keeps `close` out."""
        self._before.append(self.fd)
        self.fd, self._number, self._opening = fd, number, None
        self._seen = attributes_now(fd)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        for fd in self._source.give_up(self):
            os.close(fd)

    def descriptors(self) -> list[int]:
        """All descriptors that the file has; it has none from now on. Called by the source."""
        fds = [self.fd, *self._before] if self.fd >= 0 else []
        self.fd, self._before = -1, []
        return fds

    __del__ = close  # the reader may have given up before the source answered, so that nobody got this object


class PosixSource:
    """A source that is a directory of this machine.

    Args:
        root_fd: the source's root; duplicated, so the caller keeps its own.
        manifest: whose entries the calls name.
        path: where the source's file system can be found again; None where the mount covers that path.

    Attributes:
        root: the root of the source. manifest: what is known of it. times: what its times prove. now_s: the clock.
        open_count: how many files were opened so far, for whole reads and for ranges. bytes_read: how many bytes of
            contents were read so far, those of reads that were repeated included.
    """

    def __init__(
        self, root_fd: int, manifest: Manifest, path: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.root = SourceRoot(root_fd, manifest, path, clock)
        self.times = manifest.times
        self.now_s = clock
        self.manifest = manifest
        self._doubts = Doubts(manifest, self.root, self._open, self.count)
        self._clock = clock
        self._at_work: dict[int, tuple[int, float]] = {}  # by thread: the entry, and since when
        self._lock = threading.RLock()  # a file that nobody uses any more may be closed in the middle of a count
        self._read: deque[int] = deque()
        self.open_count = 0
        self.bytes_read = 0

    def count(self, opens: int, bytes_read: int) -> None:
        with self._lock:
            self.open_count += opens
            self.bytes_read += bytes_read

    def statistics(self) -> SourceStatistics:
        """Frozen figures; waits for nothing."""
        now_s = self._clock()
        hanging = sorted(
            (since_s, entry) for entry, since_s in tuple(self._at_work.values()) if now_s - since_s > HANGS_S
        )
        unsized = self.manifest.unsized.statistics()
        since_s, entry = hanging[0] if hanging else (now_s, -1)
        return SourceStatistics(
            self.root.statistics(), len(hanging), now_s - since_s, self._shown(entry), self.times.statistics(),
            unsized.count, self._shown(unsized.first),
        )  # fmt: skip

    def _shown(self, entry: int) -> str:
        return os.fsdecode(self.manifest.path(entry)) if entry >= 0 else ""

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

    def is_at(self, entry: int) -> None:
        """This thread, which is at work, waits for this file now."""
        thread = threading.get_ident()
        if self._at_work[thread][0] != entry:
            self._at_work[thread] = entry, self._clock()

    def _on_root(self, call: Callable[[int], T]) -> T:
        """Make a call with the root's descriptor. Raises: OSError, as the call does."""
        number = self.root.number
        try:
            return call(self.root.fd)
        except OSError as error:
            if not self.root.is_back(error, number):
                raise
        return call(self.root.fd)

    def _open(self, entry: int, flags: int = READ) -> int:
        if self.manifest.is_gone(entry):  # whatever has its name now is no content of this entry
            _raise(errno.ENOENT, "the file was taken out of the mount by a refresh")
        path = self.manifest.path(entry)

        def beneath(root_fd: int) -> int:
            try:
                return open_beneath(root_fd, path, flags)
            except BlockingIOError:
                # Another process holds a write lease on the file. Wait until it gives it back, as any reader does.
                return open_beneath(root_fd, path, flags & ~os.O_NONBLOCK)

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
        content = settled_attributes(fd, self.times)
        if not stat.S_ISREG(content.mode):
            _raise(errno.ESTALE, "no longer a regular file in the source")
        # File systems that keep files on tape answer EAGAIN to a read that may not block.
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        return content

    def _read_as_known(self, entry: int, fd: int) -> WholeFile | int:
        """The whole file if it is as the manifest says, which one look after the read tells; else how much was read.

        The manifest's attributes are taken before the read, as they may change meanwhile.
        """
        known, times = self.known(entry), self.times
        size, mtime_ns, ctime_ns = known[:3]
        if not is_settled(*((mtime_ns, ctime_ns) if times.both else times.proved(mtime_ns, ctime_ns))):
            return 0
        try:
            data, now, same = read_known(fd, known)
        except OSError as error:
            if error.errno in _NO_FILE:
                return 0
            self.count(1, 0)
            raise
        if not same:  # it still may be, by the times that prove something, as they fit the manifest
            found = len(data), now.size, *times.proved(clamp_ns(now.mtime_ns), clamp_ns(now.ctime_ns))
            if found != (size, size, *times.proved(mtime_ns, ctime_ns)) or not stat.S_ISREG(now.mode):
                return len(data)
        self.count(1, size)
        if known[3:] != (now.mode, now.uid, now.gid):  # others may read it
            return WholeFile(data, size, mtime_ns, ctime_ns, True, now.rights)
        return WholeFile(data, size, mtime_ns, ctime_ns, False)

    def known(self, entry: int) -> KnownFile:
        """A file as the manifest has it now."""
        manifest = self.manifest
        return KnownFile(
            manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry],
            manifest.mode_view[entry], manifest.uid_view[entry], manifest.gid_view[entry],
        )  # fmt: skip

    def is_unsized(self, entry: int, counted_bytes: int | None = None) -> None:
        """The size of the file is not the number of its bytes."""
        if self.manifest.unsized.note(entry, counted_bytes):
            path = self.manifest.path(entry)
            log.warning(
                "%r has another number of bytes than its size says: it is read past the caches from now on", path
            )

    def is_changed(self, entry: int, content: FileAttributes) -> bool:
        """Whether this may be another content than the manifest's.

        ctime tells what size and mtime do not: another file of the same size and mtime under the old name, and bytes
        that were written over before mtime was set back. It also moves with rights and links: then a file is read anew
        that has not changed, which costs time only.
        """
        known = self.known(entry)
        # Each READ of a range asks this, and nearly always it is all the same. The number of names says nothing.
        if known == (content.size, content.mtime_ns, content.ctime_ns, content.mode, content.uid, content.gid):
            return False
        content = self.manifest.as_known(entry, content)
        times = clamp_ns(content.mtime_ns), clamp_ns(content.ctime_ns)
        return known != (content.size, *times, content.mode, content.uid, content.gid)

    def read_whole(self, entry: int, close_later: bool = False) -> WholeFile:
        """The whole content of a regular file. `close_later`: it stays open until `close_read`, which must follow.

        Raises: OSError; FileNotFoundError when it is gone; ESTALE when it is no regular file any more or keeps
        changing; ELOOP when a symbolic link has taken its place; UNSIZED when its size is wrong.
        """
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
        """Close what `read_whole` left open, in whatever thread. To most file systems a close is a request of its own,
        so it is done when nobody waits for the bytes any more."""
        while self._read:
            with contextlib.suppress(IndexError):  # another thread took the last one
                os.close(self._read.popleft())

    def _read_anew(self, entry: int, fd: int, bytes_read: int) -> WholeFile:
        """The whole file as it is now, whatever the manifest says. `bytes_read`: how much an earlier attempt read."""
        before = self._checked(fd)
        earlier: bytes | bytearray | None = None
        try:
            for _ in range(_RETRIES + (not bytes_read)):
                size = before.size
                data = known_file.pread_all(fd, 0, size, True)
                bytes_read += len(data)
                now = attributes_now(fd)
                asked = now
                if len(data) != size or not self.times.same(before, now):
                    asked = attributes_now(fd, ask=True)
                    self._doubts.met(entry, before, now, asked, data == earlier)
                if self.times.same(before, now) and self.times.same(before, asked):
                    if len(data) < size and data != earlier:
                        earlier = data  # whether that is all of it the next read tells
                        continue
                    if len(data) != size:
                        self._has_other_size(entry, fd, len(data), size)
                    shown, changed = self.manifest.as_known(entry, before), self.is_changed(entry, before)
                    return WholeFile(data, size, shown.mtime_ns, shown.ctime_ns, changed, before.rights)
                before = settled_attributes(fd, self.times)
                earlier = data
        finally:
            self.count(1, bytes_read)
        _raise(errno.ESTALE, "the source file kept changing while it was read")

    def _has_other_size(self, entry: int, fd: int, given: int, size: int) -> NoReturn:
        """The attributes were at rest while the source gave so many bytes, and not `size` of them; fewer: twice."""
        if given < size and os.pread(fd, 1, given):
            _raise(errno.EIO, "the source gave fewer bytes than the file has")
        self.is_unsized(entry)
        raise OSError(*UNSIZED)

    def open(self, entry: int) -> PosixFile:
        """Open a regular file for reads of ranges; the caller closes it. Raises: as `read_whole`."""
        with self.at_work(entry):
            number = self.root.number
            fd = self._open(entry)
            try:
                attributes_now(fd, ask=True)  # what follows are attributes of now, whatever a client believes to know
                content = self._checked(fd)
                unsized = _is_unsized(fd, content.size)
            except BaseException:
                os.close(fd)
                raise
        self.count(1, 0)
        if not unsized:
            self.manifest.unsized.forget(entry)
        elif self.manifest.unsized.counted(entry) is None:
            self.is_unsized(entry, _counted(fd))
        return PosixFile(self, entry, number, fd, content, unsized)

    def look_at(self, entry: int) -> PosixFile:
        """A regular file that the source need not open before it is read; the caller closes it. Raises: as
        `read_whole`."""
        if not self.times.both:  # no look tells another content under its name
            return self.open(entry)
        with self.at_work(entry):
            number = self.root.number
            fd = self._open(entry, os.O_PATH)
            try:
                attributes_now(fd, ask=True)
                content = settled_attributes(fd, self.times)
                if not stat.S_ISREG(content.mode):
                    _raise(errno.ESTALE, "no longer a regular file in the source")
            except BaseException:
                os.close(fd)
                raise
        return PosixFile(self, entry, number, fd, content, False, is_looked_at=True)

    def _look(self, entry: int, call: Callable[[int], T]) -> T:
        """Make a call with an O_PATH descriptor of the entry, through which nothing can be read."""
        path = self.manifest.path(entry)

        def look(root_fd: int) -> T:
            fd = open_beneath(root_fd, path, os.O_PATH)
            try:
                return call(fd)
            finally:
                os.close(fd)

        with self.at_work(entry):
            return self._on_root(look)

    def stat(self, entry: int) -> os.stat_result:
        """The attributes that the entry has now; those of a symbolic link are its own. Raises: OSError."""
        return self._look(entry, os.fstat)

    def attributes(self, entry: int) -> FileAttributes:
        """The attributes that a file has now, whatever a client believes to know. Raises: OSError."""
        return self._look(entry, lambda fd: attributes_now(fd, ask=True))

    # By its path in /proc, as a descriptor that cannot be read has no extended attributes.

    def attribute(self, entry: int, name: bytes) -> bytes:
        """An extended attribute of the entry. Raises: OSError; ENODATA when it has none of that name."""
        return self._look(entry, lambda fd: os.getxattr(f"/proc/self/fd/{fd}", name))

    def attribute_names(self, entry: int) -> list[bytes]:
        """The names of the entry's extended attributes. Raises: OSError."""
        return [os.fsencode(name) for name in self._look(entry, lambda fd: os.listxattr(f"/proc/self/fd/{fd}"))]

    def statvfs(self) -> os.statvfs_result:
        """Sizes and limits of the file system. Raises: OSError."""
        return self._on_root(os.fstatvfs)

    def close(self) -> None:
        """Close the source's root; every later call fails."""
        self.root.close()


def _is_unsized(fd: int, size: int) -> bool:
    """Whether a file has fewer or more bytes than its size says: the last one, and what should not be there, of an
    empty file only that."""
    return len(os.pread(fd, 2, max(0, size - 1))) != min(1, size)


def _counted(fd: int) -> int | None:
    """The bytes of a file, by reading it to its end; None where they are more than COUNTED_BYTES, or an error comes."""
    count = 0
    with contextlib.suppress(OSError):
        while portion := len(os.pread(fd, 1 << 20, count)):
            count += portion
            if count > COUNTED_BYTES:
                break
        else:
            return count
    return None
