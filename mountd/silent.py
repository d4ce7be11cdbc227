"""The silent channel: files are opened and closed without a request, and the kernel tells of it behind them.

In: fanotify(7), by a mark on each directory of the data. Out: opens and closes with their process, told to the request
handlers in batches, as the requests of the open channel are. Made by mountd.daemon; mountd.requests asks it whether
OPEN gets its one answer, ENOSYS, after which the kernel sends no OPEN and no RELEASE any more.

Events carry file handles, and no descriptors. So nothing that is told holds a file or the mount, no open of ours waits
for our own answer, and a handle of FUSE is the very number of the inode: which content of which file. A mark on a
directory sees whoever opens a file in it, by whatever mount, in whatever namespace. Only root is told the process: to
other users all readers but their own process have the number 0, and are followed by what they read alone.

An open of the same file by the same process while its event waits is part of that event: of some milliseconds. So a
close may come that has no open; it is left out. The kernel says that events were lost where more of them wait than it
keeps. Then all files count as closed, and `status` says so.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from mlfs.engine.runner import Runner
from mlfs.tree.manifest import Manifest
from mountd.inodes import FIRST_VIRTUAL, entry_of

log = logging.getLogger("mlfs.silent")

# linux/fanotify.h. FID events by marks on inodes of FUSE, whose file system has no number of its own, take Linux 6.8.
_FAN_OPEN, _FAN_CLOSE, _FAN_ON_CHILD, _FAN_LOST = 0x20, 0x10, 0x08000000, 0x4000
_CLOEXEC, _NONBLOCK, _UNLIMITED_MARKS, _REPORT_FID = 1, 2, 0x20, 0x200
_MARK_ADD, _MARK_DONT_FOLLOW, _MARK_ONLYDIR = 1, 4, 8
_AT_FDCWD = -100
# struct fanotify_event_metadata, of which are length, mask and pid; then fanotify_event_info_fid, with a struct
# file_handle of FUSE: the inode's number in two words, and its generation. All events have this length but one that
# says that others were lost, which has no handle.
_EVENT: Final = np.dtype(
    {
        "names": ["length", "mask", "pid", "high", "low"],
        "formats": ["=u4", "=u8", "=i4", "=u4", "=u4"],
        "offsets": [0, 8, 20, 44, 48],
        "itemsize": 56,
    }
)
_READ_BYTES: Final = 1 << 18
# How long events are collected: the listener's cost is that of waking up. The kernel keeps 16,384 of them, and readers
# of two cores open a thousand files in the longest time.
BATCH_S: Final = 0.01
LONGEST_BATCH_S: Final = 0.04
# Readers that do nothing but read open more files a second. Of others the times of their reads tell how they work.
MANY_A_SECOND: Final = 3000
# The share of the rate of one batch that the next one has at least.
KEPT_RATE: Final = 0.9
# What a server that takes over keeps at most, of what it hears before its jobs go on. The rest waits with the kernel.
MOST_HELD: Final = 64 * _READ_BYTES
# Each mark keeps the inode of its directory in memory.
MOST_DIRECTORIES: Final = 1 << 16
POOL: Final = "inodes"
# A directory that is not there, or may not be looked at, has no files for anybody.
_NOT_THERE = frozenset({errno.ENOENT, errno.ESTALE, errno.EACCES, errno.ENOTDIR})

TELLS: Final = "the kernel tells of opens (fanotify)"
# To whoever has no CAP_SYS_ADMIN in the first user namespace.
TELLS_NO_NAMES: Final = "the kernel tells of opens, but only root is told by which process (fanotify)"
# Reasons for which a mount may have the open channel.
DEFAULT: Final = "the default"
HAS_MOVERS: Final = "it has movers (--movers)"
NO_SIZES: Final = "no file of the source says how long it is"
NO_NAMES: Final = "only root is told which process opens a file, and orders are inferred by that (--infer on)"

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """How this mount hears of reads.

    Attributes:
        name: "open" where files are opened by request, "silent" where they are not. why: the reason, for people.
        lost: how often the kernel had to leave out opens that it should have told of.
    """

    name: str = "open"
    why: str = DEFAULT
    lost: int = 0


class Told(Protocol):
    """Whoever is told of opens and closes: the request handlers."""

    @property
    def most_untold(self) -> int:
        """How many opens may wait for each other, as nothing hinges on one of them; 0: each is told soon."""

    def meets(self, pids: Collection[int]) -> None:
        """These processes have opened files: who they are can be asked only while they live."""

    def told(
        self, entries: NDArray[np.int64], pids: NDArray[np.int32], closed: Sequence[int], free: Sequence[int]
    ) -> None:
        """Files were opened and closed in a moment.

        Args:
            entries: those of opened files, in their order, shape (n,). pids: who has opened each, shape (n,).
            closed: entries of files that were closed, some of them opened in that moment.
            free: inodes of those that nobody has open now.
        """


class Silence:
    """Whether this mount is silent, and what the kernel tells of its files if it is. Loop only, but for `_mark`.

    Args:
        mountpoint: absolute path of the mount. left: the descriptor by which the kernel has told the server before this
            one, which has died; -1 where there was none. found: what that server has decided. servers: the processes
            of that one and those before it: what they have opened is nobody's read, either.

    Attributes:
        decided: set once it is certain whether OPEN is answered. on: whether it is not.
        may_be: whether it is not, or that is not certain.
        why: the reason for that, for people. lost: how often events were lost.
        descriptor: by which the kernel tells, -1 where it does not.
    """

    def __init__(
        self,
        manifest: Manifest,
        mountpoint: bytes,
        left: int = -1,
        found: ChannelStatistics | None = None,
        servers: Collection[int] = (),
    ) -> None:
        self._manifest, self._mountpoint = manifest, mountpoint
        self.decided = trio.Event()
        self._followed = trio.Event()  # set once jobs are there for which opens can count
        self.on = found is not None
        self.why = TELLS
        self.lost = 0
        self.descriptor = left
        self._own = {os.getpid(), *servers}
        self._told: Told | None = None
        self._held: list[NDArray[Any] | None] = []  # events to be told once jobs go on; None: some were lost
        self._held_bytes = 0
        self._open: dict[int, int] = {}  # by inode, how many readers have it open
        self._marked = 0  # entries of the tree that were looked at for directories
        self._heard_of = 0  # events so far
        self._buffer = bytearray(_READ_BYTES)
        if found is not None:
            self.why = found.why
            self.decided.set()
        if left < 0:
            self._followed.set()
            try:
                self.descriptor, self.why = _listen()
            except OSError as error:
                self.why = f"the kernel does not tell of opens: {error.strerror}"

    def is_told(self, told: Told) -> None:
        """Whoever is to be told, before anything is."""
        self._told = told

    def jobs_go_on(self) -> None:
        """The jobs of the server before this one are registered again: what has waited for that is told now."""
        self._followed.set()
        held, self._held = self._held, []
        for events in held:
            self._tell(events)

    async def begin(self, runner: Runner) -> None:
        """Have the kernel tell of opens, once the mount answers. Then OPENs are answered, or not."""
        if self.descriptor >= 0:
            await self._mark_new(runner)
        self.on = self.on or self.why in (TELLS, TELLS_NO_NAMES)
        self.decided.set()

    def give_up(self, why: str) -> None:
        """OPEN is answered. Args: why: for people."""
        self.on, self.why = False, why
        self.close()
        self.decided.set()

    @property
    def may_be(self) -> bool:
        return self.on or not self.decided.is_set()

    @property
    def has_names(self) -> bool:
        """Whether the kernel says which process opens a file."""
        return self.why != TELLS_NO_NAMES

    def statistics(self) -> ChannelStatistics:
        """Frozen figures."""
        return ChannelStatistics("silent" if self.on else "open", self.why, self.lost)

    async def run(self, runner: Runner) -> None:
        """Tell of opens and closes for as long as the mount lives."""
        await self.decided.wait()
        has_more, batch_s, a_second = False, BATCH_S, 0.0
        while self.on and self.descriptor >= 0:
            if self._held_bytes > MOST_HELD:
                await self._followed.wait()
            if not has_more:  # else it has, by then: asking costs a pass of the loop
                await trio.lowlevel.wait_readable(self.descriptor)
            await trio.sleep(batch_s)
            before = self._heard_of
            has_more = self.take_in()
            # A busy machine stops readers for some milliseconds: they open no fewer files after that.
            a_second = max((self._heard_of - before) / batch_s, KEPT_RATE * a_second)
            batch_s = self._collects_s(a_second)
            if self._manifest.used > self._marked:
                await self._mark_new(runner)

    def _collects_s(self, a_second: float) -> float:
        """How long the next opens are collected. Args: a_second: so many there were."""
        if a_second < MANY_A_SECOND or self._told is None:
            return BATCH_S
        return max(BATCH_S, min(LONGEST_BATCH_S, self._told.most_untold / a_second))

    def take_in(self) -> bool:
        """Hear of all that has happened by now, and tell of it; whether anything has."""
        has_heard = False
        while self.descriptor >= 0 and (self._followed.is_set() or self._held_bytes <= MOST_HELD):
            try:
                size = os.readv(self.descriptor, [self._buffer])
            except BlockingIOError:
                self._own = {os.getpid()}  # the kernel may give the numbers of those before to any process
                break
            has_heard = True
            self._heard_of += size // _EVENT.itemsize
            for events in self._heard(size):
                if self._followed.is_set():
                    self._tell(events)
                elif events is None:
                    self._held.append(None)
                elif len(events):
                    self._held.append(events.copy())
                    self._held_bytes += events.nbytes
                    assert self._told is not None
                    self._told.meets(set(events["pid"].tolist()))
        return has_heard

    def _heard(self, size: int) -> Iterator[NDArray[Any] | None]:
        """Returns the opens and closes of readers, of what was read just now; None: some are lost."""
        at = 0
        while at < size:
            events = np.frombuffer(self._buffer, _EVENT, (size - at) // _EVENT.itemsize, at)
            others = np.flatnonzero(events["length"] != _EVENT.itemsize)
            events = events[: others[0]] if len(others) else events
            at += events.nbytes
            of_data = events["high"] < FIRST_VIRTUAL >> 32
            for pid in self._own:
                of_data &= events["pid"] != pid
            yield events[of_data]
            if at < size:
                length, mask = np.frombuffer(self._buffer, np.uint32, 3, at)[::2].tolist()
                at += length
                if mask & _FAN_LOST:
                    yield None

    def _tell(self, events: NDArray[Any] | None) -> None:
        assert self._told is not None
        if events is None:
            self._lose()
            return
        is_open, gone = self._open, list[int]()
        inodes, masks = events["high"].astype(np.int64) << 32 | events["low"], events["mask"]
        entries, is_opening = events["low"].astype(np.int64) - 1, masks & _FAN_OPEN != 0
        # Most files are opened and closed within one event. The others are counted.
        is_both = masks & (_FAN_OPEN | _FAN_CLOSE) == _FAN_OPEN | _FAN_CLOSE
        both, closed = inodes[is_both].tolist(), entries[is_both].tolist()
        for at in np.flatnonzero(~is_both).tolist():
            inode = inodes.item(at)
            if is_opening[at]:
                is_open[inode] = is_open.get(inode, 0) + 1
            elif inode in is_open:
                closed.append(entries.item(at))
                is_open[inode] -= 1
                if not is_open[inode]:
                    del is_open[inode]
                    gone.append(inode)
        free = [inode for inode in both if inode not in is_open] if is_open else both
        self._told.told(entries[is_opening], events["pid"][is_opening], closed, free + gone)

    def _lose(self) -> None:
        """Events were lost, so nobody knows which files are open: their pages may go, and who reads is served."""
        self.lost += 1
        log.warning("the kernel has lost some of what it had to tell of opens: this server was too slow")
        free, self._open = self._open, {}
        closed = [entry_of(inode) for inode, count in free.items() for _ in range(count)]
        if self._told is not None:
            self._told.told(np.empty(0, np.int64), np.empty(0, np.int32), closed, list(free))

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


def _listen() -> tuple[int, str]:
    """A descriptor by which the kernel tells, and what it tells. Raises: OSError."""
    flags = _CLOEXEC | _NONBLOCK | _REPORT_FID
    with suppress(PermissionError):
        return _checked(_libc.fanotify_init(flags | _UNLIMITED_MARKS, os.O_RDONLY)), TELLS
    return _checked(_libc.fanotify_init(flags, os.O_RDONLY)), TELLS_NO_NAMES


def _watch(fd: int, path: bytes) -> None:
    """Have the kernel tell of opens and closes in a directory. Raises: OSError."""
    how, what = _MARK_ADD | _MARK_DONT_FOLLOW | _MARK_ONLYDIR, _FAN_OPEN | _FAN_CLOSE | _FAN_ON_CHILD
    _checked(_libc.fanotify_mark(fd, how, ctypes.c_uint64(what), _AT_FDCWD, path))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
