"""Reads the kernel's requests, has the handlers answer them, and writes the replies.

In: the FUSE descriptor of a session that a channel has set up, the handlers. Out: replies, and numbers of requests by
kind. Called by the channel, in trio's loop. Nearly all requests are answered at once, one after the other, without a
task or a coroutine of their own: what an open of a staged sample costs is two reads of the descriptor, two writes and
what the handlers do. A request that has to wait (for a sample, for a command) is waited for by the task that read it,
and another task goes on reading.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import trio

from mlfs.engine.block_reads import Spent
from mlfs.engine.pagecache import Buffer
from mountd import wire
from mountd.dirents import DESCRIBED_AT_ONCE, Direntries
from mountd.handlers import Attributes, Handlers, Replies
from mountd.inodes import FIRST_CHANGED, FIRST_VIRTUAL, entry_of, handle_without_open, is_passed_on
from mountd.left_behind import NOTED_BYTES, Asked, Suspects, UnderWay
from mountd.misses import NEGATIVE_S
from mountd.onlookers import Reader
from mountd.poll_wait import PollWait
from mountd.silent import Silence
from mountd.wire import COMMAND_CALL, COMMAND_MASK

log = logging.getLogger("mlfs.channel")

# How long the kernel may keep names and attributes: the data set is frozen while it is mounted.
FROZEN_S = 365 * 86400
# `df` waits so long for a source that hangs, then gets the last answer.
STATFS_S = 1.0
# The status waits so long for opens that workers have answered to be counted: many times what the loop takes for that.
EARLY_S = 0.1
# A bit in the handle of a directory: its listing gives attributes, so that the kernel knows the files afterwards.
WITH_ATTRIBUTES = 1 << 62
# Requests that are read in a row before the loop looks whether anything else is to be done.
AT_ONCE = 32
# Most RELEASEs that wait for their answer: the kernel has only some twelve requests under way that nobody waits for.
MOST_RELEASES = 8
# Tasks that are kept for later: to make and end one for each demand read takes longer than the read's other work.
IDLE_TASKS = 16
# Requests that wait at once. Further ones stay with the kernel until one of these is answered.
MOST_TASKS = 256
# How soon the loop hears of a worker's end while it does not wait for requests.
COLLECT_S = 0.002
# How long a request of which a server may have died is answered alone. It may wait for what another one holds locked,
# or for a source that hangs; all readers wait meanwhile.
ALONE_S = 1.0
# Errors of a read from the descriptor that say: the request was interrupted before it could be read.
NO_REQUEST = frozenset({errno.EINTR, errno.ENOENT})

T = TypeVar("T")
Waiting = Coroutine[Any, Any, None]


class Requests:
    """The requests of one mount.

    Args:
        generation: what tells the mount's inodes from those of an earlier or later mount with the same numbers.
        silence: whether files are opened without a request; None: they are not.
        under_way: keeps requests until they are answered; None: the kernel does.

    Attributes:
        counts: requests so far, by kind.
        early: handles of opens that a worker has answered and the loop has not finished: their RELEASE has to wait.
        ranges: READs that a worker answers, until the loop has finished them: the same holds of their handles.
    """

    def __init__(
        self,
        handlers: Handlers,
        wait: PollWait,
        generation: int,
        silence: Silence | None = None,
        under_way: UnderWay | None = None,
    ) -> None:
        self.handlers = handlers
        self._silence = silence
        self._under_way = under_way
        self._suspects: Suspects | None = None
        self._open_kind = wire.OPEN  # of requests that open, and that the handlers answer
        self._reading: _Reading | None = None  # the last READ that a worker answers
        self._generation = generation
        self.counts = {"lookup": 0, "getattr": 0, "open": 0, "read": 0, "release": 0, "readdir": 0, "other": 0}
        self._wait = wait
        self._lock = TurnLock(wait)
        self._past = handlers.manifest.past  # true once a file has changed: what is forgotten of such is to be told
        self._direntries = Direntries(handlers.manifest, FROZEN_S, generation, handlers.looks)
        self._below: os.statvfs_result | None = None
        self._buffer = bytearray(wire.LONGEST_REQUEST_BYTES)
        self._buffers: list[bytearray | memoryview] = [self._buffer]
        self._readv: Callable[[int, list[bytearray | memoryview]], int] = os.readv
        if under_way is not None:
            view = memoryview(self._buffer)
            self._buffers, self._readv = [view[:NOTED_BYTES], view[NOTED_BYTES:]], under_way.readv
        self.early: set[int] = set()
        self.ranges: set[_RangeReading] = set()
        self._noted = trio.Event()
        self._releases: list[tuple[int, int]] = []
        self._fd = -1
        self._tasks = self._idle = 0
        self._scope = trio.CancelScope()
        self._kinds: dict[int, Callable[[int, int, int, int], Waiting | None]] = {
            wire.LOOKUP: self._lookup,
            wire.FORGET: self._forget,
            wire.BATCH_FORGET: self._forget_many,
            wire.GETATTR: self._getattr,
            wire.SETATTR: self._setattr,
            wire.READLINK: self._readlink,
            wire.OPENDIR: self._opendir,
            wire.READDIR: self._readdir,
            wire.READDIRPLUS: self._readdir,
            wire.RELEASEDIR: self._nothing_to_do,
            wire.GETXATTR: self._getxattr,
            wire.LISTXATTR: self._listxattr,
            wire.STATFS: self._statfs,
            wire.READ: self._read,
            wire.WRITE: self._write,
            wire.LSEEK: self._lseek,
            wire.IOCTL: self._ioctl,
            wire.INTERRUPT: self._ignore,  # nothing that is answered takes longer for being interrupted
            wire.DESTROY: self._nothing_to_do,
        }
        modifying = (
            wire.CREATE, wire.MKNOD, wire.MKDIR, wire.UNLINK, wire.RMDIR, wire.SYMLINK, wire.RENAME, wire.RENAME2,
            wire.LINK, wire.SETXATTR, wire.REMOVEXATTR, wire.TMPFILE,
        )  # fmt: skip
        self._kinds.update(dict.fromkeys(modifying, self._refuse))
        if silence is not None:
            self._open_kind = 0  # which is none
            self._kinds[wire.OPEN] = self._open_without_answer

    def so_far(self) -> dict[str, int]:
        """Requests so far, by kind."""
        return dict(self.counts)

    async def serve(self, fd: int, suspects: Suspects | None = None) -> None:
        """Answer the requests of the descriptor until its mount is gone.

        Args:
            suspects: judges those that another server has read, and has died over; None: this is the first one.
        """
        os.set_blocking(fd, False)
        self._fd = fd
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            if suspects is not None:
                self._suspects = suspects
                await self._answer_again(suspects, nursery)
            self._start_task(nursery)

    async def _answer_again(self, suspects: Suspects, nursery: trio.Nursery) -> None:
        """Answer what was read and not answered: first what may have been the death of a server, each alone."""
        for _ in range(2):  # after two passes of the scheduler all tasks of the mount run
            await trio.lowlevel.checkpoint()
        given, others = self._given_again()
        headers = [wire.REQUEST.unpack_from(request) for request in given.values()]
        self.handlers.given_again(
            [
                (thread, kind == wire.READ)
                for kind, _, inode, _, thread, _ in headers
                if kind in (wire.OPEN, wire.READ) and inode < FIRST_VIRTUAL
            ]
        )
        alone, guilty = suspects.given_again(given)
        for unique in guilty:
            asked = _asked(given.pop(unique))
            suspects.refuse(asked)
            log.error("servers have died of a request of kind %d: it is answered with EIO", asked.kind)
            self._refuse_as_before(unique, asked)
        async with trio.open_nursery() as beside:
            beside.start_soon(self._help_workers, others, nursery)
            for unique in alone:
                suspects.begins(unique)
                over = trio.Event()
                nursery.start_soon(self._answer_alone, given.pop(unique), over)
                with trio.move_on_after(ALONE_S):
                    await over.wait()
                suspects.is_answered()
            beside.cancel_scope.cancel()
        suspects.are_judged.set()
        for request in (*given.values(), *others):
            waiting = self._answer_kept(request)
            if waiting is not None:
                nursery.start_soon(_awaited, waiting)
        self._answer_releases()

    def _given_again(self) -> tuple[dict[int, bytes], list[bytes]]:
        """The requests that the server before this one has read and not answered, by number; others that came first."""
        others: list[bytes] = []
        if self._under_way is not None:
            given = self._under_way.left()
            for unique, begun in [*given.items()]:
                if wire.U32.unpack_from(begun)[0] > len(begun):  # a command, of which the rest is lost
                    del given[unique]
                    self._write_reply(wire.error(unique, errno.ESTALE))
            return given, others
        given = {}
        os.write(self._fd, wire.RESEND)
        # The kernel puts forgotten inodes among them, and goes on with new ones.
        while len(others) < MOST_TASKS and (request := self._next_request()) is not None:
            kind, unique, *_ = wire.REQUEST.unpack_from(request)
            if unique & wire.GIVEN_AGAIN:
                given[unique] = request
            else:
                others.append(request)
                if kind not in wire.UNANSWERED:
                    break
        return given, others

    def _next_request(self) -> bytes | None:
        """A request, without waiting. None: there is none; or the mount is gone, which the next wait tells."""
        while True:
            try:
                # The word behind the header of a request without a body, such as STATFS, is any.
                return bytes(self._buffer[: max(self._readv(self._fd, self._buffers), wire.REQUEST.size)])
            except OSError as error:
                if error.errno not in NO_REQUEST:
                    return None

    async def _help_workers(self, others: list[bytes], nursery: trio.Nursery) -> None:
        """Deal with what workers have finished, which else is done by whoever waits for the next request; and answer
        what they ask the kernel for: who finds that a file has changed looks its name up. All others' wait."""
        while True:
            self._wait.calls.collect()
            while len(others) < MOST_TASKS and (request := self._next_request()) is not None:
                thread = wire.REQUEST.unpack_from(request)[4]
                if not os.path.exists(f"/proc/self/task/{thread}"):
                    others.append(request)
                elif (waiting := self._answer()) is not None:
                    nursery.start_soon(_awaited, waiting)
            await trio.sleep(COLLECT_S)

    async def _answer_alone(self, request: bytes, over: trio.Event) -> None:
        """Answer a request that was read before. Args: over: set when nothing is left to do of it."""
        kind, unique, inode, _, pid, word = wire.REQUEST.unpack_from(request)
        if kind != self._open_kind or inode >= FIRST_VIRTUAL:
            self._reading = None
            waiting, reading = self._answer_kept(request), self._reading
            if waiting is not None:
                await waiting
            while reading is not None and not reading.is_over:
                await trio.sleep(COLLECT_S)
            self._answer_releases()
            over.set()
            return
        answered = _Answered(self, over)
        try:
            handle = self.handlers.open_staged(inode, word & 0xFFFFFFFF, pid)
            if handle:
                self.opened(unique, handle, wire.KEEP_CACHE)
            elif self._is_refused(unique, kind, inode):
                pass
            elif self.handlers.open_soon(inode, pid, unique, answered):
                await over.wait()
        except Exception as error:
            self.failed(unique, error)
        over.set()

    def _answer_kept(self, request: bytes) -> Waiting | None:
        """Answer a request that was read before."""
        self._buffer[: len(request)] = request
        return self._answer()

    def _start_task(self, nursery: trio.Nursery) -> None:
        self._tasks += 1
        nursery.start_soon(self._serve, nursery)

    async def _serve(self, nursery: trio.Nursery) -> None:
        while self._idle <= IDLE_TASKS:
            self._idle += 1
            async with self._lock:
                waiting = await self._next()
            self._idle -= 1
            if waiting is None:
                self._scope.cancel()
                return
            if not self._idle and self._tasks < MOST_TASKS:
                self._start_task(nursery)
            await waiting
        self._tasks -= 1

    async def _next(self) -> Waiting | None:
        """Answer requests until one has to wait: what is to be awaited for it. None when the mount is gone."""
        wait, fd, buffers, readv, served = self._wait, self._fd, self._buffers, self._readv, 0
        try:
            while True:
                await wait(fd, served)
                served = 0
                while served < AT_ONCE:
                    try:
                        readv(fd, buffers)
                    except BlockingIOError:
                        break
                    except OSError as error:
                        if error.errno == errno.ENODEV:
                            return None
                        if error.errno not in NO_REQUEST:
                            raise
                        continue
                    waiting = self._answer()
                    if waiting is not None:
                        self._answer_releases()
                        return waiting
                    served += 1
                    if self._releases:
                        if len(self._releases) < MOST_RELEASES and wait.ready(0):
                            continue
                        self._answer_releases()
                    if not wait.arrived():
                        break
        finally:
            wait.stops()

    def _answer_releases(self) -> None:
        """Answer RELEASEs, for which nobody waits, when nobody waits for another answer."""
        releases, self._releases = self._releases, []
        for unique, handle in releases:
            if handle in self.early or (self.ranges and self._is_read(handle)):
                self._releases.append((unique, handle))
                continue
            try:
                self.handlers.release(handle)
                self._write_reply(wire.REPLY.pack(wire.REPLY.size, 0, unique))
            except Exception as error:
                self.failed(unique, error)

    def _is_read(self, handle: int) -> bool:
        return any(one.handle == handle for one in self.ranges)

    def _answer(self) -> Waiting | None:
        """Answer the request in the buffer, or say what is to be awaited for that."""
        kind, unique, inode, uid, pid, word = wire.REQUEST.unpack_from(self._buffer)
        try:
            if kind == wire.RELEASE:
                self.counts["release"] += 1
                self._releases.append((unique, word))
                return None
            if kind == self._open_kind:
                self.counts["open"] += 1
                flags = word & 0xFFFFFFFF
                handle = self.handlers.open_staged(inode, flags, pid)
                if handle:
                    self.opened(unique, handle, wire.KEEP_CACHE)
                elif self._is_refused(unique, kind, inode):
                    return None
                elif self.handlers.open_soon(inode, pid, unique, self):
                    self._wait.calm()
                else:
                    return self._open(unique, inode, flags, pid, uid, wire.U32.unpack_from(self._buffer, wire.GID)[0])
                return None
            answer = self._kinds.get(kind)
            if answer is None:
                self.counts["other"] += 1
                self._write_reply(wire.error(unique, errno.ENOSYS))
                return None
            return answer(unique, inode, uid, pid)
        except Exception as error:
            self.failed(unique, error)
            return None

    def _write_reply(self, data: bytes) -> None:
        try:
            os.write(self._fd, data)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # who asked is gone, or the mount
                raise
        if self._under_way is not None:
            self._under_way.answered(wire.REPLY.unpack_from(data)[2])

    def _is_refused(self, unique: int, kind: int, inode: int, offset: int = 0) -> bool:
        """Answer a request for that at which servers crashed a moment ago. Returns whether this is one."""
        if self._suspects is None or not self._suspects.refused:
            return False
        asked = Asked(kind, inode, offset)
        if not self._suspects.refuses(asked):
            return False
        self._refuse_as_before(unique, asked)
        return True

    def _refuse_as_before(self, unique: int, asked: Asked) -> None:
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        if asked.kind in (wire.OPEN, wire.READ) and asked.inode < FIRST_VIRTUAL:
            self.handlers.failures.note(entry_of(asked.inode), error)
        self.failed(unique, error)

    def failed(self, unique: int, error: Exception) -> None:
        """An exception that is no OSError is a bug: it costs this request EIO, never the mount."""
        number = errno.EIO
        if isinstance(error, OSError):
            number = wire.answered(error.errno or errno.EIO)
        else:
            log.error("a request failed in an unforeseen way", exc_info=error)
        self._write_reply(wire.error(unique, number))

    # -- names and attributes

    def _attr(self, inode: int) -> tuple[bytes, int]:
        """struct fuse_attr and how long the kernel may keep it, in seconds."""
        a: Attributes = self.handlers.attributes(inode)
        found = wire.attr(*a[:-1])
        return found, FROZEN_S if a.frozen else 0

    def _lookup(self, unique: int, parent: int, uid: int, pid: int) -> Waiting | None:
        self.counts["lookup"] += 1
        length = wire.U32.unpack_from(self._buffer)[0]
        inode = self.handlers.lookup(parent, bytes(self._buffer[wire.BODY : length]).partition(b"\0")[0])
        if inode:
            if self.handlers.is_unseen(inode):
                return self._lookup_soon(unique, inode)
            attributes, valid_s = self._attr(inode)
        else:
            attributes, valid_s = wire.NO_ATTRIBUTES, NEGATIVE_S if parent < FIRST_VIRTUAL else 0
        self._write_reply(wire.reply(unique, wire.entry(inode, self._generation, valid_s, attributes)))
        return None

    async def _lookup_soon(self, unique: int, inode: int) -> None:
        try:
            inode = await self.handlers.look(inode)
            attributes, valid_s = self._attr(inode)
        except Exception as error:
            self.failed(unique, error)
            return
        self._write_reply(wire.reply(unique, wire.entry(inode, self._generation, valid_s, attributes)))

    def _forget(self, unique: int, inode: int, uid: int, pid: int) -> None:
        if inode >= FIRST_CHANGED or self._past:
            self.handlers.forget(inode, wire.U64.unpack_from(self._buffer, wire.BODY)[0])

    def _forget_many(self, unique: int, inode: int, uid: int, pid: int) -> None:
        count = wire.U32.unpack_from(self._buffer, wire.BODY)[0]
        for number in range(count):
            one, times = wire.PAIR.unpack_from(self._buffer, wire.BODY + 8 + number * wire.PAIR.size)
            if one >= FIRST_CHANGED or self._past:
                self.handlers.forget(one, times)

    def _getattr(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        self.counts["getattr"] += 1
        if inode >= FIRST_VIRTUAL and self._is_silent():
            by_handle = wire.U32.unpack_from(self._buffer, wire.BODY)[0] & wire.GETATTR_FH
            if by_handle:
                return self._getattr_of_open(unique, inode, Reader(uid, self._gid(), pid))
        attributes, valid_s = self._attr(inode)
        self._write_reply(wire.attributes_reply(unique, valid_s, attributes))
        return None

    async def _getattr_of_open(self, unique: int, inode: int, reader: Reader) -> None:
        """Somebody reads a virtual file, which he has opened without a request: the kernel asks how long it is."""
        try:
            if self._silence is not None:
                self._silence.take_in()
            await self.handlers.open_virtual(inode, reader)
            attributes, valid_s = self._attr(inode)
            self._write_reply(wire.attributes_reply(unique, valid_s, attributes))
        except Exception as error:
            self.failed(unique, error)

    def _gid(self) -> int:
        return int(wire.U32.unpack_from(self._buffer, wire.GID)[0])

    def _setattr(self, unique: int, inode: int, uid: int, pid: int) -> None:
        if inode < FIRST_VIRTUAL:
            self._refuse(unique, inode, uid, pid)
        else:
            self._getattr(unique, inode, uid, pid)  # truncating control before writing to it is no change

    def _readlink(self, unique: int, inode: int, uid: int, pid: int) -> None:
        self.counts["other"] += 1
        self._write_reply(wire.reply(unique, self.handlers.readlink(inode)))

    # -- directories

    def _opendir(self, unique: int, inode: int, uid: int, pid: int) -> None:
        self.counts["other"] += 1
        self.handlers.check_directory(inode)
        handle = inode | WITH_ATTRIBUTES if self.handlers.is_priming(pid) else inode
        self.opened(unique, handle, 0)

    def _readdir(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        """READDIRPLUS: libfuse asks the kernel for nothing else."""
        self.counts["readdir"] += 1
        handle, start, size = wire.READ_IN.unpack_from(self._buffer, wire.BODY)
        if not self.handlers.listed_at_once(inode):
            self._write_reply(wire.reply(unique, *self._listed(inode, start, size)))
            return None
        start = self.handlers.place(inode, start)
        if handle & WITH_ATTRIBUTES and self.handlers.looks.needed:
            return self._readdir_soon(unique, inode, start, size)
        self._list(unique, inode, start, size, bool(handle & WITH_ATTRIBUTES))
        return None

    async def _readdir_soon(self, unique: int, inode: int, start: int, size: int) -> None:
        try:
            await self.handlers.look_at_children(inode, start, DESCRIBED_AT_ONCE)
            self._list(unique, inode, start, size, attributes=True)
        except Exception as error:
            self.failed(unique, error)

    def _list(self, unique: int, inode: int, start: int, size: int, attributes: bool) -> None:
        records = self._direntries.records(entry_of(inode), start, attributes)
        self._write_reply(wire.reply(unique, records.some(start, size) if records is not None else b""))

    def _listed(self, inode: int, start: int, size_bytes: int) -> list[bytes]:
        """Entries one by one: of the control directory, and of directories with device nodes in them."""
        listed: list[bytes] = []
        for name, following, child, a in self.handlers.directory(inode, start):
            entry = wire.entry(child, self._generation, FROZEN_S if a.frozen else 0, wire.attr(*a[:-1]))
            if self.handlers.is_unseen(child):
                entry = wire.UNTOLD
            listed.append(wire.direntplus(name, following, a.number, a.mode, entry))
            size_bytes -= len(listed[-1])
            if size_bytes < 0:
                return listed[:-1]
        return listed

    def _nothing_to_do(self, unique: int, inode: int, uid: int, pid: int) -> None:
        self.counts["other"] += 1
        self._write_reply(wire.error(unique, 0))

    # -- files

    def _is_silent(self) -> bool:
        """Whether files are opened without a request."""
        return self._silence is not None and self._silence.on

    def _open_without_answer(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        """One of the first OPENs: once it has this answer, the kernel sends no other one, and no RELEASE."""
        self.counts["open"] += 1
        if self._is_silent():
            self._write_reply(wire.error(unique, errno.ENOSYS))
            return None
        flags = wire.U32.unpack_from(self._buffer, wire.BODY)[0]
        return self._open_once_decided(unique, inode, flags, pid, uid, self._gid())

    async def _open_once_decided(self, unique: int, inode: int, flags: int, pid: int, uid: int, gid: int) -> None:
        assert self._silence is not None
        await self._silence.decided.wait()
        if self._silence.on:
            self._write_reply(wire.error(unique, errno.ENOSYS))
            return
        self._open_kind = wire.OPEN
        try:
            handle = self.handlers.open_staged(inode, flags, pid)
            if handle:
                self.opened(unique, handle, wire.KEEP_CACHE)
            elif not self.handlers.open_soon(inode, pid, unique, self):
                await self._open(unique, inode, flags, pid, uid, gid)
        except Exception as error:
            self.failed(unique, error)

    async def _open(self, unique: int, inode: int, flags: int, pid: int, uid: int, gid: int) -> None:
        try:
            if inode >= FIRST_VIRTUAL:
                await self._all_noted()
            opened = await self.handlers.open(inode, flags, pid, uid, gid)
            self.opened(unique, opened.handle, wire.DIRECT_IO if opened.direct else wire.KEEP_CACHE)
        except Exception as error:
            self.failed(unique, error)

    def opens(self, unique: int, handle: int) -> None:
        """From any thread: answer an OPEN of which the loop has something left to do."""
        self.early.add(handle)  # before the reader can close it
        self.opened(unique, handle, wire.DIRECT_IO if is_passed_on(handle) else wire.KEEP_CACHE)

    def noted_before(self, handle: int) -> None:
        """From any thread: the loop had nothing left to do of an OPEN that is answered now."""
        self.early.discard(handle)

    async def _all_noted(self) -> None:
        """Before the status is made: a read that its reader has had is to be counted in it."""
        with trio.move_on_after(EARLY_S):
            while self.early or any(one.is_over for one in self.ranges):
                await self._noted.wait()

    def noted(self, handle: int) -> None:
        """The loop has nothing left to do of an OPEN: its RELEASE may be answered."""
        self.early.discard(handle)
        self._one_noted()

    def range_noted(self, reading: _RangeReading) -> None:
        """The same of a READ."""
        self.ranges.discard(reading)
        self._one_noted()

    def _one_noted(self) -> None:
        if self._noted.statistics().tasks_waiting:
            self._noted.set()
            self._noted = trio.Event()
        if self._releases:
            self._answer_releases()

    def opened(self, unique: int, handle: int, how: int) -> None:
        """Answer an OPEN or OPENDIR; from any thread."""
        self._write_reply(wire.OPENED.pack(wire.OPENED.size, 0, unique, handle, how, 0))

    def _read(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        self.counts["read"] += 1
        handle, offset, size = wire.READ_IN.unpack_from(self._buffer, wire.BODY)
        if self._is_refused(unique, wire.READ, inode, offset):
            return None
        if self._is_silent():
            handle = handle_without_open(inode)
            reading = _Reading(self, unique)
            if self.handlers.read_whole(inode, offset, size, reading):
                self._reading = reading
                self._wait.calm()
                return None
        data = self.handlers.read_at_once(inode, handle, offset, size, pid)
        if data is None:
            asked = _RangeReading(self, unique, inode, handle, offset, size)
            self.ranges.add(asked)
            if self.handlers.begin_read(inode, handle, offset, size, self._is_silent(), asked):
                self._reading = asked
                self._wait.calm()
                return None
            self.ranges.discard(asked)
            return self.read_soon(unique, inode, handle, offset, size)
        self.give(unique, data)
        return None

    async def read_soon(
        self, unique: int, inode: int, handle: int, offset: int, size: int, spent: Spent | None = None
    ) -> None:  # fmt: skip
        """Answer a READ. Args: spent: of tries at the source, see `mlfs.engine.range_reads`."""
        try:
            data = await self.handlers.read(inode, handle, offset, size, self._is_silent(), spent)
            self.give(unique, data)
        except Exception as error:
            self.failed(unique, error)

    def give(self, unique: int, data: Buffer) -> None:
        """Answer a READ; from any thread."""
        try:
            os.writev(self._fd, [wire.REPLY.pack(wire.REPLY.size + len(data), 0, unique), data])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # who asked is gone, or the mount
                raise
        if self._under_way is not None:
            self._under_way.answered(unique)

    def _with_handle(self, inode: int) -> tuple[int, int, int]:
        """The handle, offset and size of a request about an open file."""
        handle, offset, size = wire.READ_IN.unpack_from(self._buffer, wire.BODY)
        return handle_without_open(inode) if self._is_silent() else handle, offset, size

    def _lseek(self, unique: int, inode: int, uid: int, pid: int) -> Waiting:
        """SEEK_DATA and SEEK_HOLE; the kernel does all other seeks by itself."""
        self.counts["other"] += 1
        asked = self.handlers.seek(inode, *self._with_handle(inode))
        return self._soon(unique, asked, lambda found: wire.reply(unique, wire.U64.pack(found)))

    def _write(self, unique: int, inode: int, uid: int, pid: int) -> Waiting:
        self.counts["other"] += 1
        handle, offset, size = self._with_handle(inode)
        data = bytes(self._buffer[wire.WRITE_DATA : wire.WRITE_DATA + size])
        return self._soon(unique, self.handlers.write(handle, data, offset), lambda done: wire.written(unique, done))

    def _ioctl(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        """A command from where the control file cannot be written. All other calls are refused: Python makes one of
        each file that it opens."""
        self.counts["other"] += 1
        if inode >= FIRST_VIRTUAL:
            _, _, kind, _, size, _ = wire.IOCTL_IN.unpack_from(self._buffer, wire.BODY)
            handle = self._with_handle(inode)[0]
            if kind & COMMAND_MASK == COMMAND_CALL:
                data = bytes(self._buffer[wire.IOCTL_DATA : wire.IOCTL_DATA + size])
                asked = self.handlers.command(handle, uid, data)
                return self._soon(unique, asked, lambda _: wire.ioctl_done(unique))
        self._write_reply(wire.error(unique, errno.ENOSYS))
        return None

    async def _soon(self, unique: int, asked: Coroutine[Any, Any, T], reply: Callable[[T], bytes]) -> None:
        try:
            self._write_reply(reply(await asked))
        except Exception as error:
            self.failed(unique, error)

    # -- the rest

    def _getxattr(self, unique: int, inode: int, uid: int, pid: int) -> Waiting | None:
        self.counts["other"] += 1
        length, room = wire.U32.unpack_from(self._buffer)[0], wire.U32.unpack_from(self._buffer, wire.BODY)[0]
        name = bytes(self._buffer[wire.XATTR_NAME : length]).partition(b"\0")[0]
        if self.handlers.has_no_attribute(inode, name):
            self._write_reply(wire.error(unique, errno.ENODATA))
            return None
        asked = self.handlers.attribute(inode, name)
        return self._soon(unique, asked, lambda value: wire.xattr_reply(unique, value, room))

    def _listxattr(self, unique: int, inode: int, uid: int, pid: int) -> Waiting:
        self.counts["other"] += 1
        room = wire.U32.unpack_from(self._buffer, wire.BODY)[0]
        asked = self.handlers.attribute_names(inode)
        return self._soon(unique, asked, lambda names: wire.xattr_reply(unique, names, room))

    def _statfs(self, unique: int, inode: int, uid: int, pid: int) -> Waiting:
        self.counts["other"] += 1
        return self._soon(unique, self._statvfs(), lambda below: wire.statfs_reply(unique, below))

    async def _statvfs(self) -> os.statvfs_result | None:
        # Each directory that is to be watched is asked for it; the first answer does for all.
        if self._below is not None and self._silence is not None and not self._silence.decided.is_set():
            return self._below
        # A source that hangs must not hang df, nor those who look whether we live.
        with trio.move_on_after(STATFS_S):
            self._below = await self.handlers.statvfs()
        return self._below

    def _refuse(self, unique: int, inode: int, uid: int, pid: int) -> None:
        self.counts["other"] += 1
        self._write_reply(wire.error(unique, errno.EROFS))

    def _ignore(self, unique: int, inode: int, uid: int, pid: int) -> None:
        """No reply is due."""


def _asked(request: bytes) -> Asked:
    kind, _, inode, *_ = wire.REQUEST.unpack_from(request)
    return Asked(kind, inode, wire.READ_IN.unpack_from(request, wire.BODY)[1] if kind == wire.READ else 0)


async def _awaited(waiting: Waiting) -> None:
    await waiting


class _Reading:
    """The way of an answer to a READ (see `mlfs.engine.range_reads.ReadReply`); whether it was answered."""

    __slots__ = ("_requests", "_unique", "is_over")

    def __init__(self, requests: Requests, unique: int) -> None:
        self._requests, self._unique = requests, unique
        self.is_over = False

    def gives(self, data: Buffer) -> None:
        self.is_over = True  # before the reader can go on
        self._requests.give(self._unique, data)

    def fails(self, error: Exception) -> None:
        self._requests.failed(self._unique, error)
        self.is_over = True


class _RangeReading(_Reading):
    """The same of a range of a large file (see `mlfs.engine.range_reads.RangeReply`). `handle`: its file's."""

    __slots__ = ("_asked", "handle")

    def __init__(self, requests: Requests, unique: int, inode: int, handle: int, offset: int, size: int) -> None:
        super().__init__(requests, unique)
        self.handle = handle
        self._asked = inode, handle, offset, size

    def noted(self) -> None:
        self._requests.range_noted(self)

    def goes_on(self, spent: Spent) -> None:
        self._requests.range_noted(self)
        trio.lowlevel.spawn_system_task(self._read_soon, spent)

    async def _read_soon(self, spent: Spent) -> None:
        await self._requests.read_soon(self._unique, *self._asked, spent)
        self.is_over = True


class _Answered:
    """Passes the answers to an OPEN on. Its event is set once nothing is left to do of it."""

    def __init__(self, replies: Replies, event: trio.Event) -> None:
        self._replies = replies
        self.event = event

    def opens(self, unique: int, handle: int) -> None:
        """See `mountd.handlers.Replies`, as for the others: the way is as usual."""
        self._replies.opens(unique, handle)

    def failed(self, unique: int, error: Exception) -> None:
        self._replies.failed(unique, error)

    def noted(self, handle: int) -> None:
        """The loop has nothing left to do of it."""
        self._replies.noted(handle)
        self.event.set()

    def noted_before(self, handle: int) -> None:
        """Nor has it of one that is answered only now."""
        self._replies.noted_before(handle)


# -- whose turn it is to read the kernel's next request
#
# In: tasks of the loop that want to go on reading. Out: one of them at a time.


class TurnLock:
    """A lock that is not fair: who releases it may take it again before the task that waits, which then waits on.

    A fair one would change tasks after each request. When it is released it wakes one task, and that one tries again.
    """

    def __init__(self, wait: PollWait) -> None:
        self._wait = wait
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
            self._wait.next_runs()
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._waiting and self._wait.wakes_next():
            trio.lowlevel.reschedule(self._waiting.popleft())
