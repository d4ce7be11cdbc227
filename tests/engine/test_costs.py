"""What a read costs in the interpreter: what the code of mlfs does for it, counted, so that no machine's speed matters.

Each case reads through an engine with all its parts; the page cache and the threads are fakes. Counted are the calls of
mlfs' functions and those that they make of builtins, the system calls among them, the bytes that they allocate, and how
often work is handed to a thread; what trio and the tests do is left out. A figure above its bound in COSTS fails: then
what was added must be worth it to everybody who reads, and the bound goes up with a reason, or it must be computed from
batches, seldom, or when somebody asks.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import trio
from fakes import FakePages, Mount, read_large, running, simulate
from support.fanotify import BOTH, event

from mlfs.explain.explainer import Explainer
from mlfs.explain.inference import Build
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts import samples
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree import attributes
from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples
from mountd import wire
from mountd.handlers import Handlers
from mountd.inodes import inode_of
from mountd.poll_wait import PollWait
from mountd.requests import Requests
from mountd.silent import ChannelStatistics, Silence

ROOT = str(Path(__file__).resolve().parents[2])
C_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # the type of a function of a C library
OURS = (f"{ROOT}/mlfs/", f"{ROOT}/mountd/")
FILES, BATCH = 300, 25
ROWS, ROW_BYTES = 250, 100_000
READER, OTHER = 100, 200
"""Two processes of one parent (see `fakes.kin`)."""


class Cost(NamedTuple):
    """What one read costs, or may cost at most.

    Attributes:
        calls: of functions of mlfs, and of builtins by them.
        system_calls: what the kernel is asked for, pages that are pushed and dropped among it.
        allocated_bytes: by how much memory rises from one call to the next, summed up. So however soon something is
            freed it counts, and a sample's 5,000 bytes count as often as they are copied; what is freed and taken
            again between two calls does not.
        threads: calls that are handed to a thread.
    """

    calls: float
    system_calls: float
    allocated_bytes: float
    threads: float

    def of(self, bound: Cost) -> str:
        """The figures beside those of a bound."""
        return (
            f"{self.calls:5.1f} of {bound.calls:3g} calls, {self.system_calls:.1f} of {bound.system_calls:g} system"
            f" calls, {self.allocated_bytes:5.0f} of {bound.allocated_bytes:5g} bytes, {self.threads:.2f} of"
            f" {bound.threads:4.2f} threads"
        )


# What a staged read asks neither the kernel nor a thread for: only what a batch of reads, or an epoch, has them do.
SELDOM = 0.1
COSTS = {
    "an open and a close by the kernel, staged": (
        Cost(80, 7.7, 2230, SELDOM),
        "two requests read, two replies, three looks for more; and what the next case has",
    ),
    "a staged read that no job follows": (
        Cost(28, SELDOM, 1050, SELDOM),
        "an event of the digest, a release, what comes next is learned",
    ),
    "a staged read of a registered job": (
        Cost(43, SELDOM, 2650, SELDOM),
        "the same events; matched to its rank with a batch of others; the next use is looked at",
    ),
    "a staged read of a registered job that the kernel tells of, and does not ask for": (
        Cost(32, 0.2, 2950, SELDOM),
        "the same, told with a batch, which is two reads of the descriptor",
    ),
    "a staged read of a job that was found": (
        Cost(47, SELDOM, 2570, SELDOM),
        "the same, and whether it still comes as found; the clock stands still here, so reads are kept as a batch's",
    ),
    "a demand read that no job follows": (
        Cost(378, 5.5, 21500, 1.2),
        "a waiter, a fetch by a worker (open, statx, read, close), a push, a copy to keep with its record in memory",
    ),
    "a sample that is fetched ahead": (
        Cost(178, 5.5, 15000, 0.15),
        "a look, a lane's turn, the same fetch, which a mover could do, a push, a copy to keep with its record",
    ),
    "a sample that a mover fetches ahead": (
        Cost(87, 0.2, 8700, SELDOM),
        "a look, a part of a lane's turn, what is known of it in a message, room in memory, a copy's record, its end;"
        " columns of all that is staged, at a few looks at its pages",
    ),
    "a row that is fetched ahead, of blocks that are kept": (
        Cost(198, 3.4, 138000, SELDOM),
        "a look, a lane's turn, a range of one copy or two, its tripwire, two pushes",
    ),
    "a READ of a staged row": (
        Cost(212, 2.7, 70000, 0.14),
        "the row that comes next, both told with a batch; its pages are dropped; a row of the next epoch is staged",
    ),
    "a READ of a copy in memory, by no job": (
        Cost(98, 1.2, 124000, SELDOM),
        "whether somebody goes on, a range of one copy or two, which the loop reads by itself",
    ),
    "a READ of a reader in order, of a large file that nobody has read": (
        Cost(103, 0.4, 158000, 0.18),
        "one in eight takes a block: a waiter, a fetch by a worker, a copy to keep; the others find it in memory",
    ),
    "a READ of a window of a large file, which the source alone has": (
        Cost(312, 2.7, 142000, 1.1),
        "who reads, a worker (a read of the source, a look after it), what is remembered and counted behind the answer",
    ),
}
"""The most of each, a tenth above what it was when the bound was set, and what it is for."""

# Functions of os that ask the kernel for nothing.
COMPUTED = frozenset({"fspath", "strerror", "get_terminal_size", "cpu_count", "putenv", "unsetenv"})
GC_HEAD_BYTES = 16
PAGES = frozenset(getattr(FakePages, name).__code__ for name in ("push", "drop", "replace"))


def is_system_call(function: Any) -> bool:
    """Whether a builtin is one: of os, or a method of a socket or of a poll object."""
    if function.__module__ == "posix":
        return function.__name__ not in COMPUTED
    return type(function.__self__).__module__ in ("select", "socket", "_socket")


class Files(dict[str, bool]):
    """Whether a source file is one of mlfs: asked at each call, so it is remembered."""

    def __missing__(self, path: str) -> bool:
        self[path] = path.startswith(OURS)
        return self[path]


class Spent:
    """A counter of what is in `Cost`."""

    def __init__(self) -> None:
        self.calls = self.system_calls = self.allocated_bytes = self.threads = 0
        self._ours = Files()
        self._risen_from = 0

    def by(self, reads: int) -> Cost:
        """What each of so many reads has cost."""
        return Cost(*(whole / reads for whole in (self.calls, self.system_calls, self.allocated_bytes, self.threads)))

    @contextmanager
    def counted(self, mount: Mount) -> Iterator[None]:
        """Count while the context lasts."""
        handed = len(mount.runner.calls)
        with pytest.MonkeyPatch.context() as patch:
            self._count_c_library(patch)
            tracemalloc.start()
            sys.setprofile(self._profile)
            try:
                yield
            finally:
                sys.setprofile(None)
                tracemalloc.stop()
        self.threads += len(mount.runner.calls) - handed

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called by the interpreter at each call and return."""
        ours, above = self._ours[frame.f_code.co_filename], frame.f_back
        of_ours = above is not None and self._ours[above.f_code.co_filename]  # called by mlfs, or goes back there
        if ours if event != "call" else of_ours:  # it ran until now
            # No local variables: their values would be memory of this hook.
            self.allocated_bytes += max(
                0,
                tracemalloc.get_traced_memory()[1]
                - self._risen_from
                - (sys.getsizeof(frame) + GC_HEAD_BYTES if event == "call" else 0),  # which this hook has made
            )
            if event == "call":
                self.system_calls += frame.f_code in PAGES
            elif event == "c_call":
                self.calls += 1
                self.system_calls += is_system_call(argument)
        elif not ours and not of_ours:
            return
        self.calls += ours and event == "call"
        self._risen_from = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()

    def _count_c_library(self, patch: pytest.MonkeyPatch) -> None:
        """Count calls of the C library, of which the interpreter tells nothing: each is a system call."""

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any) -> Any:
                self.system_calls += 1
                return function(*arguments)

            return called

        for module in [module for name, module in sys.modules.items() if name.startswith(("mlfs.", "mountd."))]:
            for holder in [module, *(value for value in vars(module).values() if isinstance(value, ctypes.CDLL))]:
                for name, value in list(vars(holder).items()):
                    if isinstance(value, C_FUNCTION):
                        patch.setattr(holder, name, counting(value))


