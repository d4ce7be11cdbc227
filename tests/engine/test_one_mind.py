"""The daemon and the simulator run the same decisions: the same trace through both drivers gives the same commands.

Drawn from a seed: a data set, a job of one or two ranks, some of them served in rounds, readers with their pauses, how
long each fetch and each drop takes. The trio driver (mlfs.engine) runs under MockClock over real files and a RAM tier;
its lanes' time and the page cache are faked behind their contracts. The heap driver (mlfs.lab.sim.detailed) runs a
simulated node with the same durations. The commands that both schedulers gave are compared one by one, with the times
at which they were given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fakes import InlineRunner, Mount, given_job, kin, running, shuffled, simulate
from support.drawn import cases
from support.failures.plain import plain
from support.one_node import DROP, OneReader, drawn_durations, run_node

from mlfs.follow.job import JobRun
from mlfs.measure.rates import Rates
from mlfs.places.ram import RamTier
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import footprint_bytes

SIZE = 5000
TIER_LANES = 4
HEDGE_S, TIMEOUT_S = 2.0, 5.0

Trace = list[tuple[float, list[str]]]


class Drawn:
    """What a seed draws. Samples are numbered from 0; a mount's files have other numbers: `first` and following."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.files = rng.randint(6, 40)
        self.ram_bytes = rng.choice([0, self.files // 3, self.files]) * footprint_bytes(SIZE)
        self.window_bytes = rng.randint(3, self.files) * footprint_bytes(SIZE)
        self.lanes = rng.randint(1, 4)
        self.batch = rng.randint(1, 6)
        self.think_s = rng.choice([0.00071, 0.0113, 0.0517])
        self.epochs = shuffled(list(range(self.files)), rng.randint(1, 4), rng.randint(1, 2), seed)
        longest_s = rng.choice([0.002, 0.02, 0.1])  # lanes far ahead of the readers, or behind them
        self.durations = drawn_durations(seed, 0.0003, longest_s)
        length = len(self.epochs[0][0])
        # Every third order is one that is served in rounds.
        self.rounds = sorted({0, length // 3, 2 * length // 3}) if seed % 3 == 0 else []

    def readers(self, first: int) -> list[OneReader]:
        """A process a rank."""
        return [
            OneReader(
                *kin(100 + rank),
                [first + sample for epoch in self.epochs for sample in epoch[rank]],
                0.0101 + 0.0007 * rank,
                self.think_s * (1 + 0.037 * rank),
            )
            for rank in range(len(self.epochs[0]))
        ]

    def job(self, first: int) -> tuple[Any, Any]:
        """A specification and its streams."""
        epochs = [[[first + sample for sample in stream] for stream in ranks] for ranks in self.epochs]
        return given_job(epochs, batch_size=self.batch, rounds=self.rounds, buffer_bytes=self.window_bytes // 2)


def noted(step: Callable[..., list[c.Command]], trace: Trace, clock_s: Callable[[float], float]) -> Any:
    """The step of a scheduler that notes its commands, and when they were given."""

    def noting(now_s: float, events: Sequence[e.Event]) -> list[c.Command]:
        commands = step(now_s, events)
        told = [plain(shifted(command, clock_s)) for command in commands]
        if told:
            trace.append((round(clock_s(now_s), 6), told))
        return commands

    return noting


def shifted(command: c.Command, clock_s: Callable[[float], float]) -> c.Command:
    """A command's time from the beginning of the trace on."""
    return command._replace(at_s=clock_s(command.at_s)) if isinstance(command, c.WakeAt) else command


class TimedRunner(InlineRunner):
    """Threads that take the drawn times: a lane's pass sample by sample, as it says what it has begun."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn
        self.fetch_of: dict[int, int] = {}  # the fetch that a sample was last in

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if args and isinstance(args[0], Generator):
            return await self.lane(args[0])
        if args and isinstance(args[0], c.Item):
            sample = args[0].sample
            await trio.sleep(self.drawn.durations(self.fetch_of[sample], sample))
        elif pool == "drop":
            await trio.sleep(self.drawn.durations(DROP, args[0][0]))
        return call(*args)

    async def lane(self, work: Generator[int, None, Any]) -> Any:
        """Do a lane's work in its time."""
        try:
            while True:
                sample = next(work)
                await trio.sleep(self.drawn.durations(self.fetch_of[sample], sample))
        except StopIteration as end:
            return end.value


def by_trio(drawn: Drawn, root: Path) -> tuple[Trace, int]:
    """The commands that the daemon's driver was given, and the number of the first file."""
    trace: Trace = []
    first: list[int] = []

    async def body() -> None:
        runner = TimedRunner(drawn)
        async with running(
            root, drawn.files, SIZE, staging=drawn.window_bytes, ram=drawn.ram_bytes, pfs_threads=drawn.lanes,
            hedge_s=HEDGE_S, timeout_s=TIMEOUT_S, runner=runner, cpu_clock=lambda: 0.0,
        ) as mount:  # fmt: skip
            first.append(mount.files[0])
            assert mount.files == list(range(first[0], first[0] + drawn.files))
            await trio.sleep(1)
            began_s = trio.current_time()
            scheduler = mount.engine.scheduler
            noting = noted(scheduler.step, trace, lambda at_s: at_s - began_s)

            def step(now_s: float, events: Sequence[e.Event]) -> list[c.Command]:
                commands: list[c.Command] = noting(now_s, events)
                for fetch in commands:
                    if isinstance(fetch, c.Fetch):
                        runner.fetch_of |= {item.sample: fetch.fetch for item in fetch.items}
                return commands

            scheduler.step = step  # type: ignore[method-assign, assignment]
            async with trio.open_nursery() as nursery:
                for reader in drawn.readers(first[0]):
                    nursery.start_soon(read_by_trio, mount, reader, began_s)
                await mount.engine.shared.register(*drawn.job(first[0]))
            await trio.sleep(20)

    simulate(body)
    return trace, first[0]


async def read_by_trio(mount: Mount, reader: OneReader, began_s: float) -> None:
    """One reader."""
    await trio.sleep_until(began_s + reader.begins_s)
    for sample in reader.samples:
        assert await mount.read(sample, reader.process) == mount.content(sample)
        await trio.sleep(reader.think_s)


def by_heap(drawn: Drawn, first: int) -> Trace:
    """The commands that the simulator's driver was given."""
    column = np.full(first + drawn.files, SIZE, dtype=np.int64)
    ram = RamTier(drawn.ram_bytes)
    places = [
        PlaceInfo(PlaceKind.SOURCE, "pfs", drawn.lanes),
        PlaceInfo(PlaceKind.RAM, "ram", TIER_LANES, drawn.ram_bytes, footprint_bytes=ram.footprint_bytes),
    ]
    limits = Limits(drawn.window_bytes, 0, HEDGE_S, TIMEOUT_S)
    scheduler = Scheduler(memoryview(column), places, limits, Rates())
    job = JobRun(*drawn.job(first), column)
    for epoch in job.wanted_epochs():
        job.add_epoch(job.load_epoch(epoch))
    ram.close()
    steps = run_node(scheduler, places, drawn.readers(first), drawn.durations, [e.JobInstalled(job)])
    trace = [(round(step.at_s, 6), [plain(command) for command in step.commands]) for step in steps]
    return [(at_s, told) for at_s, told in trace if told]


@pytest.mark.parametrize("seed", range(cases(20)))
def test_both_drivers_are_given_the_same_commands_at_the_same_times(tmp_path: Path, seed: int) -> None:
    drawn = Drawn(seed)
    daemon, first = by_trio(drawn, tmp_path)
    simulator = by_heap(drawn, first)
    assert [told for _, told in daemon] == [told for _, told in simulator]
    for (daemon_s, _), (simulator_s, _) in zip(daemon, simulator, strict=True):
        assert daemon_s == pytest.approx(simulator_s, abs=2e-6)  # two clocks add up the same times in another order


def test_the_traces_are_about_something(tmp_path: Path) -> None:
    """Fetches ahead and for readers, copies, drops, late recalls, epochs that begin and end: all that is compared."""
    kinds = {command.split()[0] for seed in range(40) for _, told in by_heap(Drawn(seed), 4) for command in told}
    wanted = {"Fetch", "Answer", "Recall", "Drop", "LoadEpoch", "EpochBegan", "EpochLeft", "Digested", "WakeAt"}
    assert wanted <= kinds
