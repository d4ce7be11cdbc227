"""Fakes behind the engine's contracts: a page cache in a dict, a runner without threads, jobs with given streams.

The source is the real one over a real tree; time is trio's MockClock, so a fetch takes as long as the test says and no
test waits. Nothing here knows FUSE.

With MLFS_TEST_MOVERS=1 in the environment lanes have a mover, a process of its own. Tests that model how long a lane
takes, or where it hangs, fail then, as a mover takes the time that it takes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import trio
import trio.testing

from mlfs.engine.context import Cluster, MountLimits
from mlfs.engine.engine import Engine, MountedData, MountMachine
from mlfs.engine.looks import Looks
from mlfs.engine.mount_jobs import Observers
from mlfs.engine.movers import MoverKind
from mlfs.engine.moves import READ
from mlfs.engine.opens import Opens, WaitingReader
from mlfs.engine.ranges import Ranges
from mlfs.engine.shortages import Shortages
from mlfs.explain.explainer import Explainer
from mlfs.follow.job import no_name
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams
from mlfs.places.place import PlaceKind, Places, SourcePlace, TierPlace
from mlfs.places.posix import PosixSource
from mlfs.places.ram import RamTier
from mlfs.places.showcase import Showcase
from mlfs.places.tier import Tier
from mlfs.plan.scheduler.events import JobEnded
from mlfs.plan.scheduler.states import SampleTable
from mlfs.served.refill import Refill, refill_of
from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan

PAGE = 4096
HEAD = Struct("=IiQQQII")  # of a FUSE_NOTIFY_STORE
MOVERS = int(os.environ.get("MLFS_TEST_MOVERS", "0"))


class FakePages:
    """The page cache: what was pushed and not dropped.

    Attributes:
        there: of files that are pushed in parts, or read by ranges, the pages that it has.
    """

    def __init__(self) -> None:
        self._held: dict[int, bytearray] = {}
        self._there: dict[int, dict[int, bytes]] = {}
        self.pushes = 0
        self.refuse: set[int] = set()
        self._pushed = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  what movers push, one behind the other
        self._pushed_end = 0

    @property
    def held(self) -> dict[int, bytearray]:
        self._take()
        return self._held

    @property
    def there(self) -> dict[int, dict[int, bytes]]:
        self._take()
        return self._there

    @property
    def descriptor(self) -> int:
        """By which movers push."""
        return self._pushed.fileno()

    def _take(self) -> None:
        """Take what movers have pushed: each message is the kernel's FUSE_NOTIFY_STORE."""
        new_bytes = os.fstat(self.descriptor).st_size - self._pushed_end
        if not new_bytes:
            return
        data = os.pread(self.descriptor, new_bytes, self._pushed_end)
        at = 0
        while len(data) - at >= HEAD.size:
            length, _, _, target, offset, _, _ = HEAD.unpack_from(data, at)
            if not length or at + length > len(data):  # it is being written
                break
            self.push(target, 0, offset, data[at + HEAD.size : at + length])
            at += length
            self._pushed_end += length

    def targets(self, entries: Sequence[int], generations: Sequence[int]) -> list[int]:
        return list(entries)

    def look_up(self, entry: int) -> None:
        pass

    def push(self, entry: int, generation: int, offset: int, data: bytes) -> bool:
        if entry in self.refuse:
            return False
        held = self._held.setdefault(entry, bytearray())
        held[offset : offset + len(data)] = data
        self.keep(entry, offset, data)
        self.pushes += 1
        return True

    def keep(self, entry: int, offset: int, data: bytes) -> None:
        pages = self._there.setdefault(entry, {})
        for at in range(0, len(data), PAGE):
            pages[(offset + at) // PAGE] = bytes(data[at : at + PAGE])

    def resident(self, entry: int) -> bool:
        return entry in self.held

    def resident_ranges(self, entry: int, ranges: Sequence[tuple[int, int]]) -> list[bool]:
        pages = self.there.get(entry, {})
        return [all(at in pages for at in range(begin // PAGE, -(-(begin + size) // PAGE))) for begin, size in ranges]

    def drop(self, entry: int, offset: int = 0, size: int = 0) -> None:
        self._take()
        if size and entry in self._held:
            self._held[entry][offset : offset + size] = bytes(size)
        for page in range(offset // PAGE, -(-(offset + size) // PAGE)):
            self._there.get(entry, {}).pop(page, None)
        if not size:
            self._held.pop(entry, None)
            self._there.pop(entry, None)

    def replace(self, entry: int) -> None:
        self.drop(entry)


class InlineRunner:
    """Runs blocking calls on the loop itself, after the time they are said to take.

    Attributes:
        seconds: by pool; a pool that is not named takes no time.
        hang: entries whose calls never return (until cancelled).
        threads: most calls of a pool at a time.
    """

    def __init__(self, seconds: dict[str, float] | None = None, threads: dict[str, int] | None = None) -> None:
        self.seconds = seconds or {}
        self.hang: set[int] = set()
        self.calls: list[str] = []
        self._limits = {pool: trio.CapacityLimiter(n) for pool, n in (threads or {}).items()}

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        self.calls.append(pool)
        if args and any(args[0] == entry or getattr(args[0], "sample", -1) == entry for entry in self.hang):
            await trio.sleep_forever()
        limiter = self._limits.get(pool)
        if limiter is None:
            await trio.sleep(self.seconds.get(pool, 0))
            return call(*args)
        async with limiter:
            await trio.sleep(self.seconds.get(pool, 0))
            return call(*args)

    async def run_within(self, limit_s: float, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        with trio.fail_after(limit_s):
            return await self.run(pool, call, *args)

    def start(self, pool: str, call: Callable[..., Any], *args: Any, then: Callable[[Any, Any], None]) -> Any:
        scope = trio.CancelScope()

        async def work() -> None:
            with scope:
                try:
                    result = await self.run(pool, call, *args)
                except Exception as error:
                    then(None, error)
                else:
                    then(result, None)

        trio.lowlevel.spawn_system_task(work)
        return SimpleNamespace(give_up=scope.cancel)

    def unhurried(self) -> None:
        pass

    def on_loop(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def post(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)


class RangeAnswer:
    """The way of an answer to a READ of a range (see `mlfs.engine.range_reads.RangeReply`), which a test waits for."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.answers: list[Any] = []
        self.spent: list[OSError | None] | None = None

    def gives(self, data: Any) -> None:
        self.answers.append(data)

    fails = gives

    def noted(self) -> None:
        self.over.set()

    def goes_on(self, spent: list[OSError | None]) -> None:
        self.spent = spent
        self.over.set()


async def read_large(ranges: Ranges, handle: int, offset: int, size: int) -> Any:
    """A READ through a large file's handle that is not answered at once, as the channel makes it."""
    reply = RangeAnswer()
    if ranges.begin_large(handle, offset, size, reply):
        await reply.over.wait()
        if reply.spent is None:
            (answer,) = reply.answers
            return answer
        assert reply.answers == []
    return await ranges.read_large(handle, offset, size, reply.spent)


def no_names(source: PosixSource) -> tuple[Callable[..., None], Callable[..., None], Looks, Callable[[], None]]:
    """The last arguments of a Fetcher whose files have one name each, in a mount that only its user reads."""

    def never(*args: object) -> None:
        raise AssertionError

    return lambda files: None, never, Looks(source.manifest, source, never, time.monotonic, None), lambda: None


def kin(pid: int) -> tuple[int, int]:
    """Each reader is a process. Those of one rank have one parent: tests number them 100 * anything + rank."""
    return pid, 1_000_000 + pid % 100


class GivenStreams:
    """Streams of a job: one list of entries for each rank, for each epoch."""

    files_per_sample = 1

    def __init__(
        self, epochs: list[list[list[int]]], batch_files: int, rounds: Sequence[int], buffer_bytes: int
    ) -> None:
        self._epochs = epochs
        self._rounds, self._buffer_bytes = np.array(rounds, dtype=np.int64), buffer_bytes
        self.batch_files = batch_files
        flat = [entry for epoch in epochs for rank in epoch for entry in rank]
        self.sample_ids = np.unique(np.array(flat, dtype=np.int64))

    def length(self, epoch: int) -> int:
        return len(self._epochs[epoch][0])

    def epoch_ids(self, epoch: int, rank: int) -> np.ndarray:
        return np.array(self._epochs[epoch][rank], dtype=np.int64)

    def refill(self, epoch: int, ranks: Sequence[int]) -> Refill | None:
        """As of an order that is served in rounds, if this one is given in rounds."""
        if not len(self._rounds):
            return None
        places = [self.epoch_ids(epoch, rank) for rank in ranks]
        return refill_of(places, [np.full(len(of_rank), 8192) for of_rank in places], self._rounds, self._buffer_bytes)


def build_no_orders(spec: JobSpec) -> JobStreams:
    """For a mount that hears of no job of another node."""
    raise AssertionError(spec.name)


def simulate(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run under a clock that jumps over all waits."""
    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def given_job(
    epochs: list[list[list[int]]],
    batch_size: int = 4,
    world_size: int = 0,
    rounds: Sequence[int] = (),
    buffer_bytes: int = 0,
    **more: Any,
) -> tuple[JobSpec, JobStreams]:
    """A job whose streams are given: its first ranks read here, as many as there are streams an epoch.

    Args:
        world_size: ranks on all nodes, 0 if all of them read here. more: further fields of the specification.
        rounds: the position at which each round of an epoch begins, in an order that is served in rounds of samples of
            two pages. buffer_bytes: half of the node's staging window then.
    """
    here = len(epochs[0])
    fields = {"epochs": len(epochs), "batch_size": batch_size, "world_size": world_size or here}
    given = {"sampler": "explicit", "order_file": "/streams/are/given", "ranks": list(range(here))}
    return parse_job(fields | given | more), cast(JobStreams, GivenStreams(epochs, batch_size, rounds, buffer_bytes))


def shuffled(entries: list[int], epochs: int, ranks: int, seed: int = 0) -> list[list[list[int]]]:
    """Epochs of random order, dealt to ranks."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(entries).tolist() for _ in range(epochs)]
    per_rank = len(entries) // ranks
    return [[order[rank::ranks][:per_rank] for rank in range(ranks)] for order in orders]


class CountingSource(PosixSource):
    """The real source, which counts what it was asked, fails by countdown and shows what it answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: list[int] = []
        self.failures: dict[int, int] = {}

    def read_whole(self, entry: int, close_later: bool = False) -> Any:
        self.read.append(entry)
        if self.failures.get(entry, 0):
            self.failures[entry] -= 1
            raise OSError(5, "injected")
        return super().read_whole(entry, close_later)


class Waiting(WaitingReader):
    """A reader whose open waits, as tests wait for it: the loop answers."""

    def __init__(self, opens: Opens, entry: int) -> None:
        super().__init__(opens, entry)
        self._told = trio.Event()
        self._result: tuple[Exception | None, int, int]

    def in_place(self, source_bytes: int) -> bool:
        return False

    def over(self, error: Exception | None, handle: int, source_bytes: int) -> None:
        self._result = error, handle, source_bytes
        self._told.set()

    async def result(self) -> tuple[int, int]:
        """0 or a large file's handle, and what the source gave."""
        await self._told.wait()
        error, handle, source_bytes = self._result
        if error is not None:
            raise error
        return handle, source_bytes


class Mount:
    """An engine over a tree, with all its parts at hand."""

    def __init__(
        self, engine: Engine, pages: FakePages, source: CountingSource, runner: InlineRunner, explainer: Any
    ) -> None:
        self.engine = engine
        self.explainer = explainer
        self.pages = pages
        self.source = source
        self.runner = runner
        self.files: list[int] = engine.manifest.files.tolist()

    @property
    def table(self) -> SampleTable:
        """The scheduler's records, to look at."""
        return self.engine.scheduler.table

    async def open(self, entry: int, pid: int = 1) -> int:
        """Open, as the handlers do: 0 or a large file's handle."""
        engine = self.engine
        if engine.opens.hit(entry):
            engine.digest.opened(entry, pid)
            return 0
        engine.digest.waits(entry, pid)
        try:
            reader = Waiting(engine.opens, entry)
            engine.opens.wait(reader)
            handle, source_bytes = await reader.result()
        except OSError:
            engine.digest.refused(entry, pid)
            raise
        engine.digest.goes_on(entry, pid, source_bytes)
        return handle

    async def read(self, entry: int, pid: int = 1) -> bytes:
        """Open, read, close, as the handlers do; the bytes come from the page cache if it has them."""
        engine = self.engine
        handle = await self.open(entry, pid)
        size = engine.manifest.size_view[entry]
        if handle:
            data = await self.read_on(entry, handle, 0, size)
            engine.digest.released(engine.ranges.close_large(handle))
            return data
        held = self.pages.held.get(entry)
        if held is None:
            data = bytes(await engine.ranges.read(entry, engine.manifest.generation_view[entry], 0, size))
        else:
            data = bytes(held)
        engine.digest.released(entry)
        return data

    async def read_on(self, entry: int, handle: int, begin: int, end: int) -> bytes:
        """Read a part of a large file, from the beginning of a page on: READs come for pages that are not there."""
        data, pages = b"", self.pages.there.setdefault(entry, {})
        size = self.engine.manifest.size_view[entry]
        while begin + len(data) < end:
            at = begin + len(data)
            if at // PAGE not in pages:
                most = next((page for page in range(at // PAGE + 1, -(-end // PAGE)) if page in pages), -(-end // PAGE))
                stop = min(most * PAGE, size)
                self.pages.keep(entry, at, bytes(await read_large(self.engine.ranges, handle, at, stop - at)))
            data += pages[at // PAGE]
        return data[: end - begin]

    def drop_lingering(self) -> None:
        """Have the window drop what lingers, as it does for whoever needs all of its room."""
        self.engine.scheduler.window.make_room(self.table.window_capacity_bytes + 1)
        self.engine.driver.step(JobEnded("nobody"))

    def content(self, entry: int) -> bytes:
        """What the source file holds."""
        return Path(os.fsdecode(self.root) + "/" + os.fsdecode(self.engine.manifest.path(entry))).read_bytes()

    root: bytes = b""


@contextmanager
def tree(directory: Path, count: int, size: int = 5000) -> Iterator[int]:
    """A directory of files with contents of their own; yields its descriptor."""
    for index in range(count):
        path = directory / f"c{index % 3}" / f"{index:05d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(index.to_bytes(4, "big") * (size // 4))
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def start_mover(channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process that moves files."""
    command = [sys.executable, "-m", "mountd.mover", "--channel-fd", str(channel.fileno())]
    return subprocess.Popen(command, pass_fds=(channel.fileno(),))


def count_moves(engine: Engine, source: CountingSource, pages: FakePages) -> None:
    """Have the source show what movers read. What is to fail is no mover's."""
    fetcher, movers = engine.fetcher, engine.movers
    to_move, take = fetcher.to_move, movers.take

    def taken() -> Any:
        mover = take()
        if mover is None:
            return None
        move = type(mover).move

        def counted(batch: Any, entries: Any, *more: Any) -> Any:
            try:
                return move(mover, batch, entries, *more)
            finally:
                source.read += [
                    entry for entry, outcome in zip(entries, mover.outcomes(), strict=False) if outcome & READ
                ]

        mover.move = counted
        return mover

    fetcher.to_move = lambda placed, stage: [  # type: ignore[method-assign]
        one
        for one in to_move(placed, stage)
        if not source.failures.get(one.item.sample) and one.item.sample not in pages.refuse
    ]
    movers.take = taken  # type: ignore[method-assign,union-attr]


@asynccontextmanager
async def running(
    directory: Path, count: int = 60, size: int = 5000, *, staging: int = 1 << 20, ram: int = 0,
    disks: list[tuple[PlaceKind, Tier, int]] | None = None,
    seconds: dict[str, float] | None = None, pfs_threads: int = 4,
    hedge_s: float = 10.0, timeout_s: float = 30.0, explainer: Any = None,
    listeners: Any = (), runner: InlineRunner | None = None, cpu_clock: Callable[[], float] = time.thread_time,
    expected_faults: frozenset[str] = frozenset(), samples_of: Callable[[Manifest], Samples] = Samples.whole_files,
    movers: int = MOVERS, at_once: bool = True,
) -> Any:  # fmt: skip
    """An engine that runs. Args: at_once: movers are there from the start."""
    with tree(directory, count, size) as fd:
        manifest = scan(fd)
        explainer = explainer or Explainer(None)
        pages, runner = FakePages(), runner or InlineRunner(seconds)
        limits = MountLimits(staging, pfs_threads, hedge_s=hedge_s, timeout_s=timeout_s)
        samples = samples_of(manifest)
        source = CountingSource(fd, manifest)
        tiers = [TierPlace(PlaceKind.RAM, RamTier(ram), samples)]
        tiers += [TierPlace(kind, tier, samples, largest) for kind, tier, largest in disks or []]
        places = Places(SourcePlace(source, samples), tiers)
        kind = MoverKind(movers, at_once, start_mover, tuple(places.shared.values())) if movers else None
        machine = MountMachine(runner, trio.current_time, Shortages(), cpu_clock, kin, no_name, kind)
        data = MountedData(samples, source, places, pages)
        engine = Engine(
            data, machine, limits, Observers(explainer, listeners), Cluster(Showcase(), None, build_no_orders)
        )
        mount = Mount(engine, pages, source, runner, explainer)
        mount.root = os.fsencode(directory)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                if engine.movers is not None:
                    count_moves(engine, source, pages)
                    engine.movers.begin(pages.descriptor)
                    while at_once and len(engine.movers.lives()) < movers:
                        await trio.sleep(0.001)
                yield mount
                nursery.cancel_scope.cancel()
        finally:
            if engine.movers is not None:
                engine.movers.end()
        # The daemon survives such a bug; a test has to see it.
        faults = {"scheduler_fault", "driver_fault", "background_fault"} & engine.statistics().errors.keys()
        assert faults <= expected_faults, faults
        tiers[0].close()
