"""Movers, in processes of their own: they read the source, push and keep; what is not plain is left to a lane."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import fakes
import pytest
import trio
from fakes import Mount, given_job, running, simulate

from mlfs.engine import moves
from mlfs.engine.fetch import ToMove
from mlfs.engine.movers import LONGEST_PAUSE_S, WORTH_S, MoverChannel, MoverTimes, WorthStarting, by_cores
from mlfs.engine.moves import Move
from mlfs.engine.moving import Moving
from mlfs.places.known_file import KnownFile
from mlfs.places.place import PlaceKind, TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.secret import Secret
from mlfs.places.ssd import SsdTier

COUNT, SIZE = 60, 5000
FOOTPRINT = 8192  # of a file in whole pages


async def fetched_ahead(mount: Mount, epochs: int = 1) -> None:
    """Have a job's files fetched ahead of it."""
    await mount.engine.shared.register(*given_job([[mount.files]] * epochs))
    await trio.sleep(1)


def tier_of(mount: Mount) -> RamTier:
    place = mount.engine.places.storing[0]
    assert isinstance(place, TierPlace)
    assert isinstance(place.tier, RamTier)
    return place.tier


def all_right(mount: Mount) -> bool:
    return all(mount.pages.held.get(entry) == mount.content(entry) for entry in mount.files)


def kept(mount: Mount) -> list[bytes | memoryview | None]:
    samples = mount.engine.samples
    return [tier_of(mount).get(samples.key(entry), samples.version_of(entry)) for entry in mount.files]


def test_files_are_read_once_pushed_and_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=2) as mount:
            own: list[int] = []
            mount.engine.source.read_whole = lambda entry, close_later=False: own.append(entry)  # type: ignore
            await fetched_ahead(mount)
            assert own == []
            assert sorted(mount.source.read) == mount.files
            assert all_right(mount)
            assert kept(mount) == [mount.content(entry) for entry in mount.files]
            assert tier_of(mount).used_bytes == COUNT * FOOTPRINT
            assert (mount.source.open_count, mount.source.bytes_read) == (COUNT, COUNT * SIZE)
            counters = mount.engine.counters.all.fetches["pfs"]
            assert (counters.count, counters.bytes) == (COUNT, COUNT * SIZE)

    simulate(body)


def test_the_longest_files_fit_into_a_message() -> None:
    path = b"x" * moves.LONGEST_PATH_BYTES
    file = Move(path, KnownFile(*range(6)), 1, False, 2, 3, b"n" * 60, bytes(80) + path)
    batch = [file] * moves.most_files(len(path))
    ours, movers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, movers:
        ours.send(moves.packed(batch))
        assert [*moves.unpacked(moves.receive(movers)[0])] == batch


def test_a_tier_takes_no_more_than_its_budget(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=7 * FOOTPRINT, movers=1) as mount:
            await fetched_ahead(mount)
            assert all_right(mount)
            assert tier_of(mount).used_bytes == 7 * FOOTPRINT
            assert sum(copy is not None for copy in kept(mount)) == 7

    simulate(body)


@pytest.mark.parametrize("how", ["longer", "as long", "gone", "a link", "others may read it"])
def test_what_is_not_as_it_was_known_is_left_to_the_lane(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=1) as mount:
            entry = mount.files[7]
            path = tmp_path / os.fsdecode(mount.engine.manifest.path(entry))
            generation = mount.engine.manifest.generation_view[entry]
            if how == "others may read it":
                path.chmod(0o600)
            elif how in ("longer", "as long"):
                path.write_bytes(b"x" * (SIZE + 1000 * (how == "longer")))
                os.utime(path, (1, 1))
            else:
                path.unlink()
                if how == "a link":
                    path.symlink_to(mount.engine.manifest.path(mount.files[8]))
            await fetched_ahead(mount)
            others = [other for other in mount.files if other != entry]
            assert all(mount.pages.held.get(other) == mount.content(other) for other in others)
            if how in ("gone", "a link"):
                assert entry not in mount.pages.held
                assert mount.engine.statistics().errors == {"prefetch_failed": 1}
            else:
                assert bytes(mount.pages.held[entry]) == path.read_bytes()
                assert mount.engine.manifest.generation_view[entry] != generation
                assert mount.engine.manifest.mode_view[entry] == path.stat().st_mode

    simulate(body)


