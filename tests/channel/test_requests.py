"""The kernel's requests, one by one: a socket stands for /dev/fuse, and the test for the kernel."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import stat
import struct
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from mlfs.engine.block_reads import Spent
from mlfs.engine.range_reads import RangeReply
from mountd import wire
from mountd.handlers import Attributes, Handlers, Listed, OpenedHandle, Replies
from mountd.inodes import FIRST_CHANGED, FIRST_VIRTUAL, entry_of
from mountd.left_behind import NOTED_BYTES, NOTES_AT_ONCE, Journal, Suspects, UnderWay
from mountd.misses import NEGATIVE_S
from mountd.poll_wait import PollWait
from mountd.requests import FROZEN_S, Requests

GENERATION = 77
HANDLE = 0x1_0000_0000_0007
FILE = stat.S_IFREG | 0o644
ATTRIBUTES = Attributes(7, FILE, 2, 1000, 1001, 0, 110_001, 216, 1_500_000_000_123_456_789, -1, True)


class Kernel:
    """The other end of the descriptor."""

    def __init__(self, end: socket.socket) -> None:
        self._end = trio.socket.from_stdlib_socket(end)
        self._unique = 0

    async def send(self, kind: int, inode: int = 7, body: bytes = b"") -> int:
        self._unique += 2
        head = struct.pack("<IIQQIIIHH", 40 + len(body), kind, self._unique, inode, 1000, 1001, 4242, 0, 0)
        await self._end.send(head + body)
        return self._unique

    async def answer(self) -> tuple[int, int, bytes]:
        """unique, errno, what follows."""
        data = await self._end.recv(1 << 20)
        length, error, unique = struct.unpack_from("<IiQ", data)
        assert length == len(data)
        return unique, -error, data[16:]

    async def ask(self, kind: int, inode: int = 7, body: bytes = b"") -> tuple[int, bytes]:
        unique = await self.send(kind, inode, body)
        answered, error, content = await self.answer()
        assert answered == unique
        return error, content


class Scripted:
    """Handlers that answer as the test says, and note what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.staged = HANDLE
        self.manifest = SimpleNamespace(past={})
        self.looks = SimpleNamespace(needed=False)
        self.unique = 0
        self.replies: Replies
        self.range_reply: RangeReply
        self.failures = SimpleNamespace(note=lambda entry, error: self.told.append(("failed", entry)))

    def forget(self, inode: int, count: int) -> None:
        self.told.append(("forget", inode, count))

    def is_priming(self, thread: int) -> bool:
        return False

    def given_again(self, asked: Collection[tuple[int, bool]]) -> None:
        self.told.append([*asked])

    def lookup(self, parent: int, name: bytes) -> int:
        self.told.append((parent, name))
        return 7 if name == b"there" else 0

    def is_unseen(self, inode: int) -> bool:
        return False

    def attributes(self, inode: int) -> Attributes:
        if inode == 8:
            raise OSError(errno.ESTALE, "gone")
        if inode == 9:
            raise ZeroDivisionError
        return ATTRIBUTES

    def open_staged(self, inode: int, flags: int, pid: int) -> int:
        self.told.append(("open", inode, flags, pid))
        if flags & os.O_WRONLY:
            raise OSError(errno.EROFS, "read-only")
        return self.staged

    def open_soon(self, inode: int, pid: int, unique: int, replies: Replies) -> bool:
        """A worker answers; what is left to do for the loop is done when the test says."""
        if inode >= FIRST_VIRTUAL or inode == 8:
            return False
        self.unique, self.replies = unique, replies
        if inode == 9:
            return True
        worker = threading.Thread(target=replies.opens, args=(unique, HANDLE))
        worker.start()
        worker.join()
        return True

    async def open(self, inode: int, flags: int, pid: int, uid: int, gid: int) -> OpenedHandle:
        if inode == 8:
            raise OSError(errno.EIO, "the source failed")
        return OpenedHandle(5, True)

    def release(self, handle: int) -> None:
        self.told.append(("release", handle))

    def read_at_once(self, inode: int, handle: int, offset: int, size: int, pid: int) -> None:
        """None is anywhere."""

    def begin_read(self, inode: int, handle: int, offset: int, size: int, untold: bool, reply: RangeReply) -> bool:
        """None is for a worker but those of one handle."""
        if handle == HANDLE:
            self.range_reply = reply
            if size:
                worker = threading.Thread(target=reply.gives, args=(b"ranged",))
                worker.start()
                worker.join()
            return True
        return False

    async def read(
        self, inode: int, handle: int, offset: int, size: int, untold: bool, spent: Spent | None = None
    ) -> bytes:  # fmt: skip
        if spent is not None:
            return b"tried before: %r" % (spent,)
        return b"%d %d %d" % (handle, offset, size)

    async def seek(self, inode: int, handle: int, offset: int, whence: int) -> int:
        if offset == 99:
            raise OSError(errno.ENXIO, "behind the end")
        return offset + whence

    async def write(self, handle: int, data: bytes, offset: int) -> int:
        self.told.append((handle, data, offset))
        return len(data)

    async def statvfs(self) -> os.statvfs_result:
        return os.statvfs("/")

    def readlink(self, inode: int) -> bytes:
        return b"target"

    def check_directory(self, inode: int) -> None:
        """Any is one."""

    def listed_at_once(self, inode: int) -> bool:
        return False

    def directory(self, inode: int, start: int) -> Iterator[Listed]:
        for number in range(start, 3):
            yield (
                b"n" * (number + 1),
                number + 1,
                20 + number,
                Attributes(20 + number, FILE, 1, 0, 0, 0, 5, 8, 0, 0, True),
            )


