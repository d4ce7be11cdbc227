"""The portable channel: pyfuse3 passes the kernel's requests to the handlers, in trio's loop.

In: requests from libfuse. Out: replies. Only this module imports the binding. A binding keeps one session per process.

What costs here is not the handlers but the way to them, so `_tune_loop` replaces two things pyfuse3 takes from trio:
its wait for the descriptor, which stays awake a moment (mountd.awake), and its lock,
which lets the task that just served a request go on instead of handing over (measured: docs/benchmarks.md).
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FUSEError, InodeT, ReaddirToken, RequestContext

from mlfs.engine.pagecache import Buffer
from mountd.awake import Awake
from mountd.dirents import Direntries
from mountd.handlers import Attributes, Handlers, Kind, Listed, kind_of
from mountd.inodes import FIRST_VIRTUAL, entry_of
from mountd.readdir_token import put_records

log = logging.getLogger("mlfs.channel")

FROZEN_S = 365 * 86400.0
STATFS_S = 1.0
WITH_ATTRIBUTES = 1 << 62  # in the handle of a directory: its listing makes the kernel know the files
IDLE_TASKS = 16  # tasks that wait for requests are kept: making and ending one for each demand read is dear


class _TurnLock:
    """A lock whose holder may take it again before those who wait: one is woken when it is let go, and tries then."""

    def __init__(self, awake: Awake) -> None:
        self._awake = awake
        self._held = False
        self._waiting: deque[trio.lowlevel.Task] = deque()

    async def __aenter__(self) -> None:
        while self._held:
            task = trio.lowlevel.current_task()
            self._waiting.append(task)

            def abort(_: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                self._waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
            self._awake.next_woken = False
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._waiting and not self._awake.next_woken:  # one that is woken and has not run yet is enough
            self._awake.next_woken = True
            trio.lowlevel.reschedule(self._waiting.popleft())


def _tune_loop(awake: Awake) -> None:
    lowlevel = SimpleNamespace(**vars(trio.lowlevel))
    lowlevel.wait_readable = awake
    tuned = SimpleNamespace(**vars(trio))
    tuned.lowlevel = lowlevel
    tuned.Lock = lambda: _TurnLock(awake)
    vars(pyfuse3)["trio"] = tuned


def _fuse_error(error: Exception) -> FUSEError:
    """What to answer. An exception that is no OSError is a bug: it costs this request EIO, never the mount."""
    if isinstance(error, OSError):
        return FUSEError(error.errno or errno.EIO)
    log.error("a request failed in an unforeseen way", exc_info=error)
    return FUSEError(errno.EIO)


def _fill(target: EntryAttributes, attributes: Attributes) -> EntryAttributes:
    target.st_ino = attributes.inode
    _fill_kind(target, kind_of(attributes))
    target.st_size = attributes.size
    target.st_blocks = -(-attributes.size // 512)
    target.st_atime_ns = attributes.mtime_ns
    target.st_mtime_ns = attributes.mtime_ns
    target.st_ctime_ns = attributes.ctime_ns
    return target


def _fill_kind(target: EntryAttributes, kind: Kind) -> None:
    mode, nlink, uid, gid, rdev, frozen = kind
    target.generation = 0
    target.entry_timeout = target.attr_timeout = FROZEN_S if frozen else 0.0
    target.st_mode = cast(Any, mode)
    target.st_nlink = nlink
    target.st_uid = uid
    target.st_gid = gid
    target.st_rdev = rdev
    target.st_blksize = 4096


def _list(rows: Iterator[Listed], token: ReaddirToken) -> None:
    """Reply with entries of a directory until the request's buffer is full.

    A value that is the one of the entry before stays where it is: each setter costs, the times most of all.
    """
    entry = EntryAttributes()
    reply: Any = pyfuse3.readdir_reply
    last_kind: Kind | None = None
    last_size = last_mtime_ns = last_ctime_ns = -1
    for name, following, inode, kind, size, mtime_ns, ctime_ns in rows:
        entry.st_ino = inode
        if kind != last_kind:
            _fill_kind(entry, kind)
            last_kind = kind
        if size != last_size:
            entry.st_size, entry.st_blocks = size, -(-size // 512)
            last_size = size
        if mtime_ns != last_mtime_ns:
            entry.st_mtime_ns = entry.st_atime_ns = last_mtime_ns = mtime_ns
        if ctime_ns != last_ctime_ns:
            entry.st_ctime_ns = last_ctime_ns = ctime_ns
        if not reply(token, name, entry, following):
            return


class Operations(pyfuse3.Operations):
    """pyfuse3's side of the handlers. `requests` counts what the kernel asked, by kind."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, handlers: Handlers) -> None:
        super().__init__()
        self.handlers = handlers
        # One object for all staged opens: pyfuse3 copies it before anything else runs.
        self._staged = FileInfo(fh=0, keep_cache=True)
        self.direntries = Direntries(handlers.manifest, FROZEN_S)
        self._blank = EntryAttributes()
        self._blank.st_ino = 0
        self._below: os.statvfs_result | None = None
        self.requests = {"lookup": 0, "getattr": 0, "open": 0, "read": 0, "release": 0, "readdir": 0, "other": 0}

    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        self.requests["lookup"] += 1
        try:
            inode = self.handlers.lookup(parent_inode, bytes(name))
            if inode:
                return _fill(EntryAttributes(), self.handlers.attributes(inode))
        except Exception as error:
            raise _fuse_error(error) from None
        absent = EntryAttributes()  # inode 0: the kernel may remember that the name does not exist
        absent.st_ino = 0
        absent.entry_timeout = FROZEN_S if parent_inode < FIRST_VIRTUAL else 0.0
        return absent

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        self.requests["getattr"] += 1
        try:
            return _fill(EntryAttributes(), self.handlers.attributes(inode))
        except Exception as error:
            raise _fuse_error(error) from None

    async def readlink(self, inode: InodeT, ctx: RequestContext) -> Any:
        self.requests["other"] += 1
        try:
            return self.handlers.readlink(inode)
        except Exception as error:
            raise _fuse_error(error) from None

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        self.requests["other"] += 1
        try:
            self.handlers.check_directory(inode)
        except Exception as error:
            raise _fuse_error(error) from None
        return inode | WITH_ATTRIBUTES if ctx.pid == self.handlers.acquainter.thread else inode

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        self.requests["readdir"] += 1
        inode = fh & ~WITH_ATTRIBUTES
        try:
            if not self.handlers.listed_at_once(inode):
                _list(self.handlers.directory(inode, start_id), token)
                return
            records = self.direntries.records(entry_of(inode), start_id, bool(fh & WITH_ATTRIBUTES))
            put: Any = pyfuse3.readdir_reply
            if records is not None and not put_records(token, put, self._blank, records, start_id):
                _list(self.handlers.directory(inode, start_id), token)
        except Exception as error:
            raise _fuse_error(error) from None

    async def releasedir(self, fh: FileHandleT) -> None:
        self.requests["other"] += 1

    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        self.requests["open"] += 1
        try:
            handle = self.handlers.open_staged(inode, flags, ctx.pid)
            if handle:
                self._staged.fh = handle
                return self._staged
            opened = await self.handlers.open(inode, flags, ctx.pid, ctx.uid)
        except Exception as error:
            raise _fuse_error(error) from None
        return FileInfo(fh=opened.handle, direct_io=opened.direct, keep_cache=not opened.direct)

    async def read(self, fh: FileHandleT, off: int, size: int) -> Any:
        self.requests["read"] += 1
        try:
            return await self.handlers.read(fh, off, size)
        except Exception as error:
            raise _fuse_error(error) from None

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        self.requests["other"] += 1
        try:
            return await self.handlers.write(fh, bytes(buf), off)
        except Exception as error:
            raise _fuse_error(error) from None

    async def flush(self, fh: FileHandleT) -> None:
        raise FUSEError(errno.ENOSYS)  # the kernel then asks no more: one request less a close

    async def release(self, fh: FileHandleT) -> None:
        self.requests["release"] += 1
        self.handlers.release(fh)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for inode, count in inode_list:
            if inode >= FIRST_VIRTUAL:
                self.handlers.virtual.forget(inode, count)

    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        self.requests["other"] += 1
        with trio.move_on_after(STATFS_S):  # a source that hangs must not hang df, nor those who look whether we live
            self._below = await self.handlers.statvfs()
        below = self._below
        data = pyfuse3.StatvfsData()
        if below is None:
            return data
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(data, field, getattr(below, field))
        data.f_namemax = below.f_namemax
        return data

    async def setattr(
        self, inode: InodeT, attr: EntryAttributes, fields: pyfuse3.SetattrFields, fh: Any, ctx: RequestContext
    ) -> EntryAttributes:
        if inode < FIRST_VIRTUAL:
            raise FUSEError(errno.EROFS)
        return await self.getattr(inode, ctx)  # truncating control before writing to it is no change

    async def getxattr(self, inode: InodeT, name: bytes, ctx: RequestContext) -> bytes:
        raise FUSEError(errno.ENOSYS)  # asked once, then never again

    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[Any]:
        raise FUSEError(errno.ENOSYS)


