"""By which route what a tier holds is fetched: a tier that has become slow is left, told, tried and used again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import trio
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate

from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.places.place import PlaceKind
from mlfs.places.ram import RamTier
from mountd.messages import engine_messages
from mountd.status import pfs_status

NOBODY_ASKS = ExplainerStatistics(InferenceStatistics(InferenceState.IDLE), {})

SIZE = 5000
DISK = "ssd:/scratch"
FILES = 48
WINDOW = 16 * 8192
SLOW = {"pfs": 0.02, DISK: 0.5}


class Disk(RamTier):
    """A disk that counts what it was asked for."""

    name = DISK
    gets = 0

    def get(self, *args: Any) -> Any:
        self.gets += 1
        return super().get(*args)


class Lanes(InlineRunner):
    """Each sample takes a lane the seconds of its pool; lanes work side by side."""

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if pool == "demand":
            fetched = call(*args)
            await trio.sleep(self.seconds[DISK if fetched.place else "pfs"])
            return fetched
        batch = args[0].gi_frame.f_locals["batch"].items if args and isinstance(args[0], Generator) else ()
        seconds = self.seconds.get(pool, 0.0) * len(batch)
        await trio.sleep(seconds)
        result = call(*args)
        if seconds:
            result.wall_s = seconds
        return result


def left(mount: Mount) -> bool:
    """Whether the disk is passed over."""
    return mount.engine.scheduler.statistics().routing.passed_over[2]


async def read_epoch(mount: Mount, epoch: list[list[int]], pause_s: float = 0.001) -> None:
    for entry in epoch[0]:
        assert await mount.read(entry, 100) == mount.content(entry)
        await trio.sleep(pause_s)


class Hanging(Lanes):
    """From some moment on the source hangs."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(seconds)
        self.hanging = False
        self.stopped = trio.Event()
        self.left: Callable[[], bool] = lambda: False

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if self.hanging and (pool == "pfs" or (pool == "demand" and self.left())):
            await self.stopped.wait()
        return await super().run(pool, call, *args)


async def settle(mount: Mount) -> None:
    while any(mount.engine.statistics().under_way.values()):
        await trio.sleep(0.1)


async def filled(mount: Mount, epochs: list[list[list[int]]]) -> Any:
    """All samples lie on the disk, and the source was measured while they came. Returns the job."""
    job = await mount.engine.shared.register(*given_job(epochs))
    await read_epoch(mount, epochs[0])
    await settle(mount)
    assert mount.table.held_by.count(2) == FILES
    return job


def test_a_slow_tier_is_left_and_used_again_when_it_is_faster(tmp_path: Path) -> None:
    async def body() -> None:
        disk, seconds = Disk(1 << 20), {"pfs": 0.02, DISK: 0.5}
        disks: Any = [(PlaceKind.SSD, disk, 0)]
        async with running(tmp_path, FILES, SIZE, disks=disks, staging=WINDOW, runner=Lanes(seconds)) as mount:
            engine, epochs = mount.engine, shuffled(mount.files, 100, 1)
            job = await filled(mount, epochs)
            coming = iter(range(1, 100))
            while not left(mount):
                await read_epoch(mount, epochs[next(coming)])
            (said,) = engine_messages(engine.statistics(), NOBODY_ASKS, "/mnt")
            assert "ssd:/scratch is slower than the source" in said
            assert "on top of the bound" in said
            await settle(mount)
            gets = disk.gets
            for _ in range(4):
                await read_epoch(mount, epochs[next(coming)])
            assert left(mount)
            assert disk.gets - gets < 2 * FILES  # a few, to see how it does
            seconds[DISK] = 0.01
            while left(mount):
                await read_epoch(mount, epochs[next(coming)], 0.1)
            await read_epoch(mount, epochs[next(coming)])
            await settle(mount)
            last = next(coming)
            await read_epoch(mount, epochs[last])
            await settle(mount)
            by_choice = engine.counters.by_choice.bytes
            assert by_choice > 2 * FILES * SIZE
            assert pfs_status(engine.statistics())["total_bytes"] == FILES * SIZE + by_choice
            assert sum(job.bytes_read.pfs_by_epoch.values()) == FILES * SIZE + by_choice
            assert job.bytes_read.pfs_by_epoch.get(last, 0) == 0
            assert engine_messages(engine.statistics(), NOBODY_ASKS, "/mnt") == []

    simulate(body)