def test_what_is_found_to_have_changed_meanwhile_is_fetched_again_and_not_kept_as_it_was(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=1) as mount:
            entry, fetcher = mount.files[7], mount.engine.fetcher
            path = tmp_path / os.fsdecode(mount.engine.manifest.path(entry))
            moved, before = fetcher.moved, path.read_bytes()

            def changes_first(files: Sequence[ToMove]) -> list[bool]:
                if entry in [file.item.sample for file in files] and path.read_bytes() == before:
                    path.write_bytes(b"y" * SIZE)
                    mount.engine.fetcher.fetch(entry, 0)  # as a reader's thread has found
                return moved(files)

            fetcher.moved = changes_first  # type: ignore[method-assign]
            await fetched_ahead(mount)
            assert bytes(mount.pages.held[entry]) == b"y" * SIZE
            assert kept(mount)[7] == b"y" * SIZE
            assert tier_of(mount).used_bytes == COUNT * FOOTPRINT

    simulate(body)


def test_what_somebody_else_has_brought_by_then_keeps_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=1) as mount:
            entry, samples, tier = mount.files[7], mount.engine.samples, tier_of(mount)
            copy = samples.key(entry), samples.version_of(entry)
            run, move, seen = Moving.run, MoverChannel.move, list[object]()

            def is_late(moving: Moving, claim: Callable[..., set[int]], ended: Callable[..., None]) -> MoverTimes:
                tier.put(*copy, memoryview(mount.content(entry)))
                return run(moving, lambda samples: claim(set(samples) - {entry}), ended)

            def looks(mover: MoverChannel, *of: Any) -> MoverTimes:
                seen.append(tier.get(*copy))
                return move(mover, *of)

            monkeypatch.setattr(Moving, "run", is_late)
            monkeypatch.setattr(MoverChannel, "move", looks)
            await fetched_ahead(mount)
            assert set(seen) == {mount.content(entry)}

    simulate(body)


def test_movers_are_as_many_as_the_cores_allow_and_come_once_lanes_compute_much() -> None:
    assert [by_cores(processors) for processors in (1, 2, 3, 4, 8, 64)] == [0, 1, 1, 2, 4, 4]
    often, seldom = WorthStarting(), WorthStarting()
    assert [often.is_reached(0.01, 0.01 * batch) for batch in range(100)].index(True) == 30  # a thread that is busy
    assert not any(seldom.is_reached(0.01, 1.0 * batch) for batch in range(10_000))


@pytest.mark.parametrize("can_start", [True, False])
def test_movers_come_by_themselves_or_lanes_go_on_without(
    tmp_path: Path, can_start: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot(_: object) -> object:
        raise OSError(errno.EAGAIN, "too many processes")

    if not can_start:
        monkeypatch.setattr(fakes, "start_mover", cannot)

    async def body() -> None:
        computes = float(WORTH_S).__mul__  # a thread between any two looks
        clock = map(computes, itertools.count()).__next__
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=2, at_once=False, cpu_clock=clock) as mount:
            await trio.sleep(60)
            assert mount.engine.movers.lives() == []
            await fetched_ahead(mount)
            await trio.sleep(3 * LONGEST_PAUSE_S)
            assert [name for name, *_ in mount.engine.movers.lives()] == ["mover-0", "mover-1"] * can_start
            assert sorted(mount.source.read) == mount.files
            assert all_right(mount)

    simulate(body)
    assert caplog.text.count("no mover can be started") == (not can_start)


def test_a_mover_that_has_died_is_followed_by_another_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, COUNT, SIZE, ram=1 << 20, movers=1) as mount:
            movers = mount.engine.movers
            assert movers is not None
            ((_, before, _, _),) = movers.lives()
            os.kill(before, signal.SIGKILL)
            os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
            await fetched_ahead(mount)
            assert all_right(mount)
            assert tier_of(mount).used_bytes == COUNT * FOOTPRINT
            ((name, after, restarts, why),) = movers.lives()
            assert (name, restarts, why) == ("mover-0", 1, "died")
            assert after != before

    simulate(body)


def ssd_in(tmp_path: Path) -> SsdTier:
    return SsdTier(tmp_path / "ssd", 1 << 20, b"source", secret=Secret(b"s" * 32))