async def _refuse(*_: object, **__: object) -> Any:
    raise FUSEError(errno.EROFS)


for _name in ("create", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "setxattr", "removexattr"):
    setattr(Operations, _name, _refuse)


class Pyfuse3Channel:
    """The session of this process's mount."""

    name = "pyfuse3"

    def __init__(self) -> None:
        self.operations: Operations | None = None
        self.awake = Awake()

    def mount(self, handlers: Handlers, mountpoint: str, options: set[str]) -> None:
        """Mount; the kernel's requests wait until `serve` runs. Raises OSError or RuntimeError."""
        _tune_loop(self.awake)
        self.operations = Operations(handlers)
        pyfuse3.init(self.operations, mountpoint, {"default_permissions", *options})

    async def serve(self) -> None:
        """Answer requests until the mount goes away or `stop`."""
        await pyfuse3.main(min_tasks=IDLE_TASKS, max_tasks=256)

    def stop(self) -> None:
        """Make `serve` return (call on the loop)."""
        pyfuse3.terminate()

    def close(self, unmount: bool) -> None:
        """Let go of the session; unmounts what is still mounted if `unmount`."""
        pyfuse3.close(unmount=unmount)

    def store(self, inode: int, offset: int, data: Buffer) -> None:
        """FUSE_NOTIFY_STORE; blocks, for worker threads."""
        pyfuse3.notify_store(inode, offset, cast(Any, data))

    def invalidate(self, inode: int) -> None:
        """FUSE_NOTIFY_INVAL_INODE, pages and attributes; blocks, for worker threads."""
        pyfuse3.invalidate_inode(inode)

    def request_counts(self) -> dict[str, int]:
        """Requests so far, by kind."""
        return dict(self.operations.requests) if self.operations else {}