@asynccontextmanager
async def served(handlers: Scripted) -> AsyncIterator[tuple[Kernel, Requests]]:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernels, trio.fail_after(30):
        requests = Requests(cast(Handlers, handlers), PollWait(), GENERATION)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(requests.serve, ours.fileno())
            yield Kernel(kernels), requests
            nursery.cancel_scope.cancel()


def test_names_and_attributes() -> None:
    async def main() -> None:
        handlers = Scripted()
        async with served(handlers) as (kernel, requests):
            error, found = await kernel.ask(wire.LOOKUP, 3, b"there\0")
            assert (error, len(found)) == (0, 128)
            assert struct.unpack_from("<QQQQII", found) == (7, GENERATION, FROZEN_S, FROZEN_S, 0, 0)
            attributes = struct.unpack_from("<QQQqqqIIIIIIIIII", found, 40)
            assert attributes == (
                7, 110_001, 216, 1_500_000_000, 1_500_000_000, -1, 123_456_789, 123_456_789, 999_999_999,
                FILE, 2, 1000, 1001, 0, 4096, 0,
            )  # fmt: skip
            _, absent = await kernel.ask(wire.LOOKUP, 3, b"not\0")
            assert struct.unpack_from("<QQQQ", absent) == (0, 0, NEGATIVE_S, NEGATIVE_S)
            _, absent = await kernel.ask(wire.LOOKUP, FIRST_VIRTUAL, b"not\0")
            assert struct.unpack_from("<QQQQ", absent) == (0, 0, 0, 0)
            assert handlers.told == [(3, b"there"), (3, b"not"), (FIRST_VIRTUAL, b"not")]
            error, got = await kernel.ask(wire.GETATTR)
            assert (error, struct.unpack_from("<QII", got), got[16:]) == (0, (FROZEN_S, 0, 0), found[40:])
            assert await kernel.ask(wire.READLINK) == (0, b"target")
            assert requests.counts["lookup"] == 3

    trio.run(main)


@pytest.mark.parametrize(
    ("kind", "inode", "number"),
    [
        (wire.GETATTR, 8, errno.ESTALE),
        (wire.GETATTR, 9, errno.EIO),  # a bug
        (wire.SETATTR, 7, errno.EROFS),
        (wire.SETATTR, FIRST_VIRTUAL, 0),
        (wire.MKDIR, 7, errno.EROFS),
        (wire.TMPFILE, 7, errno.EROFS),
        (25, 7, errno.ENOSYS),  # FLUSH
        (9999, 7, errno.ENOSYS),
    ],
)
def test_what_is_refused(kind: int, inode: int, number: int) -> None:
    async def main() -> None:
        async with served(Scripted()) as (kernel, _):
            assert (await kernel.ask(kind, inode, bytes(64)))[0] == number
            assert (await kernel.ask(wire.GETATTR))[0] == 0  # and it goes on

    trio.run(main)


def test_what_the_kernel_forgets_gets_no_answer() -> None:
    async def main() -> None:
        handlers = Scripted()
        async with served(handlers) as (kernel, _):
            virtual = FIRST_VIRTUAL + 1
            await kernel.send(wire.FORGET, virtual, struct.pack("<Q", 3))
            await kernel.send(wire.FORGET, 7, struct.pack("<Q", 1))
            pairs = struct.pack("<IIQQQQ", 2, 0, 7, 1, virtual, 2)
            await kernel.send(wire.BATCH_FORGET, 0, pairs)
            await kernel.send(wire.INTERRUPT, 0, struct.pack("<Q", 2))
            assert (await kernel.ask(wire.GETATTR))[0] == 0
            assert handlers.told == [("forget", virtual, 3), ("forget", virtual, 2)]

    trio.run(main)