async def read(mount: Mount, entries: list[int], pids: tuple[int, ...] = (READER,)) -> None:
    """Readers that take turns; the digest gets a batch of each few."""
    for at, entry in enumerate(entries):
        await mount.open(entry, pids[at % len(pids)])
        mount.engine.digest.released(entry)
        if at % BATCH == BATCH - 1:
            await trio.sleep(0.02)
    await trio.sleep(0.1)


async def staged(mount: Mount) -> None:
    """Have all files in place."""
    await read(mount, mount.files)
    assert all(mount.pages.resident(entry) for entry in mount.files)


async def by_kernel(directory: Path, spent: Spent) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        nothing = cast(Any, SimpleNamespace(missed=None, looking=None, thread=None))
        handlers = Handlers(mount.engine, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
        ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, kernels:
            requests = Requests(handlers, PollWait(), 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requests.serve, ours.fileno())
                kernel = trio.socket.from_stdlib_socket(kernels)

                async def ask(kind: int, inode: int, word: int) -> bytes:
                    head = struct.pack("<IIQQIIIHHQ", 64, kind, 2, inode, 0, 0, READER, 0, 0, word) + bytes(16)
                    await kernel.send(head)
                    answer = await kernel.recv(4096)
                    assert struct.unpack_from("<i", answer, 4) == (0,)
                    return answer[16:]

                entries = mount.files[::7]
                with spent.counted(mount):
                    for entry in entries:
                        opened = await ask(wire.OPEN, inode_of(entry), os.O_RDONLY)
                        await ask(wire.RELEASE, inode_of(entry), *struct.unpack_from("<Q", opened))
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert requests.counts["open"] == requests.counts["release"] == len(entries)
        return len(entries)


async def unfollowed(directory: Path, spent: Spent) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        with spent.counted(mount):
            await read(mount, mount.files[::7] + mount.files[1::7], (READER, OTHER))
        return len(mount.files[::7] + mount.files[1::7])


async def registered(directory: Path, spent: Spent) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        spec, streams = job(mount.engine.manifest)
        await mount.engine.shared.register(spec, streams)
        await read(mount, streams.epoch_ids(0, 0).tolist())
        with spent.counted(mount):
            await read(mount, streams.epoch_ids(1, 0).tolist())
        assert mount.engine.jobs[spec.name].score.agreement == 1.0
        return FILES


async def silent(directory: Path, spent: Spent) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        spec, streams = job(mount.engine.manifest)
        await mount.engine.shared.register(spec, streams)
        await read(mount, streams.epoch_ids(0, 0).tolist())
        nothing = cast(Any, SimpleNamespace(missed=None, looking=None, thread=None))
        ours, kernel = os.pipe2(os.O_NONBLOCK)
        silence = Silence(mount.engine.manifest, b"/mount", ours, ChannelStatistics("silent"))
        silence.is_told(Handlers(mount.engine, nothing, nothing, nothing, nothing, nothing, nothing, nothing))
        silence.jobs_go_on()
        entries = streams.epoch_ids(1, 0).tolist()
        with spent.counted(mount):
            for at in range(0, FILES, BATCH):
                os.write(kernel, b"".join(event(BOTH, inode_of(entry), READER) for entry in entries[at : at + BATCH]))
                silence.take_in()
                await trio.sleep(0.02)
            await trio.sleep(0.1)
        silence.close()
        os.close(kernel)
        assert mount.engine.jobs[spec.name].score.agreement == 1.0
        return FILES


async def found(directory: Path, spent: Spent) -> int:
    manifests: list[Manifest] = []
    build = Build(
        lambda spec: samples(spec, manifests[0], os.fsencode(directory)),
        lambda spec: build_streams(spec, manifests[0]),
    )
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30, explainer=Explainer(build)) as mount:
        manifests.append(mount.engine.manifest)
        await staged(mount)
        await read(mount, mount.files)
        assert [one.inferred for one in mount.engine.jobs.values()] == [True]
        with spent.counted(mount):
            await read(mount, mount.files)
        assert [one.score.agreement for one in mount.engine.jobs.values()] == [1.0]
        return FILES


