"""What the requests of the kernel mean: lookup, attributes, directories, open, read, release. No binding is imported.

In: requests from a channel. Out: entries, attributes, bytes; OSError with the errno to answer with. The data tree
comes from the manifest, the bytes from the engine, the control directory from mountd.virtual.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from itertools import count, repeat
from typing import NamedTuple, Protocol

from mlfs.engine.engine import Engine
from mlfs.engine.pagecache import Buffer
from mlfs.engine.ranges import FIRST_LARGE_HANDLE
from mountd.inodes import (
    FIRST_VIRTUAL,
    FIRST_VIRTUAL_HANDLE,
    LOOKING_HANDLE,
    ROOT_INODE,
    entry_of,
    entry_of_handle,
    generation_of_handle,
    handle_of,
    inode_of,
)
from mountd.pagecache import MountPages
from mountd.prime_inodes import InodePrimer
from mountd.read_failures import ReadFailures
from mountd.virtual import CONTROL_DIRECTORY, VirtualFiles

LISTED_AT_ONCE = 256
WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


Kind = tuple[int, int, int, int, int, bool]
"""mode, nlink, uid, gid, rdev, frozen: what many files of a directory have in common."""
Listed = tuple[bytes, int, int, Kind, int, int, int]
"""An entry of a directory: its name, the position behind it, its inode, kind, size, mtime_ns, ctime_ns."""


class Attributes(NamedTuple):
    """Attributes of an inode, as stat(2) names them; times in ns."""

    inode: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    mtime_ns: int
    ctime_ns: int
    frozen: bool  # whether the kernel may cache them


class Opened(NamedTuple):
    """A handle, and whether the kernel must pass every read on."""

    handle: int
    direct: bool


class Answer(Protocol):
    """The answer to an open, which a worker may give or the loop, but only one of them."""

    def take(self) -> bool:
        """Whether the answer is still to be given: by whoever asks, then. From any thread."""

    def give(self, handle: int) -> None:
        """From any thread, after `take`: the reader may go on."""

    def refuse(self, error: Exception) -> None:
        """On the loop, after `take`: the reader gets the error."""

    def over(self) -> None:
        """On the loop, last: what the open counts for has been noted."""


def kind_of(a: Attributes) -> Kind:
    """The part of an entry's attributes that stands in its `Kind`."""
    return a.mode, a.nlink, a.uid, a.gid, a.rdev, a.frozen


