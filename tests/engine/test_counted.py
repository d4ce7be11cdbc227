"""What is counted is what happened: bytes that were handed out, the place that answered, waits in whatever request."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from fakes import given_job, running, shuffled, simulate
from support.held import held_bytes

from mlfs.engine.counted_opens import MOST_REMEMBERED, CountedOpens
from mlfs.engine.range_reads import ReadWaits
from mlfs.plan.place_kind import PlaceKind
from mlfs.stats import Counters, Tally

SIZE = 5000


def test_of_a_large_file_the_bytes_handed_out_are_counted(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, size=5 << 20, staging=1 << 20, seconds={"read": 0.5, "demand": 0.25}) as mount:
            entry, engine = mount.files[0], mount.engine
            await engine.shared.register(*given_job([[[entry]]], batch_size=1))
            handle = await mount.open(entry)
            for offset in (0, 1 << 20):
                assert len(await engine.ranges.read_large(handle, offset, 4096)) == 4096
            await trio.sleep(1)
            told = engine.statistics()
            assert told.counters.all.reads["pfs"] == Tally(1, 8192)
            assert told.counters.all.fetches["pfs"] == Tally(1, 8192)
            assert told.jobs[0].pfs_bytes_by_epoch == {0: 8192}
            assert told.ranges.open_files == 1
            # The open, and each READ.
            assert told.counters.all.stalls.count == 3
            assert told.counters.all.stalls.total_s == pytest.approx(1.25)
            engine.digest.released(engine.ranges.close_large(handle))

    simulate(body)


def test_waits_in_reads_are_the_jobs_too(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 6, size=5 << 20, staging=1 << 20, seconds={"read": 0.5}) as mount:
            await mount.engine.shared.register(*given_job([[mount.files]], batch_size=1))
            for entry in mount.files:
                await mount.read(entry)
                await trio.sleep(0.5)
            (epoch,) = mount.engine.statistics().scheduler.reading["train"].epochs
            assert epoch.readers == 1
            assert epoch.waited_share == pytest.approx(0.5, abs=0.05)

    simulate(body)


@pytest.mark.parametrize("ram", [0, 1 << 20])
def test_a_read_whose_pages_the_kernel_took_back_counts_where_it_was_answered(tmp_path: Path, ram: int) -> None:
    async def body() -> None:
        async with running(tmp_path, 40, ram=ram) as mount:
            epochs = shuffled(mount.files, 2, 1)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(1)  # all are staged
            gone = mount.files[::2]
            for entry in gone:
                mount.pages.drop(entry)
            for entry in epochs[0][0]:
                assert await mount.read(entry) == mount.content(entry)
            reads = mount.engine.statistics().counters.all.reads
            assert reads["page_cache"] == Tally(20, 20 * SIZE)
            assert reads["ram" if ram else "pfs"] == Tally(20, 20 * SIZE)
            assert mount.engine.counters.errors["pages_taken_back"] == 20

    simulate(body)


def test_opens_are_moved_once_and_never_what_was_brought_for_them() -> None:
    counters = Counters()
    counted = CountedOpens(memoryview(bytes([10, 20, 30])), counters)

    def reads() -> dict[str, Tally]:
        return {route: tally for route, tally in counters.statistics().all.reads.items() if tally != Tally()}

    counted.staged(0)
    counted.staged(1)
    counted.brought(2, PlaceKind.SSD)
    counted.staged(2)  # it was there for others
    counted.answered_elsewhere(1, PlaceKind.RAM)
    assert reads() == {"page_cache": Tally(2, 40), "ram": Tally(1, 20), "ssd": Tally(1, 30)}
    counted.brought(0, PlaceKind.SOURCE)
    counted.answered_elsewhere(0, PlaceKind.SOURCE)  # the kernel refused its pages: it is where it belongs
    assert reads()["pfs"] == Tally(1, 10)
    counters.begin_epoch()
    counted.answered_elsewhere(0, PlaceKind.SOURCE)  # opened in the epoch before
    now = counters.statistics()
    assert (now.epoch.reads["page_cache"], now.epoch.reads["pfs"]) == (Tally(), Tally(1, 10))
    assert now.all.reads["page_cache"] == Tally(1, 30)


def test_an_open_that_is_told_behind_its_read_counts_once_and_not_before_another_server_may_hear_of_it() -> None:
    counters, sizes = Counters(), memoryview(bytes([10, 20, 30]))
    killed, counted = CountedOpens(sizes, counters), CountedOpens(sizes, counters)
    assert killed.asked(0)
    killed.asked_and_brought(0, PlaceKind.SOURCE, is_untold=True)
    counted.told([0])  # the kernel tells the next server of it
    assert counted.asked(1)
    counted.told([1])
    counted.asked_and_brought(1, PlaceKind.SOURCE, is_untold=True)
    assert counted.asked(2)
    counted.asked_and_brought(2, PlaceKind.SOURCE, is_untold=True)
    counted.answered_elsewhere(2, PlaceKind.RAM)  # another READ of the same open
    counted.told([2, 2])
    reads = counters.statistics().all.reads
    assert (reads["page_cache"], reads["pfs"], reads["ram"]) == (Tally(2, 40), Tally(2, 50), Tally(0, 0))


def test_what_is_remembered_of_opens_is_bounded() -> None:
    counted = CountedOpens(memoryview(bytes(8 * MOST_REMEMBERED)), Counters())
    held = []
    for entry in range(8 * MOST_REMEMBERED):
        counted.brought(entry, PlaceKind.SOURCE)
        if entry in (MOST_REMEMBERED, 8 * MOST_REMEMBERED - 1):
            held.append(held_bytes(counted))
    assert held[1] <= 2 * held[0]  # a dict has room for twice what is in it


def test_reads_of_a_file_that_come_together_are_one_wait() -> None:
    now, waits = [0.0], []
    reads = ReadWaits(lambda: now[0], lambda file, seconds: waits.append(seconds))
    with reads.of(1):
        now[0] = 1.0
        with reads.of(1), reads.of(2):
            now[0] = 3.0
        now[0] = 4.0
    assert waits == [2.0, 4.0]