async def on_demand(directory: Path, spent: Spent) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        entries = mount.files[::7] + mount.files[3::7]
        with spent.counted(mount):
            await read(mount, entries)
        assert mount.source.read == entries
        return len(entries)


async def ahead(directory: Path, spent: Spent, movers: int = 0) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30, movers=movers) as mount:
        with spent.counted(mount):
            await mount.engine.shared.register(*job(mount.engine.manifest))
            await trio.sleep(10)
        assert all(mount.pages.resident(entry) for entry in mount.files)
        return FILES


async def ahead_by_a_mover(directory: Path, spent: Spent) -> int:
    return await ahead(directory, spent, movers=1)


def job(manifest: Manifest) -> tuple[JobSpec, JobStreams]:
    """A job of one process that reads each file once an epoch."""
    spec = parse_job({"seed": 3, "epochs": 4, "batch_size": BATCH})
    return spec, build_streams(spec, manifest)


@asynccontextmanager
async def rows(directory: Path) -> AsyncIterator[tuple[Mount, JobSpec, JobStreams]]:
    """A mount of an array, and a job that reads its rows twice."""
    in_blocks = partial(Samples.in_blocks, above_bytes=4 << 20, block_bytes=1 << 20)
    size = ROWS * ROW_BYTES
    async with running(directory, 1, size, staging=1 << 30, ram=1 << 30, samples_of=in_blocks) as mount:
        mount.engine.warm_up(np.array(mount.files))
        await trio.sleep(60)
        fields = {"layout": "raw", "row_bytes": ROW_BYTES, "seed": 3, "epochs": 2, "batch_size": BATCH}
        spec = parse_job(fields)
        yield mount, spec, build_streams(spec, mount.engine.manifest)


