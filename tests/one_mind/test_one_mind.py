"""The daemon and the simulator run the same decisions: the same trace through both drivers gives the same commands.

Drawn: a data set, jobs, readers with their pauses, how long each fetch and each drop takes, fetches that fail or hang.
The trio driver runs under MockClock over real files and a RAM tier, with lanes and the page cache faked behind their
contracts. The heap driver runs a node of the detailed simulator. Both schedulers' commands are compared one by one,
with the times at which they were given.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import footprint_bytes
from mlfs.sim.detailed.heap import Heap
from mlfs.sim.detailed.node import Lane, Node

SIZE = 5000
HEDGE_S, TIMEOUT_S = 2.0, 5.0
FOR_EVER_S = 1e6

Trace = list[tuple[float, list[Any]]]


@dataclass
class Drawn:
    """What a seed draws. Durations and failures are drawn by what they are about, so that both drivers get the same."""

    seed: int
    files: int = 0
    ram: int = 0
    window: int = 0
    lanes: int = 0
    epochs: list[list[list[int]]] = field(default_factory=list)  # numbers of files, by epoch and rank
    batch: int = 1
    fails: float = 0.0
    think_s: float = 0.0

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.files = rng.randint(6, 40)
        self.ram = rng.choice([0, self.files // 3, self.files])
        self.window = rng.randint(3, max(4, self.files))
        self.lanes = rng.randint(1, 4)
        self.batch = rng.randint(1, 6)
        self.epochs = shuffled(list(range(self.files)), rng.randint(1, 4), rng.randint(1, 2), self.seed)
        self.fails = rng.choice([0.0, 0.0, 0.05])
        self.think_s = rng.choice([0.001, 0.01, 0.05])

    def number(self, *about: object) -> float:
        """A number of [0, 1) that belongs to something."""
        return random.Random(f"{self.seed}:{about}").random()

    def fetch_s(self, fetch: int, sample: int) -> float:
        """How long a fetch of a sample takes; seldom it hangs."""
        if self.fails and self.number("hangs", fetch, sample) < self.fails / 3:
            return FOR_EVER_S
        return 0.002 + 0.02 * self.number("fetch", fetch, sample)

    def error(self, fetch: int, sample: int) -> int:
        """The errno that a fetch of a sample ends with, 0 for none."""
        return errno.EIO if self.fails and self.number("error", fetch, sample) < self.fails else 0

    def drop_s(self, samples: Sequence[int]) -> float:
        """How long a drop takes."""
        return 0.001 + 0.003 * self.number("drop", tuple(samples))

    def pause_s(self, epoch: int, rank: int, at: int) -> float:
        """How long a reader computes after a read; seldom he is away for long."""
        drawn = self.number("pause", epoch, rank, at)
        return self.think_s * (0.5 + drawn) + (1.0 if drawn > 0.98 else 0.0)


def plain(command: Any) -> Any:
    """A command without objects of one driver; times to the microsecond; samples are numbered from the first file."""
    name = type(command).__name__
    if isinstance(command, c.WakeAt):
        return name, round(command.at_s, 6)
    if isinstance(command, c.LoadEpoch | c.EpochBegan | c.EpochLeft):
        return name, command.job.name, command.epoch
    if isinstance(command, c.CountReads | c.StartedAgain):
        return name, command.job.name
    return name, *command


class Traced:
    """A scheduler whose steps are noted."""

    def __init__(self, scheduler: Scheduler, began_s: float) -> None:
        self.trace: Trace = []
        self._step = scheduler.step
        self._began_s = began_s

    def step(self, now_s: float, events: Sequence[e.Event]) -> list[c.Command]:
        commands = self._step(now_s, events)
        if commands:
            self.trace.append((round(now_s - self._began_s, 6), [plain(command) for command in commands]))
        return commands


class TimedRunner(InlineRunner):
    """Lanes and fetches for readers that take the drawn times; a lane's time passes sample by sample."""

    def __init__(self, drawn: Drawn, first_file: int) -> None:
        super().__init__()
        self.drawn = drawn
        self.first_file = first_file
        self.fetch_numbers: dict[int, int] = {}  # by the identity of what a fetch is about

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if args and isinstance(args[0], Generator):
            return await self._lane(args[0])
        if args and isinstance(args[0], c.Item):
            sample = args[0].sample
            await trio.sleep(self.drawn.fetch_s(self.fetch_numbers[id(args[0])], sample - self.first_file))
            return call(*args)
        if pool == "drop":
            await trio.sleep(self.drawn.drop_s([sample - self.first_file for sample in args[0]]))
        return call(*args)

    async def _lane(self, work: Generator[int, None, Any]) -> Any:
        batch = work.gi_frame.f_locals["batch"]  # type: ignore[attr-defined]
        try:
            while True:
                sample = next(work)
                await trio.sleep(self.drawn.fetch_s(batch.fetch, sample - self.first_file))
        except StopIteration as end:
            return end.value


