"""Answers the requests of the kernel: lookup, attributes, directories, open, read, release. No binding is imported.

In: requests from a channel. Out: entries, attributes, bytes; OSError with the errno to answer with. The data tree
comes from the manifest, the bytes from the engine, the control directory from mountd.virtual.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from mlfs.engine.block_reads import Spent
from mlfs.engine.digest import Entries, Pids
from mlfs.engine.engine import Engine
from mlfs.engine.opens import WaitingReader
from mlfs.engine.pagecache import Buffer
from mlfs.engine.range_reads import RangeReply, ReadReply
from mlfs.engine.ranges import FIRST_LARGE_HANDLE
from mountd.inodes import (
    FIRST_CHANGED,
    FIRST_VIRTUAL,
    FIRST_VIRTUAL_HANDLE,
    LOOKING_HANDLE,
    ROOT_INODE,
    entries_of,
    entry_of,
    entry_of_handle,
    generation_of,
    generation_of_handle,
    handle_of,
    handle_without_open,
    inode_of,
)
from mountd.misses import Misses
from mountd.onlookers import Reader
from mountd.pagecache import MountPages
from mountd.prime_inodes import InodePrimer
from mountd.source_looks import ExtendedAttributes, FirstLooks
from mountd.virtual import CONTROL_DIRECTORY, VirtualFiles

WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class Attributes(NamedTuple):
    """Attributes of an inode, as stat(2) names them; times in ns. `number` is its st_ino."""

    number: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    mtime_ns: int
    ctime_ns: int
    frozen: bool  # whether the kernel may cache them


Listed = tuple[bytes, int, int, Attributes]
"""An entry of a directory: its name, the position behind it, its inode and attributes."""


class OpenedHandle(NamedTuple):
    """A handle, and whether the kernel must pass every read on."""

    handle: int
    direct: bool


class Replies(Protocol):
    """The channel, as it takes the answers to OPENs that wait. Each OPEN has a number, `unique`.

    It is mountd.requests, which knows the handlers.
    """

    def opens(self, unique: int, handle: int) -> None:
        """From any thread: answer that it is open. The RELEASE of the handle waits for `noted`."""

    def failed(self, unique: int, error: Exception) -> None:
        """On the loop: answer with an error."""

    def noted(self, handle: int) -> None:
        """On the loop, last: what an open counts for has been noted. `handle`: as it was answered, 0 for none yet."""

    def noted_before(self, handle: int) -> None:
        """From any thread: the same of an open that is answered only now, after the loop had noted it."""


class WaitingOpen(WaitingReader):
    """An OPEN that waits, from the request to its answer: the worker gives it that has the bytes in place, or the loop.

    If the file turns out to have changed, its name leads to another inode by then: ESTALE, and the kernel looks it up
    and opens that one. The same if a directory above has changed: the kernel may have let in whom the source refuses.
    """

    __slots__ = (
        "_changes", "_counted", "_due", "_first", "_generation", "_given", "_handlers", "_is_noted", "_pid", "_replies",
        "_unique",
    )  # fmt: skip

    def __init__(self, handlers: Handlers, replies: Replies, unique: int, inode: int, pid: int) -> None:
        entry = entry_of(inode)
        self._first = handlers.again.take(entry, pid)
        super().__init__(handlers.opens, entry, counts=self._first is None)
        self._handlers, self._replies, self._unique, self._pid = handlers, replies, unique, pid
        self._generation = generation_of(inode)
        self._changes = handlers.looks.changes
        self._counted = handlers.manifest.unsized.counted(entry)
        self._due = [True]  # the right to answer, taken out by whoever does, which is atomic
        self._given = 0  # the handle
        self._is_noted = False

    def begin(self) -> None:
        """Have it wait; it counts from now on: what the process opens next, in any of its threads, counts after it."""
        handlers, first = self._handlers, self._first
        if first is None:
            handlers.digest.waits(self.sample, self._pid)
        elif first.handle:
            if handlers.ranges.generation_of(first.handle) == self._generation:
                self.over(None, first.handle, 0)
                return
            handlers.ranges.close_large(first.handle)
        handlers.opens.wait(self)

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: answer, if what the kernel was told still holds."""
        due = self._is_as_told() and self._take()
        if due:
            self._handlers.digest.goes_on_in_worker(self.sample, self._pid, self._gave(source_bytes))
            self._give(0)
        return due

    def over(self, error: Exception | None, handle: int, source_bytes: int) -> None:
        """On the loop: answer, unless a worker has; and note what came of the open."""
        handlers, entry, pid = self._handlers, self.sample, self._pid
        if not self._take():
            if handle:  # a worker that had been given up on has answered
                handlers.ranges.close_large(handle)
            handlers.digest.soon()
        elif error is not None:
            handlers.failures.note(entry, error)
            handlers.digest.refused(entry, pid)
            self._replies.failed(self._unique, error)
        elif not self._is_as_told():
            if handlers.manifest.generation_view[entry] != self._generation:
                handlers.again.comes(entry, pid, self._gave(source_bytes), handle)
            else:
                handlers.does_not_come(entry, pid, handle)
            self._replies.failed(self._unique, stale())
        else:
            handlers.digest.goes_on(entry, pid, self._gave(source_bytes))
            self._give(handle)
        self._is_noted = True
        self._replies.noted(self._given)

    def _take(self) -> bool:
        try:
            return self._due.pop()
        except IndexError:
            return False

    def _give(self, handle: int) -> None:
        """From any thread: the reader may go on. `handle`: a large file's, or 0."""
        self._given = handle or handle_of(self.sample, self._generation)
        self._replies.opens(self._unique, self._given)
        if self._is_noted:  # this is a worker that had been given up on
            self._replies.noted_before(self._given)

    def _gave(self, source_bytes: int) -> int:
        """The bytes that the source gave for this read, those for its first open among them."""
        return source_bytes + (self._first.source_bytes if self._first is not None else 0)

    def _is_as_told(self) -> bool:
        """Whether the kernel, which has let the reader in, was told what the source has."""
        entry, manifest = self.sample, self._handlers.manifest
        is_same = manifest.generation_view[entry] == self._generation
        is_same = is_same and manifest.unsized.counted(entry) == self._counted
        return is_same and not self._handlers.looks.changed_since(entry, self._changes)