def test_once_a_file_has_changed_it_is_told_what_the_kernel_forgets_of_any() -> None:
    async def main() -> None:
        handlers = Scripted()
        async with served(handlers) as (kernel, _):
            await kernel.send(wire.FORGET, FIRST_CHANGED + 7, struct.pack("<Q", 1))
            handlers.manifest.past[7, 0] = None
            await kernel.send(wire.FORGET, 7, struct.pack("<Q", 1))
            assert (await kernel.ask(wire.GETATTR))[0] == 0
            assert handlers.told == [("forget", FIRST_CHANGED + 7, 1), ("forget", 7, 1)]

    trio.run(main)


def test_where_data_and_holes_begin() -> None:
    async def main() -> None:
        async with served(Scripted()) as (kernel, _):
            for offset, whence, answer in (
                (5, os.SEEK_DATA, (0, 8)),
                (6, os.SEEK_HOLE, (0, 10)),
                (99, 3, (errno.ENXIO,)),
            ):
                error, found = await kernel.ask(wire.LSEEK, 7, struct.pack("<QQII", HANDLE, offset, whence, 0))
                assert (error, *struct.unpack(f"<{len(found) // 8}Q", found)) == answer

    trio.run(main)


def test_a_staged_file_is_opened_and_closed() -> None:
    async def main() -> None:
        handlers = Scripted()
        async with served(handlers) as (kernel, requests):
            for _ in range(100):  # more than are read at once
                error, opened = await kernel.ask(wire.OPEN, 7, struct.pack("<II", os.O_RDONLY, 0))
                assert (error, struct.unpack("<QII", opened)) == (0, (HANDLE, wire.KEEP_CACHE, 0))
                assert await kernel.ask(wire.RELEASE, 7, struct.pack("<QIIQ", HANDLE, 0, 0, 0)) == (0, b"")
            assert handlers.told == [("open", 7, os.O_RDONLY, 4242), ("release", HANDLE)] * 100
            assert (requests.counts["open"], requests.counts["release"]) == (100, 100)
            assert (await kernel.ask(wire.OPEN, 7, struct.pack("<II", os.O_WRONLY, 0)))[0] == errno.EROFS

    trio.run(main)


def test_a_worker_answers_and_the_close_waits_for_the_loop() -> None:
    """The reader goes on, and may close, before the loop has noted that the bytes are there."""

    async def main() -> None:
        handlers = Scripted()
        handlers.staged = 0
        async with served(handlers) as (kernel, requests):
            opening = await kernel.send(wire.OPEN, 7, struct.pack("<II", os.O_RDONLY, 0))
            unique, error, opened = await kernel.answer()
            assert (unique, error, struct.unpack("<QII", opened)) == (opening, 0, (HANDLE, wire.KEEP_CACHE, 0))
            closing = await kernel.send(wire.RELEASE, 7, struct.pack("<QIIQ", HANDLE, 0, 0, 0))
            assert (await kernel.ask(wire.GETATTR))[0] == 0  # others are served meanwhile
            assert ("release", HANDLE) not in handlers.told
            status = await kernel.send(wire.OPEN, FIRST_VIRTUAL, struct.pack("<II", os.O_RDONLY, 0))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert requests.early == {HANDLE}
            handlers.replies.noted(HANDLE)
            assert await kernel.answer() == (closing, 0, b"")  # and no second answer to the open
            assert handlers.told[-1] == ("release", HANDLE)
            assert (await kernel.answer())[:2] == (status, 0)  # which counts the read, so not before
            assert not requests.early

    trio.run(main)


def test_a_worker_answers_a_read_and_the_close_waits_for_the_loop() -> None:
    """So do those who ask for the status; and what the worker gave up on is read as other READs are."""

    async def main() -> None:
        handlers = Scripted()
        handlers.staged = 0
        async with served(handlers) as (kernel, requests):
            asked = wire.READ_IN.pack(HANDLE, 4096, 6)
            assert await kernel.ask(wire.READ, 7, asked) == (0, b"ranged")
            closing = await kernel.send(wire.RELEASE, 7, struct.pack("<QIIQ", HANDLE, 0, 0, 0))
            status = await kernel.send(wire.OPEN, FIRST_VIRTUAL, struct.pack("<II", os.O_RDONLY, 0))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert ("release", HANDLE) not in handlers.told
            handlers.range_reply.noted()
            assert await kernel.answer() == (closing, 0, b"")
            assert (await kernel.answer())[:2] == (status, 0)
            reading = await kernel.send(wire.READ, 7, wire.READ_IN.pack(HANDLE, 4096, 0))
            assert (await kernel.ask(wire.GETATTR))[0] == 0  # others are served meanwhile
            handlers.range_reply.goes_on([None])
            assert await kernel.answer() == (reading, 0, b"tried before: [None]")
            assert not requests.ranges

    trio.run(main)