async def leave(mount: Mount, epochs: list[list[list[int]]]) -> int:
    """Read until the disk is passed over, and all is settled; returns the next epoch."""
    await filled(mount, epochs)
    number = 0
    while not left(mount):
        number += 1
        await read_epoch(mount, epochs[number])
    await settle(mount)
    return number + 1


def test_what_the_source_fails_to_give_comes_from_the_tier_that_was_left(tmp_path: Path) -> None:
    async def body() -> None:
        disks: Any = [(PlaceKind.SSD, Disk(1 << 20), 0)]
        async with running(tmp_path, FILES, SIZE, disks=disks, staging=WINDOW, runner=Lanes(SLOW)) as mount:
            engine, epochs = mount.engine, shuffled(mount.files, 60, 1)
            number = await leave(mount, epochs)
            mount.source.failures = dict.fromkeys(mount.files, 1000)
            before = engine.counters.all.fetches["pfs"].count
            await read_epoch(mount, epochs[number])
            await read_epoch(mount, epochs[number + 1])
            assert engine.counters.all.fetches["pfs"].count == before
            assert not engine.counters.errors
            assert engine.fetcher.read_bytes(mount.files[0], 0, 2).data == mount.content(mount.files[0])

    simulate(body)


def test_a_source_that_hangs_has_all_tiers_used_again(tmp_path: Path) -> None:
    async def body() -> None:
        disks: Any = [(PlaceKind.SSD, Disk(1 << 20), 0)]
        runner = Hanging(SLOW)
        async with running(tmp_path, FILES, SIZE, disks=disks, staging=WINDOW, runner=runner) as mount:
            epochs = shuffled(mount.files, 60, 1)
            runner.left = partial(left, mount)
            number = await leave(mount, epochs)
            runner.seconds, runner.hanging = {"pfs": 0.02, DISK: 0.01}, True
            for epoch in epochs[number : number + 3]:
                await read_epoch(mount, epoch)
            assert not left(mount)
            runner.stopped.set()

    simulate(body)


def test_a_changed_file_is_read_anew_and_a_left_tier_gets_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        disks: Any = [(PlaceKind.SSD, Disk(1 << 20), 0)]
        async with running(tmp_path, FILES, SIZE, disks=disks, staging=WINDOW, runner=Lanes(SLOW)) as mount:
            engine, epochs = mount.engine, shuffled(mount.files, 60, 1)
            number = await leave(mount, epochs)
            entry = epochs[number][0][-1]  # not staged yet
            path = Path(tmp_path, engine.manifest.path(entry).decode())
            path.write_bytes(b"new" * 3000)
            await read_epoch(mount, epochs[number])
            await settle(mount)
            assert engine.statistics().tree.changed_files == 1
            assert not mount.table.held_by[entry]
            assert mount.table.held_by.count(2) == FILES - 1
            assert engine.jobs["train"].bytes_read.stream_bytes == (FILES - 1) * SIZE + 9000

    simulate(body)


def test_a_tier_is_not_left_while_nobody_waits_or_the_source_is_no_better(tmp_path: Path) -> None:
    async def body() -> None:
        for name, seconds, pause_s in (
            ("rest", {"pfs": 0.02, DISK: 0.5}, 0.5),
            ("alike", {"pfs": 0.45, DISK: 0.5}, 0.001),
        ):
            root = tmp_path / name
            root.mkdir()
            disks: Any = [(PlaceKind.SSD, Disk(1 << 20), 0)]
            async with running(root, FILES, SIZE, disks=disks, staging=WINDOW, runner=Lanes(seconds)) as mount:
                epochs = shuffled(mount.files, 9, 1)
                await filled(mount, epochs)
                for epoch in epochs[1:]:
                    await read_epoch(mount, epoch, pause_s)
                await settle(mount)
                assert mount.engine.counters.by_choice.count == 0
                assert mount.engine.counters.all.fetches["pfs"].count == FILES

    simulate(body)