def stale() -> OSError:
    """The answer of an inode that is not what the source has: whoever looks its name up again finds the one that is."""
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Handlers:
    """Requests of one mount. Methods raise OSError; those that may wait are async."""

    def __init__(
        self,
        engine: Engine,
        virtual: VirtualFiles,
        inode_primer: InodePrimer,
        pages: MountPages,
        failures: ReadFailures,
        misses: Misses,
        first_looks: FirstLooks,
        extended: ExtendedAttributes,
    ) -> None:
        self._engine, self.manifest, self.looks = engine, engine.manifest, engine.looks
        self._first_looks, self._extended = first_looks, extended
        self.failures = failures
        self._missed = misses.missed
        self._below: os.statvfs_result | None = None
        self._virtual = virtual
        self._pages = pages
        self._inode_primer = inode_primer
        self.opens, self.digest, self.ranges = engine.opens, engine.digest, engine.ranges
        self._holes, self._row_reads = engine.holes, engine.row_reads
        self.again = AskedAgain(engine.clock, self.does_not_come)
        self._runner, self._source = engine.runner, engine.source
        self._whole_reads = engine.whole_reads
        self._hit, self._opened = engine.opens.hit, engine.digest.opened  # on the way of every staged open
        self._generations = engine.manifest.generation_view
        self._past, self._hard_links = engine.manifest.past, engine.manifest.hard_links

    # -- names and attributes

    def forget(self, inode: int, count: int) -> None:
        """The kernel forgot `count` look-ups: of a virtual file, or all that it had of another inode."""
        if inode >= FIRST_VIRTUAL:
            self._virtual.forget(inode, count)
        elif len(self._past):
            self._past.forget(entry_of(inode), generation_of(inode))

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
            entry = self._entry_of(parent)  # of a file handle, which may hold any number
            return self._inode_of(entry if name == b"." else int(self.manifest.parent_view[entry]))
        directory = entry_of(parent)
        entry = self.manifest.lookup(directory, name)
        if entry < 0:
            self._check_readable(directory)
            self._missed(directory, name)
            return 0
        self._inode_primer.looked_up(directory)
        return self._inode_of(entry)

    def _check_readable(self, directory: int) -> None:
        """The directory's entries are known. Raises: the error that the scan was told, as nobody knows better."""
        number = self.manifest.unreadable_error(directory)
        if number:
            raise OSError(number, os.strerror(number))

    def _inode_of(self, entry: int) -> int:
        """The inode of what the entry has now."""
        return inode_of(entry, self._generations[entry])

    def _entry_of(self, inode: int) -> int:
        """The entry of an inode that is what the source has. Raises: ESTALE for any other."""
        entry = entry_of(inode)
        known = 0 <= entry < self.manifest.used and not self.manifest.is_gone(entry)
        if not known or self._generations[entry] != generation_of(inode):
            raise stale()
        return entry

    def attributes(self, inode: int) -> Attributes:
        """Attributes of an inode that the kernel knows."""
        if inode >= FIRST_VIRTUAL:
            node = self._virtual.node(inode)
            size, times = self._virtual.shown(inode)
            return Attributes(
                inode, node.mode, 1, self._virtual.owner_uid, self._virtual.owner_gid, 0, size, 0, times, times, False
            )
        m, entry = self.manifest, entry_of(inode)
        if m.generation_view[entry] != generation_of(inode):
            then = self._past.of(entry, generation_of(inode))
            if then is None:
                raise stale()
            return Attributes(
                inode_of(then.first_name, then.first_generation), then.mode, then.nlink, then.uid, then.gid, 0,
                then.size, then.blocks, then.mtime_ns, then.ctime_ns, True,
            )  # fmt: skip
        return self._attributes(entry)

    def _attributes(self, entry: int) -> Attributes:
        m, first = self.manifest, self._hard_links.first_of(entry)
        mode = m.mode_view[entry]
        rdev = 0 if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else m.rdev(entry)
        counted = m.unsized.counted(entry)
        size = m.size_view[entry] if counted is None else counted
        return Attributes(
            self._inode_of(first), mode, m.nlink_view[entry], m.uid_view[entry], m.gid_view[entry], rdev,
            size, m.blocks_view[entry], m.mtime_ns_view[entry], m.ctime_ns_view[entry], True,
        )  # fmt: skip

    # -- who may read

    def is_unseen(self, inode: int) -> bool:
        """Whether the kernel may not be told of an inode before `look`."""
        return inode < FIRST_VIRTUAL and not self.looks.has_seen(entry_of(inode))

    async def look(self, inode: int) -> int:
        """Look at the source, so that the kernel may be told of an inode: the one that the entry has then.

        Raises: OSError; ESTALE to be asked anew.
        """
        entry = entry_of(inode)
        await self._first_looks.at(entry)
        return self._inode_of(entry)

    async def look_at_children(self, inode: int, start: int, count: int) -> None:
        """Look at the children of a directory from number `start` on. One that cannot be looked at stays as it is."""
        await self._first_looks.at_children(entry_of(inode), start, count)

    def has_no_attribute(self, inode: int, name: bytes) -> bool:
        """Whether it is known that there is no such extended attribute."""
        return inode >= FIRST_VIRTUAL or self._extended.is_absent(entry_of(inode), name)

    async def attribute(self, inode: int, name: bytes) -> bytes:
        """An extended attribute. Raises: OSError."""
        return await self._extended.value(entry_of(inode), name)

    async def attribute_names(self, inode: int) -> bytes:
        """The names of extended attributes. Raises: OSError."""
        return b"" if inode >= FIRST_VIRTUAL else await self._extended.names(entry_of(inode))

    def readlink(self, inode: int) -> bytes:
        """The target of a symbolic link."""
        if inode >= FIRST_VIRTUAL:
            return self._virtual.target(inode)
        return self.manifest.target(entry_of(inode))

    def check_directory(self, inode: int) -> None:
        """Check a directory before its names are read."""
        mode = self._virtual.node(inode).mode if inode >= FIRST_VIRTUAL else self.manifest.mode_view[entry_of(inode)]
        if not stat.S_ISDIR(mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if inode < FIRST_VIRTUAL:
            self._check_readable(entry_of(inode))

    def listed_at_once(self, inode: int) -> bool:
        """Whether a directory's entries are those of the manifest, all of them and without device nodes."""
        if inode == ROOT_INODE:
            return not len(self.manifest.device) and self.manifest.lookup(entry_of(inode), CONTROL_DIRECTORY) < 0
        return inode < FIRST_VIRTUAL and not len(self.manifest.device)

    def place(self, inode: int, following: int) -> int:
        """The place among a directory's children at which a listing goes on that has come to `following`, 0 at first.

        A record has the number of its entry and one: children may come and go with a refresh.
        """
        return self.manifest.behind(entry_of(inode), following - 1) if following else 0

    def directory(self, inode: int, following: int) -> Iterator[Listed]:
        """Entries of a directory from where a listing has come to."""
        if inode >= FIRST_VIRTUAL:
            return self._listed_virtual(inode, following)
        rows = self._listed(entry_of(inode), self.place(inode, following))
        return (row for row in rows if row[0] != CONTROL_DIRECTORY) if inode == ROOT_INODE else rows

    def _listed_virtual(self, inode: int, start: int) -> Iterator[Listed]:
        for position, (name, child) in enumerate(self._virtual.children(inode)[start:], start):
            yield name, position + 1, child, self.attributes(child)

    def _listed(self, directory: int, start: int) -> Iterator[Listed]:
        """A directory of a manifest with device nodes; all others are listed by mountd.dirents."""
        for entry in self.manifest.children(directory)[start:]:
            yield self.manifest.name(entry), entry + 1, self._inode_of(entry), self._attributes(entry)

    # -- files

    def open_staged(self, inode: int, flags: int, pid: int) -> int:
        """A handle, without waiting; 0 (no file's) when the bytes are not in place or the file is special.

        An open by the thread that looks which pages are there is no reader's: it counts for nothing.
        """
        if inode >= FIRST_CHANGED:
            return self._open_changed(inode, flags, pid)
        if flags & WRITING:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        entry = inode - 1
        if self._generations[entry]:
            raise stale()
        if pid == self._pages.looking:
            return LOOKING_HANDLE
        if not self._hit(entry):
            return 0
        self._opened(entry, pid)
        return entry  # the handle of its first generation

    def _open_changed(self, inode: int, flags: int, pid: int) -> int:
        """The same for what has changed at the source since the scan, and for virtual files."""
        if inode >= FIRST_VIRTUAL:
            return 0
        if flags & WRITING:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        entry = self._entry_of(inode)
        if pid == self._pages.looking:
            return LOOKING_HANDLE
        first = self.again.take(entry, pid)
        if first is None:
            if not self._hit(entry):
                return 0
            self._opened(entry, pid)
            return handle_of(entry, generation_of(inode))
        if first.handle or not self.opens.hit_again(entry):
            self.again.comes(entry, pid, first.source_bytes, first.handle)  # to `open_soon`
            return 0
        self.digest.goes_on(entry, pid, first.source_bytes)
        return handle_of(entry, generation_of(inode))

    def does_not_come(self, entry: int, pid: int, handle: int) -> None:
        """A reader does not ask again for a file that has changed."""
        self.digest.refused(entry, pid)
        if handle:
            self.ranges.close_large(handle)

    def open_soon(self, inode: int, pid: int, unique: int, replies: Replies) -> bool:
        """Have an OPEN wait for what it needs, and answered then; False for what is no file."""
        if inode >= FIRST_VIRTUAL:
            return False
        WaitingOpen(self, replies, unique, inode, pid).begin()
        return True

    async def open(self, inode: int, flags: int, pid: int, uid: int, gid: int) -> OpenedHandle:
        """Open a virtual file."""
        return OpenedHandle(await self._virtual.open(inode, bool(flags & WRITING), Reader(uid, gid, pid)), True)

    def given_again(self, asked: Collection[tuple[int, bool]]) -> None:
        """The kernel gives requests again about files: see `mlfs.engine.digest.Digest.given_again`."""
        self.opens.answered_before(self.digest.given_again(asked))

    # -- files that are opened without a request (mountd.silent)

    @property
    def most_untold(self) -> int:
        """See `mountd.silent.Told`."""
        return self._engine.most_untold

    def meets(self, pids: Collection[int]) -> None:
        """See `mountd.silent.Told`."""
        self.digest.meets(pids)

    def told(self, entries: Entries, pids: Pids, closed: Sequence[int], free: Sequence[int]) -> None:
        """The kernel tells of opens and closes that it has answered by itself: see `mountd.silent.Told`."""
        self.opens.told(entries, entries_of(free))
        if self._row_reads.has_readers:
            for inode in free:
                self._row_reads.closed(handle_without_open(inode))
        self.digest.told(entries, pids, closed)

    async def open_virtual(self, inode: int, reader: Reader) -> None:
        """Somebody who has a virtual file open asks how long it is: it has its text from now on."""
        await self._virtual.open_untold(inode, reader)

    def read_whole(self, inode: int, offset: int, size: int, reply: ReadReply) -> bool:
        """Have a READ answered that wants a small file which is not in place; False for any other, see `read`."""
        if inode >= FIRST_VIRTUAL:
            return False
        entry, generation = entry_of(inode), generation_of(inode)
        if self._generations[entry] != generation:
            raise stale()
        return self._whole_reads.begin(entry, generation, offset, size, reply)

    def read_at_once(self, inode: int, handle: int, offset: int, size: int, pid: int) -> Buffer | None:
        """Note the row that a READ tells of. Returns its bytes if they lie in memory, so that nobody waits; else `read`
        has to follow."""
        if handle >= FIRST_VIRTUAL_HANDLE:
            return None
        entry = entry_of(inode)
        tripwire = self._row_reads.read(entry, generation_of(inode), handle, offset, size, pid)
        # Threads that read rows are followed in the order of their READs: how these are served stays as it was.
        if tripwire is not None or handle < FIRST_LARGE_HANDLE or self._row_reads.follows(entry):
            return tripwire
        return self.ranges.read_at_once(handle, offset, size)

    def begin_read(self, inode: int, handle: int, offset: int, size: int, untold: bool, reply: RangeReply) -> bool:
        """Have a READ answered by a worker that reads what the source alone has; False for any other, see `read`, and
        for rows that are followed, as in `read_at_once`."""
        if handle >= FIRST_VIRTUAL_HANDLE or self._row_reads.follows(entry_of(inode)):
            return False
        if handle >= FIRST_LARGE_HANDLE:
            return self.ranges.begin_large(handle, offset, size, reply)
        return untold and self.ranges.begin_untold(entry_of(inode), generation_of(inode), offset, size, reply)

    async def read(
        self, inode: int, handle: int, offset: int, size: int, untold: bool = False, spent: Spent | None = None
    ) -> Buffer:  # fmt: skip
        """Bytes that the kernel does not have, for a reader. The inode of a file says which content it opened.

        Args:
            untold: whether it was opened without a request. spent: of tries at the source, see
                `mlfs.engine.range_reads`.
        """
        if handle >= FIRST_VIRTUAL_HANDLE:
            return self._virtual.read(handle, offset, size)
        entry, generation = entry_of(inode), generation_of(inode)
        if handle >= FIRST_LARGE_HANDLE and not self.ranges.is_open(handle):
            await self.ranges.open_again(handle, entry, generation)
        try:
            if handle >= FIRST_LARGE_HANDLE:
                return await self.ranges.read_large(handle, offset, size, spent)
            return await self.ranges.read(entry, generation, offset, size, untold, spent)
        except Exception as error:
            if untold and isinstance(error, OSError) and error.errno == errno.ESTALE:
                await self.ranges.look(entry)  # as the next open, which brings no request, cannot
            self.failures.note(entry, error)
            raise

    async def seek(self, inode: int, handle: int, offset: int, whence: int) -> int:
        """The beginning of the next data or the next hole. Raises: ENXIO behind the end."""
        if handle >= FIRST_VIRTUAL_HANDLE:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))  # all of these have size 0
        if handle < FIRST_LARGE_HANDLE:
            return await self._holes.of_entry(entry_of_handle(handle), generation_of_handle(handle), offset, whence)
        if not self.ranges.is_open(handle):
            await self.ranges.open_again(handle, entry_of(inode), generation_of(inode))
        opened = self.ranges.opened(handle)
        if opened is not None:
            return await self._holes.of_open(opened, offset, whence)
        return await self._holes.of_entry(
            self.ranges.entry_of(handle), self.ranges.generation_of(handle), offset, whence
        )  # fmt: skip

    async def write(self, handle: int, data: bytes, offset: int) -> int:
        """Only the control file takes writes."""
        if handle < FIRST_VIRTUAL_HANDLE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return await self._virtual.write(handle, data, offset)

    async def command(self, handle: int, uid: int, data: bytes) -> None:
        """A part of a command, by ioctl(2)."""
        await self._virtual.take(handle, uid, data)

    def release(self, handle: int) -> None:
        """The last descriptor of an open file was closed."""
        if handle == LOOKING_HANDLE:
            return
        if handle >= FIRST_VIRTUAL_HANDLE:
            self._virtual.release(handle)
        elif handle >= FIRST_LARGE_HANDLE:
            self._row_reads.closed(handle)
            if self.ranges.is_open(handle):  # else a server before this one had opened it, and nobody has read since
                self.digest.released(self.ranges.close_large(handle))
        else:
            self.digest.released(entry_of_handle(handle))

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