def test_the_loop_answers_where_no_worker_did() -> None:
    async def main() -> None:
        handlers = Scripted()
        handlers.staged = 0
        async with served(handlers) as (kernel, requests):
            for error in (None, OSError(errno.EIO, "the source failed")):
                opening = await kernel.send(wire.OPEN, 9, struct.pack("<II", os.O_RDONLY, 0))
                assert (await kernel.ask(wire.GETATTR))[0] == 0  # others are served meanwhile
                if error is None:
                    handlers.replies.opens(handlers.unique, HANDLE)
                else:
                    handlers.replies.failed(handlers.unique, error)
                handlers.replies.noted(0 if error else HANDLE)
                assert (await kernel.answer())[:2] == (opening, error.errno if error else 0)
                assert not requests.early
            opening = await kernel.send(wire.OPEN, 9, struct.pack("<II", os.O_RDONLY, 0))
            assert (await kernel.ask(wire.GETATTR))[0] == 0
            handlers.replies.noted(0)
            handlers.replies.opens(handlers.unique, HANDLE)  # a worker that had been given up on
            handlers.replies.noted_before(HANDLE)
            assert (await kernel.answer())[:2] == (opening, 0)
            assert not requests.early
            assert await kernel.ask(wire.RELEASE, 7, struct.pack("<QIIQ", HANDLE, 0, 0, 0)) == (0, b"")

    trio.run(main)


def test_what_waits_is_answered_in_the_end() -> None:
    async def main() -> None:
        handlers = Scripted()
        handlers.staged = 0
        async with served(handlers) as (kernel, _):
            flags = struct.pack("<II", os.O_RDONLY, 0)
            assert (await kernel.ask(wire.OPEN, 8, flags))[0] == errno.EIO
            error, opened = await kernel.ask(wire.OPEN, FIRST_VIRTUAL, flags)
            assert (error, struct.unpack("<QII", opened)) == (0, (5, wire.DIRECT_IO, 0))
            at = struct.pack("<QQIIQII", 5, 4096, 11, 0, 0, 0, 0)
            assert await kernel.ask(wire.READ, 7, at) == (0, b"5 4096 11")
            assert await kernel.ask(wire.WRITE, 7, at + b"hello world" + b"!") == (0, struct.pack("<II", 11, 0))
            assert handlers.told[-1] == (5, b"hello world", 4096)
            error, below = await kernel.ask(wire.STATFS)
            assert (error, len(below)) == (0, 80)
            assert struct.unpack_from("<Q", below)[0] == os.statvfs("/").f_blocks

    trio.run(main)


def test_a_directory_is_listed_in_as_many_pieces_as_fit() -> None:
    async def main() -> None:
        async with served(Scripted()) as (kernel, _):
            error, opened = await kernel.ask(wire.OPENDIR, 3, bytes(8))
            assert (error, struct.unpack("<QII", opened)) == (0, (3, 0, 0))
            names, start = [], 0
            while True:
                error, entries = await kernel.ask(
                    wire.READDIRPLUS, 3, struct.pack("<QQIIQII", 3, start, 330, 0, 0, 0, 0)
                )
                assert error == 0
                if not entries:
                    break
                assert len(entries) in (160, 320)  # two fit
                for begin in range(0, len(entries), 160):
                    inode, start, length, kind = struct.unpack_from("<QQII", entries, begin + 128)
                    names.append((inode, entries[begin + 152 : begin + 152 + length], kind))
            assert names == [(20, b"n", 8), (21, b"nn", 8), (22, b"nnn", 8)]
            assert (await kernel.ask(wire.RELEASEDIR, 3, bytes(24)))[0] == 0

    trio.run(main)