def tree_in(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def moved_from(mount: Mount) -> dict[int, list[int]]:
    """By place, the samples that movers bring from now on."""
    moved, came = mount.engine.fetcher.moved, dict[int, list[int]]()

    def noted(files: Sequence[ToMove]) -> list[bool]:
        for file in files:
            came.setdefault(file.place, []).append(file.item.sample)
        return moved(files)

    mount.engine.fetcher.moved = noted  # type: ignore[method-assign]
    return came


def kill_a_mover(monkeypatch: pytest.MonkeyPatch, *, reading: bool) -> list[int]:
    """Kill one in the middle of a batch of copies that it reads, or of files that it writes copies of; its number."""
    killed, is_begun = list[int](), threading.Event()
    move = MoverChannel.move

    def kill_in_the_middle(mover: MoverChannel) -> None:
        while not mover.outcomes()[1]:
            time.sleep(0)
        killed.append(mover.pid)  # before its lane can go on
        os.kill(mover.pid, signal.SIGKILL)

    def killed_once(mover: MoverChannel, batch: list, *more: object) -> object:  # type: ignore[type-arg]
        if not is_begun.is_set() and len(batch) > 2 and batch[0].is_copied == reading:
            is_begun.set()
            threading.Thread(target=kill_in_the_middle, args=(mover,), daemon=True).start()
        return move(mover, batch, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(MoverChannel, "move", killed_once)
    return killed


@pytest.mark.parametrize("is_killed", [False, True])
def test_copies_for_a_disk_are_written_by_movers_and_found_again(
    tmp_path: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one that is killed has begun is removed, and a lane writes it."""
    ssd, want = ssd_in(tmp_path), {}
    killed = kill_a_mover(monkeypatch, reading=False) if is_killed else []

    async def body() -> None:
        async with running(tree_in(tmp_path), COUNT, SIZE, disks=[(PlaceKind.SSD, ssd, 0)], movers=2) as mount:
            came = moved_from(mount)
            await fetched_ahead(mount)
            assert bool(killed) == is_killed
            assert is_killed or len(came[0]) == COUNT
            assert all_right(mount)
            samples = mount.engine.samples
            for entry in mount.files:
                want[samples.key(entry), samples.version_of(entry)] = mount.content(entry)
            assert ssd.used_bytes == COUNT * ssd.footprint_bytes(SIZE)

    simulate(body)
    ssd.close()
    with closing(ssd_in(tmp_path)) as again:
        assert {key: again.get(*key) for key in want} == want
        assert sorted(again.keys()) == sorted(key for key, _ in want)
    assert not list((tmp_path / "ssd").rglob("*.m"))


@pytest.mark.parametrize("what", ["goes well", "is killed", "damages"])
@pytest.mark.parametrize("kind", [PlaceKind.RAM, PlaceKind.SSD])
def test_later_epochs_are_staged_by_movers_from_copies(
    tmp_path: Path, kind: PlaceKind, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that is killed the rest of the batch comes from a lane, and of a copy that is damaged from the source."""
    ram, ssd = (1 << 20, None) if kind is PlaceKind.RAM else (0, ssd_in(tmp_path))
    killed = kill_a_mover(monkeypatch, reading=True) if what == "is killed" else []

    async def body() -> None:
        disks = [(kind, ssd, 0)] if ssd is not None else None
        async with running(
            tree_in(tmp_path), COUNT, SIZE, staging=30 * FOOTPRINT, ram=ram, disks=disks, movers=1
        ) as mount:
            came, files = moved_from(mount), mount.files
            await fetched_ahead(mount, epochs=3)
            for epoch in range(3):
                if epoch == 1 and what == "damages" and ssd is not None:
                    for path in (tmp_path / "ssd").rglob("*.s"):
                        content = bytearray(path.read_bytes())
                        content[-7] ^= 1
                        path.write_bytes(content)
                for number, entry in enumerate(files):
                    assert await mount.read(entry) == mount.content(entry)
                    if number % 10 == 9:
                        await trio.sleep(1)
            place = 1 if ssd is None else 2
            if what == "is killed":
                assert killed
                await trio.sleep(1)
                assert mount.engine.movers is not None
                assert [restarts for _, _, restarts, _ in mount.engine.movers.lives()] == [1]
            if what == "damages" and ssd is not None:
                assert ssd.errors >= COUNT / 2
            else:
                assert sorted(mount.source.read) == files
            assert len(came[place]) > COUNT / 2

    simulate(body)
    if ssd is not None:
        ssd.close()