# -- opens that come a second time, because the first found that the file has changed and was answered ESTALE
#
# In: opens that the kernel is about to make again, by another inode of the file (docs/decisions/nodeids.md), with what
# the first has opened. Out: whether an open is one of these: so a reader's one read is counted once, and a file that
# changes all the time can be opened, since the second open need not look whether it has changed again.

# The kernel comes again within the same system call. One who does not (he was killed, or uses an overlay) is given up
# for the newest, or after that time, so that no file of the source is held open for him.
MOST_AWAITED: Final = 64
AGAIN_PATIENCE_S: Final = 10.0


class First(NamedTuple):
    """The result of the first open: bytes that the source gave, a large file's handle or 0."""

    source_bytes: int
    handle: int
    at_s: float


class AskedAgain:
    """Remembers first opens until their second one comes, or does not. Called on the loop.

    Args:
        given_up: (entry, reader, handle): who does not come.
    """

    def __init__(self, clock: Callable[[], float], given_up: Callable[[int, int, int], None]) -> None:
        self._clock = clock
        self._given_up = given_up
        self._awaited: dict[tuple[int, int], First] = {}

    def comes(self, entry: int, pid: int, source_bytes: int, handle: int) -> None:
        """The reader will ask again."""
        now_s = self._clock()
        self._give_up(entry, pid)
        self._awaited[entry, pid] = First(source_bytes, handle, now_s)
        while len(self._awaited) > MOST_AWAITED or next(iter(self._awaited.values())).at_s < now_s - AGAIN_PATIENCE_S:
            self._give_up(*next(iter(self._awaited)))

    def take(self, entry: int, pid: int) -> First | None:
        """The result of the first open of a reader who asks again; None for one who asks for the first time."""
        return self._awaited.pop((entry, pid), None)

    def _give_up(self, entry: int, pid: int) -> None:
        first = self._awaited.pop((entry, pid), None)
        if first is not None:
            self._given_up(entry, pid, first.handle)