@pytest.mark.promise("outlived-crash")
def test_requests_that_are_given_again_are_answered_and_one_of_which_servers_died_gets_an_error() -> None:
    journal = Journal()
    again = wire.GIVEN_AGAIN

    async def main(first: bool) -> list[tuple[int, int]]:
        ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handlers = Scripted()
        handlers.staged = 0
        with ours, kernels, trio.fail_after(30):
            requests = Requests(cast(Handlers, handlers), PollWait(), GENERATION)
            for unique, kind, inode in ((2, wire.GETATTR, 7), (4, wire.READ, 7), (6, wire.OPEN, 9), (8, wire.OPEN, 7)):
                head = struct.pack("<IIQQIIIHH", 80, kind, unique | again, inode, 0, 0, 1, 0, 0)
                kernels.send(head + bytes(40))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requests.serve, ours.fileno(), Suspects(journal, "was killed by SIGSEGV"))
                kernel = Kernel(kernels)
                assert await kernel.answer() == (0, -wire.RESEND[4], b"")
                answers = []
                for _ in range(2 if first else 3):
                    unique, error, _ = await kernel.answer()
                    answers.append((unique & ~again, error))
                while handlers.unique == 0:
                    await trio.sleep(0.01)
                if not first:
                    handlers.replies.noted(HANDLE)
                    assert (await kernel.answer())[1] == 0  # the next one
                    told = len(handlers.told)
                    assert await kernel.ask(wire.OPEN, 9, bytes(8)) == (errno.EIO, b"")  # which would kill it
                    assert handlers.told[told + 1 :] == [("failed", entry_of(9))]
                nursery.cancel_scope.cancel()
        assert handlers.told[0] == [(1, True), (1, False), (1, False)]  # before any is answered
        return answers

    # The worker of the third one never answers: a server dies of it, and the one after that refuses it.
    assert trio.run(main, True) == [(2, 0), (4, 0)]
    assert trio.run(main, False) == [(6, errno.EIO), (2, 0), (4, 0)]
    now = Suspects(journal, "").statistics(lambda entry: b"of %d" % entry)
    assert (now.count, now.request, now.path) == (1, "open", f"of {entry_of(9)}")


@pytest.mark.promise("outlived")
def test_where_the_kernel_does_not_give_requests_again_the_next_server_has_them_all_the_same() -> None:
    class NeverWrites(Scripted):
        async def write(self, handle: int, data: bytes, offset: int) -> int:
            await trio.sleep_forever()

    memory, journal = os.memfd_create("requests"), Journal()
    many = NOTES_AT_ONCE + 10  # more than have room at first

    @asynccontextmanager
    async def serving(handlers: Scripted, taken_over: bool = True) -> AsyncIterator[Kernel]:
        requests = Requests(cast(Handlers, handlers), PollWait(), GENERATION, None, UnderWay(memory, mmap.PAGESIZE))
        ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        suspects = Suspects(journal, "was killed by SIGKILL") if taken_over else None
        with ours, kernels, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requests.serve, ours.fileno(), suspects)
                yield Kernel(kernels)
                nursery.cancel_scope.cancel()

    async def main() -> None:
        handlers: Scripted = NeverWrites()
        handlers.staged = 0
        flags, at = struct.pack("<II", os.O_RDONLY, 0), struct.pack("<QQIIQII", 5, 4096, 2000, 0, 0, 0, 0)
        async with serving(handlers, taken_over=False) as kernel:
            for _ in range(2 * many):
                await kernel.ask(wire.GETATTR)
            await kernel.send(wire.FORGET, FIRST_VIRTUAL, struct.pack("<Q", 3))
            for _ in range(many):
                await kernel.send(wire.OPEN, 9, flags)  # a worker has it, and never answers
            await kernel.send(wire.INTERRUPT, 0, struct.pack("<Q", 4 * many + 4))
            await kernel.send(wire.WRITE, FIRST_VIRTUAL, at + b"!" * 2000)
            await kernel.ask(wire.GETATTR)
        for server in (2, 3):
            handlers = Scripted()
            async with serving(handlers) as kernel:
                # Of the write there is no more than its beginning.
                again = [await kernel.answer() for _ in range(many + 1 if server == 2 else 0)]
                assert [error for _, error, _ in again] == ([errno.ESTALE] + [0] * many if server == 2 else [])
                assert (await kernel.ask(wire.GETATTR))[0] == 0
            assert len(handlers.told[0]) == (many if server == 2 else 0)
            assert handlers.told[1:] == [("open", 9, os.O_RDONLY, 4242)] * len(handlers.told[0])
            assert [unique for unique, *_ in again[1:]] == sorted(unique for unique, *_ in again[1:])

    trio.run(main)
    assert os.fstat(memory).st_size == mmap.PAGESIZE + 2 * NOTES_AT_ONCE * NOTED_BYTES
    os.close(memory)