class Handlers:
    """Requests of one mount. Methods raise OSError; those that may wait are async."""

    def __init__(
        self,
        engine: Engine,
        virtual: VirtualFiles,
        inode_primer: InodePrimer,
        pages: MountPages,
        failures: ReadFailures,
    ) -> None:
        self.manifest = engine.manifest
        self._failures = failures
        self._below: os.statvfs_result | None = None
        self._virtual = virtual
        self._pages = pages
        self._inode_primer = inode_primer
        self._opens, self._digest, self._ranges = engine.opens, engine.digest, engine.ranges
        self._runner, self._source = engine.runner, engine.source
        self._hit, self._opened = engine.opens.hit, engine.digest.opened  # on the way of every staged open
        self._generations = engine.manifest.generation_view

    # -- names and attributes

    def forget(self, inode: int, count: int) -> None:
        """The kernel forgot `count` look-ups of a virtual file."""
        self._virtual.forget(inode, count)

    def is_priming(self, thread: int) -> bool:
        """Whether a thread lists a directory to make the kernel know its files."""
        return thread == self._inode_primer.thread

    def lookup(self, parent: int, name: bytes) -> int:
        """The inode of a name, 0 when there is none."""
        if parent >= FIRST_VIRTUAL:
            return self._virtual.lookup(parent, name)
        if parent == ROOT_INODE and name == CONTROL_DIRECTORY:
            return self._virtual.root
        if name in {b".", b".."}:
            entry = entry_of(parent)
            return inode_of(entry if name == b"." else int(self.manifest.parent_view[entry]))
        directory = entry_of(parent)
        entry = self.manifest.lookup(directory, name)
        if entry < 0:
            return 0
        self._inode_primer.looked_up(directory)
        return inode_of(entry)

    def attributes(self, inode: int) -> Attributes:
        """Attributes of an inode that the kernel knows."""
        if inode >= FIRST_VIRTUAL:
            node = self._virtual.node(inode)
            times = self._virtual.started_ns
            return Attributes(
                inode, node.mode, 1, self._virtual.owner_uid, self._virtual.owner_gid, 0, 0, times, times, False
            )
        m, entry = self.manifest, entry_of(inode)
        mode = m.mode_view[entry]
        rdev = 0 if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else m.rdev(entry)
        return Attributes(
            inode, mode, m.nlink_view[entry], m.uid_view[entry], m.gid_view[entry], rdev,
            m.size_view[entry], m.mtime_ns_view[entry], m.ctime_ns_view[entry], True,
        )  # fmt: skip

    def readlink(self, inode: int) -> bytes:
        """The target of a symbolic link."""
        if inode >= FIRST_VIRTUAL:
            return self._virtual.target(inode)
        return self.manifest.target(entry_of(inode))

    def check_directory(self, inode: int) -> None:
        """Before readdir."""
        mode = self._virtual.node(inode).mode if inode >= FIRST_VIRTUAL else self.manifest.mode_view[entry_of(inode)]
        if not stat.S_ISDIR(mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def listed_at_once(self, inode: int) -> bool:
        """Whether a directory's entries are those of the manifest, all of them and without device nodes."""
        if inode == ROOT_INODE:
            return not len(self.manifest.device) and self.manifest.lookup(entry_of(inode), CONTROL_DIRECTORY) < 0
        return inode < FIRST_VIRTUAL and not len(self.manifest.device)

    def directory(self, inode: int, start: int) -> Iterator[Listed]:
        """Entries of a directory from position `start`. The order never changes."""
        if inode >= FIRST_VIRTUAL:
            return self._listed_virtual(inode, start)
        rows = self._listed(entry_of(inode), start)
        return (row for row in rows if row[0] != CONTROL_DIRECTORY) if inode == ROOT_INODE else rows

    def _listed_virtual(self, inode: int, start: int) -> Iterator[Listed]:
        for position, (name, child) in enumerate(self._virtual.children(inode)[start:], start):
            a = self.attributes(child)
            yield name, position + 1, child, kind_of(a), a.size, a.mtime_ns, a.ctime_ns

    def _listed(self, directory: int, start: int) -> Iterator[Listed]:
        """A directory of the manifest, as plain tuples in the order of `Listed`.

        `ls -R` asks for every file of the data set: so whole columns are turned into Python's numbers at a time, and
        no object is made for an entry.
        """
        m = self.manifest
        children = m.children(directory)
        for first in range(children.start + start, children.stop, LISTED_AT_ONCE):
            last = min(first + LISTED_AT_ONCE, children.stop)
            rdev = map(m.rdev, range(first, last)) if len(m.device) else repeat(0)
            kinds = zip(
                m.mode[first:last].tolist(), m.nlink[first:last].tolist(), m.uid[first:last].tolist(),
                m.gid[first:last].tolist(), rdev, repeat(True),
            )  # fmt: skip
            yield from zip(
                m.names_of(first, last), count(first - children.start + 1), count(inode_of(first)), kinds,
                m.size[first:last].tolist(), m.mtime_ns[first:last].tolist(), m.ctime_ns[first:last].tolist(),
            )  # fmt: skip

    # -- files

    def open_staged(self, inode: int, flags: int, pid: int) -> int:
        """A handle, without waiting; 0 (no file's) when the bytes are not in place or the file is special.

        An open by the thread that looks which pages are there is no reader's: it counts for nothing.
        """
        if inode >= FIRST_VIRTUAL:
            return 0
        if flags & WRITING:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if pid == self._pages.looking:
            return LOOKING_HANDLE
        entry = inode - 1
        if not self._hit(entry):
            return 0
        self._opened(entry, pid)
        return handle_of(entry, self._generations[entry])

    def open_soon(self, inode: int, pid: int, answer: Answer) -> bool:
        """Begin to fetch what an open needs; False for what is no file. The worker that has it in place answers.

        The open counts from now on: what the process opens next, in this thread or in another one, counts after it.
        """
        if inode >= FIRST_VIRTUAL:
            return False
        entry = inode - 1
        generations = self._generations

        def in_place(source_bytes: int) -> bool:
            due = answer.take()
            if due:
                self._digest.goes_on_in_worker(entry, pid, source_bytes)
                answer.give(handle_of(entry, generations[entry]))
            return due

        def landed(error: Exception | None, handle: int, source_bytes: int) -> None:
            if not answer.take():
                if handle:  # a worker that had been given up on has answered
                    self._ranges.close_large(handle)
                self._digest.soon()
            elif error is not None:
                self._failures.note(entry, error)
                self._digest.refused(entry, pid)
                answer.refuse(error)
            else:
                self._digest.goes_on(entry, pid, source_bytes)
                answer.give(handle or handle_of(entry, generations[entry]))
            answer.over()

        self._digest.waits(entry, pid)
        self._opens.begin(entry, in_place, landed)
        return True

    async def open(self, inode: int, flags: int, pid: int, uid: int) -> Opened:
        """Open, waiting for the bytes if need be."""
        if inode >= FIRST_VIRTUAL:
            return Opened(await self._virtual.open(inode, bool(flags & WRITING), uid), True)
        entry = entry_of(inode)
        self._digest.waits(entry, pid)
        try:
            handle, source_bytes = await self._opens.open(entry)
        except Exception as error:
            self._digest.refused(entry, pid)
            self._failures.note(entry, error)
            raise
        self._digest.goes_on(entry, pid, source_bytes)
        return Opened(handle or handle_of(entry, self._generations[entry]), False)

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        """Bytes that the kernel does not have."""
        if handle >= FIRST_VIRTUAL_HANDLE:
            return self._virtual.read(handle, offset, size)
        large = handle >= FIRST_LARGE_HANDLE
        entry = self._ranges.entry_of(handle) if large else entry_of_handle(handle)
        try:
            if large:
                return await self._ranges.read_large(handle, offset, size)
            return await self._ranges.read(entry, generation_of_handle(handle), offset, size)
        except Exception as error:
            self._failures.note(entry, error)
            raise

    async def write(self, handle: int, data: bytes, offset: int) -> int:
        """Only the control file takes writes."""
        if handle < FIRST_VIRTUAL_HANDLE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return await self._virtual.write(handle, data, offset)

    def release(self, handle: int) -> None:
        """The last descriptor of an open file was closed."""
        if handle == LOOKING_HANDLE:
            return
        if handle >= FIRST_VIRTUAL_HANDLE:
            self._virtual.release(handle)
        elif handle >= FIRST_LARGE_HANDLE:
            self._digest.released(self._ranges.close_large(handle))
        else:
            self._digest.released(entry_of_handle(handle))

    async def statvfs(self) -> os.statvfs_result | None:
        """Sizes of the source's file system, as they were while it is gone; None if nobody has asked before.

        It may hang as long as the source does; whoever gives up leaves a thread of few. An error here would say that
        this mount is dead: it lives, whatever became of the source.
        """
        try:
            self._below = await self._runner.run("statvfs", self._source.statvfs)
        except OSError:
            return self._below
        return self._below