# -- reads that failed for readers: how many, and what the last one was about
#
# In: errors that requests for the data set's files are answered with. Out: frozen figures for status and metrics.


@dataclass(frozen=True, slots=True)
class ReadFailureStatistics:
    """Reads that failed.

    Attributes:
        error, path, ago_s: of the last one: what its reader was told, about which file, how long ago.
    """

    count: int = field(default=0, metadata={"key": None})
    error: str = ""
    path: str = ""
    ago_s: float = field(default=0.0, metadata={"digits": 3})


class ReadFailures:
    """Counts them, and remembers the last one. Loop only.

    Args:
        path: the path of an entry, relative to the source. noted: what another server has, see `noted`.
        moved: told of each.
    """

    def __init__(
        self,
        path: Callable[[int], bytes],
        noted: tuple[int, str, str, float] = (0, "", "", 0.0),
        moved: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._moved = moved
        self._clock = clock
        self._count, self._last = noted[0], noted[1:]

    def note(self, entry: int, error: Exception) -> None:
        """A reader gets this error for a file."""
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number else f"an internal error: {error!r}"
        self._count += 1
        self._last = text, os.fsdecode(self._path(entry)), self._clock()
        self._moved()

    def noted(self) -> tuple[int, str, str, float]:
        """All of it, for the server that comes after this one."""
        return self._count, *self._last

    def statistics(self) -> ReadFailureStatistics:
        text, path, at_s = self._last
        return ReadFailureStatistics(self._count, text, path, self._clock() - at_s if self._count else 0.0)
