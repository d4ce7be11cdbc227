"""Drawn processes open, read and close files by requests, while the source fails and hangs, files change, pages go.

A socket stands for /dev/fuse. However a read goes, each OPEN has one answer, which is the file or an error that the
source gave; bytes are those of one content; and at the end nobody waits, and nothing is held open.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.engine.ranges import FIRST_LARGE_HANDLE
from mountd import wire
from mountd.handlers import Handlers
from mountd.inodes import inode_of
from mountd.poll_wait import PollWait
from mountd.requests import Requests

HEDGE_S, TIMEOUT_S = 1.0, 2.0
DRAWN_ERRORS = (errno.EIO, errno.ENOENT, errno.ENOMEM, errno.EMFILE, errno.ETIMEDOUT)
HANGS_S = 1000.0
# Simulated, for a case: whoever is never answered is noticed.
MOST_S = 10_000.0


class DrawnThreads(InlineRunner):
    """Threads of which some never come back."""

    def __init__(self, seconds: dict[str, float], draw: random.Random, hang: float) -> None:
        super().__init__(seconds)
        self._draw, self._hang = draw, hang

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if pool in ("demand", "read") and self._draw.random() < self._hang:
            await trio.sleep(HANGS_S)
        return await super().run(pool, call, *args)


class Kernel:
    """The other end of the descriptor: many requests at once, and each is answered once."""

    def __init__(self, end: socket.socket) -> None:
        self._end = trio.socket.from_stdlib_socket(end)
        self._unique = 0
        self._answers: dict[int, trio.MemorySendChannel[tuple[int, bytes]]] = {}

    async def ask(self, kind: int, inode: int, pid: int, body: bytes) -> tuple[int, bytes]:
        """An errno, and what follows."""
        self._unique += 2
        unique = self._unique
        self._answers[unique], answer = trio.open_memory_channel(1)
        await self._end.send(struct.pack("<IIQQIIIHH", 40 + len(body), kind, unique, inode, 0, 0, pid, 0, 0) + body)
        return await answer.receive()

    async def run(self) -> None:
        while True:
            data = await self._end.recv(1 << 20)
            _, error, unique = struct.unpack_from("<IiQ", data)
            self._answers.pop(unique).send_nowait((-error, data[16:]))  # KeyError: it was answered before

    @property
    def waiting(self) -> int:
        return len(self._answers)


async def read(kernel: Kernel, mount: Mount, entry: int, pid: int, contents: dict[int, set[bytes]]) -> int:
    """Open, read and close a file, as a process does. Returns: the errno."""
    generations, error, opened = mount.engine.manifest.generation_view, errno.ESTALE, b""
    for _ in range(3):  # the kernel looks the name up again, and opens what it leads to then
        if error == errno.ESTALE:
            flags = struct.pack("<II", os.O_RDONLY, 0)
            error, opened = await kernel.ask(wire.OPEN, inode_of(entry, generations[entry]), pid, flags)
    if error:
        return error
    (handle,) = struct.unpack_from("<Q", opened)
    data = bytes(mount.pages.held.get(entry, b"")[:4096]) if handle < FIRST_LARGE_HANDLE else b""
    if not data:
        error, data = await kernel.ask(wire.READ, 0, pid, struct.pack("<QQIIQII", handle, 0, 4096, 0, 0, 0, 0))
    assert error or data in contents[entry]
    await trio.sleep(0.001)
    assert await kernel.ask(wire.RELEASE, 0, pid, struct.pack("<QIIQ", handle, 0, 0, 0)) == (0, b"")
    return error


@pytest.mark.parametrize("seed", range(16))
def test_each_open_is_answered_once(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([5000, 5000, 5000, 5 << 20])
    seconds = {"demand": draw.choice([0, 0.01, 0.2]), "pfs": draw.choice([0, 0.02, 0.5]), "read": 0.01, "drop": 0.003}
    threads = DrawnThreads(seconds, random.Random(seed), draw.choice([0, 0.1, 0.4]))
    faults = draw.choice([0, 0.1, 0.4])
    staging, ram = draw.choice([1 << 16, 1 << 20, 64 << 20]), draw.choice([0, 1 << 15, 1 << 20])

    async def body() -> None:
        errors = set[int]()
        with trio.fail_after(MOST_S):
            await drawn(errors)

    async def drawn(errors: set[int]) -> None:
        async with running(
            tmp_path, draw.randint(4, 14), size, staging=staging, ram=ram, hedge_s=HEDGE_S, timeout_s=TIMEOUT_S,
            runner=threads,
        ) as mount:  # fmt: skip
            contents = {entry: {mount.content(entry)[:4096]} for entry in mount.files}
            for name in ("read_whole", "open"):
                setattr(mount.source, name, failing(getattr(mount.source, name), draw, faults))
            nothing = cast(Any, SimpleNamespace(looking=None, note=lambda *told: None, missed=None))
            handlers = Handlers(mount.engine, *[nothing] * 7)
            ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, kernels:
                requests, kernel = Requests(handlers, PollWait(), 1), Kernel(kernels)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(requests.serve, ours.fileno())
                    nursery.start_soon(kernel.run)
                    epochs = shuffled(mount.files, 2, 1, seed)
                    if size < 1 << 20 and draw.random() < 0.5:
                        await mount.engine.shared.register(*given_job(epochs))

                    async def process(pid: int, entries: list[int], pause_s: float) -> None:
                        for entry in entries:
                            errors.add(await read(kernel, mount, entry, pid, contents))
                            await trio.sleep(pause_s)

                    async with trio.open_nursery() as processes:
                        for number in range(draw.randint(1, 4)):
                            order = [entry for epoch in epochs for entry in epoch[0]]
                            seek = draw.choices(mount.files, k=len(order))
                            entries = order if draw.random() < 0.5 else seek
                            processes.start_soon(process, 100 * number + 100, entries, draw.choice([0.0007, 0.011]))
                        for number in range(draw.choice([0, 0, 3])):
                            await trio.sleep(0.1)
                            entry = draw.choice(mount.files)
                            mount.pages.drop(draw.choice(mount.files))
                            changed = (b"%04d" % number) * (size // 4 + 1)
                            contents[entry].add(changed[:4096])
                            path = tmp_path / os.fsdecode(mount.engine.manifest.path(entry))
                            path.with_suffix(".new").write_bytes(changed)
                            path.with_suffix(".new").rename(path)
                    await trio.sleep(2 * HANGS_S)
                    assert (kernel.waiting, requests.early) == (0, set())
                    nursery.cancel_scope.cancel()
            assert errors <= {0, errno.ESTALE, *DRAWN_ERRORS}
            if not faults and not threads._hang:
                assert errors <= {0, errno.ESTALE}
            now = mount.engine.statistics()
            assert now.ranges.open_files == 0
            assert not any(now.under_way.values()), now.under_way
            assert not mount.engine.scheduler.waiters

    simulate(body)


def failing(call: Callable[..., Any], draw: random.Random, faults: float) -> Callable[..., Any]:
    """A call on the source that fails sometimes."""

    def drawn(*args: Any) -> Any:
        if draw.random() < faults:
            number = draw.choice(DRAWN_ERRORS)
            raise OSError(number, os.strerror(number))
        return call(*args)

    return drawn