def by_trio(drawn: Drawn, root: Path) -> Trace:
    """The commands that the daemon's driver was given."""
    traces: list[Trace] = []

    async def body() -> None:
        cost, runner = footprint_bytes(SIZE), TimedRunner(drawn, 0)
        async with running(
            root, drawn.files, SIZE, staging=drawn.window * cost, ram=drawn.ram * cost, pfs_threads=drawn.lanes,
            hedge_s=HEDGE_S, timeout_s=TIMEOUT_S, runner=runner, cpu_clock=lambda: 0.0,
        ) as mount:  # fmt: skip
            first = mount.files[0]
            assert mount.files == list(range(first, first + drawn.files))
            runner.first_file = first
            faulty(mount, drawn, runner)
            scheduler = mount.engine.scheduler
            traced = Traced(scheduler, trio.current_time())
            scheduler.step = traced.step  # type: ignore[method-assign]
            traces.append(traced.trace)
            epochs = [[[first + of for of in stream] for stream in ranks] for ranks in drawn.epochs]
            await mount.engine.register(*given_job(epochs, batch_size=drawn.batch))
            async with trio.open_nursery() as nursery:
                for rank in range(len(epochs[0])):
                    nursery.start_soon(read_by_trio, mount, drawn, rank, first)
            await trio.sleep(20)

    simulate(body)
    return traces[0]


def faulty(mount: Mount, drawn: Drawn, runner: TimedRunner) -> None:
    """Have fetches fail as drawn: by their numbers, which only the driver knows."""
    driver, fetcher = mount.engine._driver, mount.engine._fetcher
    fetch, carry_out, now = fetcher.fetch, driver._do[c.Fetch], [0]

    def begun(command: c.Fetch) -> None:
        for item in command.items:
            runner.fetch_numbers[id(item)] = command.fetch
            numbers[item.sample] = command.fetch
        carry_out(command)

    def failing(sample: int, place: int, instead: int = 0, close_later: bool = False) -> Any:
        result = fetch(sample, place, instead, close_later)
        error = drawn.error(numbers[sample], sample - runner.first_file)
        return result._replace(error=OSError(error, "drawn")) if error else result

    numbers: dict[int, int] = {}
    del now
    driver._do[c.Fetch] = begun
    fetcher.fetch = failing  # type: ignore[method-assign]


async def read_by_trio(mount: Mount, drawn: Drawn, rank: int, first: int) -> None:
    """One reader: a process a rank."""
    for epoch, ranks in enumerate(drawn.epochs):
        for at, of in enumerate(ranks[rank]):
            try:
                await mount.read(first + of, 100 + rank)
            except OSError as error:
                assert error.errno in (errno.EIO, errno.ETIMEDOUT)
            await trio.sleep(drawn.pause_s(epoch, rank, at))


class DrawnWorld:
    """What surrounds the simulated node."""

    def __init__(self, heap: Heap, drawn: Drawn, first: int) -> None:
        self.heap, self.drawn, self.first = heap, drawn, first

    def get(self, node: Node, lane: Lane) -> None:
        fetch, item = lane.fetch.fetch, lane.item
        self.heap.at(self.heap.now_s + self.drawn.fetch_s(fetch, item.sample - self.first), self._got, node, lane)

    def _got(self, node: Node, lane: Lane) -> None:
        fetch, item = lane.fetch.fetch, lane.item
        error = self.drawn.error(fetch, item.sample - self.first)
        if error:
            node.got(lane, e.Landed(fetch, item.sample, error=error))
        else:
            kept_in = node.to_keep(item, item.place)
            node.got(lane, e.Landed(fetch, item.sample, item.place, SIZE, True), kept_in)

    def drop(self, node: Node, samples: Sequence[int]) -> None:
        after_s = self.drawn.drop_s([sample - self.first for sample in samples])
        self.heap.at(self.heap.now_s + after_s, node.dropped, samples)

    def load_epoch(self, node: Node, job: Any, epoch: int) -> Any:
        return job.load_epoch(epoch)

    def plan(self, node: Node) -> None:
        return None

    def begins_anew(self, node: Node, job: Any) -> None:
        raise AssertionError("no reader begins anew")