async def rows_ahead(directory: Path, spent: Spent) -> int:
    async with rows(directory) as (mount, spec, streams):
        with spent.counted(mount):
            await mount.engine.shared.register(spec, streams)
            await trio.sleep(10)
        assert mount.engine.scheduler.ahead(spec.name)[0].samples >= ROWS
        assert mount.source.bytes_read == ROWS * ROW_BYTES
        return ROWS


async def rows_read(directory: Path, spent: Spent) -> int:
    async with rows(directory) as (mount, spec, streams):
        await mount.engine.shared.register(spec, streams)
        await trio.sleep(10)
        (entry,), tripwire_of = mount.files, mount.engine.samples.file_blocks.rows.tripwire_of
        with spent.counted(mount):
            for at, row in enumerate(streams.epoch_ids(0, 0).tolist()):
                begin, end = tripwire_of(row)
                assert mount.engine.row_reads.read(entry, 0, 1, begin, end - begin, READER) is not None
                if at % BATCH == BATCH - 1:
                    await trio.sleep(0.02)
            await trio.sleep(0.1)
        assert mount.engine.jobs[spec.name].score.agreement == 1.0
        return ROWS


async def ranges_read(directory: Path, spent: Spent) -> int:
    async with rows(directory) as (mount, _, _):
        (entry,), begins = mount.files, [row * ROW_BYTES for row in range(0, ROWS, 2)]
        handle = await mount.engine.ranges.open(entry)
        with spent.counted(mount):
            for at in range(len(begins)):
                begin = begins[7 * at % len(begins)]
                assert len(mount.engine.ranges.read_at_once(handle, begin, ROW_BYTES) or b"") == ROW_BYTES
                await trio.sleep(0.001)
        mount.engine.ranges.close_large(handle)
        return len(begins)


