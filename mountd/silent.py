"""The silent channel: files are opened and closed without a request, and the kernel tells of it behind them.

In: fanotify(7), by a mark on each directory of the data. Out: opens and closes with their process, told to the request
handlers in batches, as the requests of the open channel are. Made by mountd.daemon; mountd.requests asks it whether
OPEN gets its one answer, ENOSYS, after which the kernel sends no OPEN and no RELEASE any more.

Events carry file handles, and no descriptors. So nothing that is told holds a file or the mount, no open of ours waits
for our own answer, and a handle of FUSE is the very number of the inode: which content of which file. A mark on a
directory sees whoever opens a file in it, by whatever mount, in whatever namespace.

An open of the same file by the same process while its event waits is part of that event: of a few milliseconds. So a
close may come that has no open; it is left out. The kernel says that events were lost where more of them wait than it
keeps. Then all files count as closed, and `status` says so.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

import numpy as np
import trio

from mlfs.engine.runner import Runner
from mlfs.tree.manifest import Manifest
from mountd.inodes import FIRST_VIRTUAL

log = logging.getLogger("mlfs.silent")

# linux/fanotify.h. FID events by marks on inodes of FUSE, whose file system has no number of its own, take Linux 6.8.
_FAN_OPEN, _FAN_CLOSE, _FAN_ON_CHILD, _FAN_LOST = 0x20, 0x10, 0x08000000, 0x4000
_CLOEXEC, _NONBLOCK, _UNLIMITED_MARKS, _REPORT_FID = 1, 2, 0x20, 0x200
_MARK_ADD, _MARK_DONT_FOLLOW, _MARK_ONLYDIR = 1, 4, 8
_AT_FDCWD = -100
# struct fanotify_event_metadata: event_len, and mask and pid; fanotify_event_info_fid: 4 bytes and the file system's
# number; struct file_handle: its size and type; of FUSE: the inode's number in two words, and its generation.
_EVENT: Final = Struct("=I4xQ4xi4x8x8xII4x")
_READ_BYTES: Final = 1 << 18
# How long events are collected: the listener's cost is that of waking up. A loader of 10,000 files/s has 30 by then.
BATCH_S: Final = 0.003
# Each mark keeps the inode of its directory in memory.
MOST_DIRECTORIES: Final = 1 << 16
POOL: Final = "inodes"
# A directory that is not there, or may not be looked at, has no files for anybody.
_NOT_THERE = frozenset({errno.ENOENT, errno.ESTALE, errno.EACCES, errno.ENOTDIR})

TELLS: Final = "the kernel tells of opens (fanotify)"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """How this mount hears of reads.

    Attributes:
        name: "open" where files are opened by request, "silent" where they are not. why: the reason, for people.
        lost: how often the kernel had to leave out opens that it should have told of.
    """

    name: str = "open"
    why: str = "the default"
    lost: int = 0


class Told(Protocol):
    """Whoever is told of opens and closes: the request handlers."""

    def told(self, inode: int, pid: int) -> None:
        """A process has opened a file."""

    def told_closed(self, inode: int, is_last: bool) -> None:
        """A reader has closed it; whether nobody has it open now."""


class Silence:
    """Whether this mount is silent, and what the kernel tells of its files if it is. Loop only, but for `_mark`.

    Args:
        mountpoint: absolute path of the mount. left: the descriptor by which the kernel has told the server before this
            one, which has died; -1 where there was none. was_on: what that server has decided.

    Attributes:
        decided: set once it is certain whether OPEN is answered. on: whether it is not.
        why: the reason for that, for people. lost: how often events were lost.
        descriptor: by which the kernel tells, -1 where it does not.
    """

    def __init__(self, manifest: Manifest, mountpoint: bytes, left: int = -1, was_on: bool | None = None) -> None:
        self._manifest, self._mountpoint = manifest, mountpoint
        self.decided = trio.Event()
        self._followed = trio.Event()  # set once jobs are there for which opens can count
        self.on = bool(was_on)
        self.why = TELLS
        self.lost = 0
        self.descriptor = left
        self._own = os.getpid()
        self._told: Told | None = None
        self._open: dict[int, int] = {}  # by inode, how many readers have it open
        self._marked = 0  # entries of the tree that were looked at for directories
        self._buffer = bytearray(_READ_BYTES + _EVENT.size)
        if was_on is not None:
            self.decided.set()
        if left < 0:
            self._followed.set()
            try:
                self.descriptor = _listen()
            except OSError as error:
                self.why = f"the kernel does not tell of opens: {error.strerror}"

    def is_told(self, told: Told) -> None:
        """Whoever is to be told, before anything is."""
        self._told = told

    def jobs_go_on(self) -> None:
        """The jobs of the server before this one are registered again: what has waited for that is told now."""
        self._followed.set()

    async def begin(self, runner: Runner) -> None:
        """Have the kernel tell of opens, once the mount answers. Then OPENs are answered, or not."""
        if self.descriptor >= 0:
            await self._mark_new(runner)
        self.on = self.on or self.why == TELLS
        self.decided.set()

    def give_up(self, why: str) -> None:
        """OPEN is answered. Args: why: for people."""
        self.on, self.why = False, why
        self.decided.set()

    def statistics(self) -> ChannelStatistics:
        """Frozen figures."""
        return ChannelStatistics("silent" if self.on else "open", self.why, self.lost)

    async def run(self, runner: Runner) -> None:
        """Tell of opens and closes for as long as the mount lives."""
        await self.decided.wait()
        await self._followed.wait()
        while self.on and self.descriptor >= 0:
            await trio.lowlevel.wait_readable(self.descriptor)
            await trio.sleep(BATCH_S)
            self.take_in()
            if self._manifest.used > self._marked:
                await self._mark_new(runner)

    def take_in(self) -> None:
        """Tell of all that has happened by now."""
        while self.descriptor >= 0 and self._followed.is_set():
            try:
                size = os.readv(self.descriptor, [memoryview(self._buffer)[:_READ_BYTES]])
            except BlockingIOError:
                return
            self._tell(size)

    def _tell(self, size: int) -> None:
        told, opened, own, at = self._told, self._open, self._own, 0
        assert told is not None
        while at < size:
            length, mask, pid, high, low = _EVENT.unpack_from(self._buffer, at)
            at += length
            if mask & _FAN_LOST:
                self._lose()
                continue
            inode = high << 32 | low
            if pid == own or inode >= FIRST_VIRTUAL:
                continue
            if mask & _FAN_OPEN:
                opened[inode] = opened.get(inode, 0) + 1
                told.told(inode, pid)
            if mask & _FAN_CLOSE and inode in opened:
                left = opened[inode] - 1
                if left:
                    opened[inode] = left
                else:
                    del opened[inode]
                told.told_closed(inode, not left)

    def _lose(self) -> None:
        """Events were lost, so nobody knows which files are open: their pages may go, and who reads is served."""
        self.lost += 1
        log.warning("the kernel has lost some of what it had to tell of opens: this server was too slow")
        opened, self._open = self._open, {}
        for inode, count in opened.items():
            for left in range(count, 0, -1):
                if self._told is not None:
                    self._told.told_closed(inode, left == 1)

    async def _mark_new(self, runner: Runner) -> None:
        """Watch the directories that have come. `why` says if that cannot be."""
        first, self._marked = self._marked, self._manifest.used
        directories = _with_files(self._manifest, first)
        try:
            if len(directories) > MOST_DIRECTORIES:
                raise OSError(errno.ENOSPC, f"the data has more than {MOST_DIRECTORIES:,} directories")
            await runner.run(POOL, self._mark, directories)
        except OSError as error:
            self.why = f"the kernel does not tell of all opens: {error.strerror}"
            log.warning("%s", self.why)

    def _mark(self, directories: Iterable[int]) -> None:
        """In a worker, as the mount is asked for each: watch them. Raises: OSError."""
        for entry in directories:
            path = b"/".join(filter(None, (self._mountpoint.rstrip(b"/"), self._manifest.path(entry))))
            try:
                _watch(self.descriptor, path)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    raise

    def close(self) -> None:
        """Watch nothing any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _with_files(manifest: Manifest, first: int) -> Sequence[int]:
    """The directories of files from that entry on."""
    modes = manifest.mode[first : manifest.used]
    files = first + np.flatnonzero(modes & 0o170000 == 0o100000)
    found: list[int] = np.unique(manifest.parent[files]).tolist()
    return found


def _listen() -> int:
    """A descriptor by which the kernel tells. Raises: OSError."""
    flags = _CLOEXEC | _NONBLOCK | _UNLIMITED_MARKS | _REPORT_FID
    return _checked(_libc.fanotify_init(flags, os.O_RDONLY))


def _watch(fd: int, path: bytes) -> None:
    """Have the kernel tell of opens and closes in a directory. Raises: OSError."""
    how, what = _MARK_ADD | _MARK_DONT_FOLLOW | _MARK_ONLYDIR, _FAN_OPEN | _FAN_CLOSE | _FAN_ON_CHILD
    _checked(_libc.fanotify_mark(fd, how, ctypes.c_uint64(what), _AT_FDCWD, path))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