async def in_order(directory: Path, spent: Spent) -> int:
    in_blocks = partial(Samples.in_blocks, above_bytes=4 << 20, block_bytes=1 << 20)
    size, asked = 16 << 20, 128 << 10
    async with running(directory, 1, size, staging=1 << 30, ram=1 << 30, samples_of=in_blocks) as mount:
        ranges = mount.engine.ranges
        handle = await ranges.open(mount.files[0])
        with spent.counted(mount):
            for begin in range(0, size, asked):
                data = ranges.read_at_once(handle, begin, asked)
                data = data if data is not None else await ranges.read_large(handle, begin, asked)
                assert len(data) == asked
                await trio.sleep(0.001)
            while mount.table.held_by.count(1) < size >> 20:  # copies are kept
                await trio.sleep(0.1)
        ranges.close_large(handle)
        assert mount.source.bytes_read == size
        return size // asked


async def windows(directory: Path, spent: Spent) -> int:
    in_blocks = partial(Samples.in_blocks, above_bytes=4 << 20, block_bytes=1 << 20)
    size, asked, windows = 32 << 20, 96 << 10, 80
    async with running(directory, 1, size, staging=1 << 30, samples_of=in_blocks) as mount:
        ranges = mount.engine.ranges
        handle = await ranges.open(mount.files[0])
        with spent.counted(mount):
            for at in range(windows):
                begin = 23 * at % windows * (size // windows)
                assert ranges.read_at_once(handle, begin, asked) is None
                assert len(await read_large(ranges, handle, begin, asked)) == asked
                await trio.sleep(0.001)
        ranges.close_large(handle)
        assert mount.source.bytes_read == windows * asked
        return windows


CASES = dict(
    zip(
        COSTS,
        (
            by_kernel,
            unfollowed,
            registered,
            silent,
            found,
            on_demand,
            ahead,
            ahead_by_a_mover,
            rows_ahead,
            rows_read,
            ranges_read,
            in_order,
            windows,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("name", COSTS)
def test_no_read_costs_more_than_it_did(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    spent, reads = Spent(), 0

    async def body() -> None:
        nonlocal reads
        reads = await CASES[name](tmp_path, spent)

    simulate(body)
    bound, reason = COSTS[name]
    cost = spent.by(reads)
    record_property("cost", f"{cost.of(bound)}: {name} ({reason})")
    assert all(each <= most for each, most in zip(cost, bound, strict=True)), cost.of(bound)


def test_the_counter_counts_each_kind_and_nothing_of_its_own(tmp_path: Path) -> None:
    """What stands in no file of mlfs is not counted, nor what the counter allocates itself."""
    lines = """
def inner(size): return bytes(size)
def read(fd):
    os.fstat(fd)
    inner(1000)
    attributes._statx(fd, b"", 0, 0, None)
    len((1,))
"""
    names: dict[str, Any] = {"os": os, "attributes": attributes}
    exec(compile(lines, f"{ROOT}/mlfs/made_up.py", "exec"), names)
    mount = cast(Any, SimpleNamespace(runner=SimpleNamespace(calls=[])))
    spent, times, fd = Spent(), 100, os.open(tmp_path, os.O_RDONLY)
    with spent.counted(mount):
        for _ in range(times):
            names["read"](fd)
            bytes(5000)  # ours, not of mlfs
            mount.runner.calls.append("pool")
    os.close(fd)
    cost = spent.by(times)
    assert (cost.calls, cost.system_calls, cost.threads) == (4, 2, 1)
    told_bytes = sys.getsizeof(bytes(1000))
    assert told_bytes <= cost.allocated_bytes - sys.getsizeof(os.stat(tmp_path)) < told_bytes + 500
