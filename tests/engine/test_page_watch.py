"""Pages that the kernel takes back are noticed, and staged again before their reader comes."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio
from fakes import given_job, running, shuffled, simulate

from mlfs.engine.page_watch import LONGEST_IDLE_PAUSE_S, MOST, PageWatchStatistics
from mlfs.job import parse_job
from mlfs.orders.streams import build_streams
from mlfs.stats import Tally
from mlfs.tree.samples import Samples

SIZE = 5000


@pytest.mark.parametrize("ram", [0, 1 << 20])
def test_pages_that_were_taken_back_are_staged_again_before_the_read(tmp_path: Path, ram: int) -> None:
    async def body() -> None:
        async with running(tmp_path, 60, ram=ram) as mount:
            epochs = shuffled(mount.files, 1, 1)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(2 * LONGEST_IDLE_PAUSE_S)
            assert mount.engine.statistics().page_watch.taken_back == 0
            gone = epochs[0][0][::3]  # of the soonest needed ones, too
            for entry in gone:
                mount.pages.drop(entry)
            await trio.sleep(LONGEST_IDLE_PAUSE_S + 1)
            assert set(mount.pages.held) == set(mount.files)
            watch = mount.engine.statistics().page_watch
            assert watch.taken_back == len(gone)
            assert watch.looked_at > watch.taken_back
            for entry in epochs[0][0]:
                assert await mount.read(entry) == mount.content(entry)
            told = mount.engine.statistics().counters
            assert told.all.reads["page_cache"] == Tally(60, 60 * SIZE)
            assert told.all.stalls.count == 0
            assert "pages_taken_back" not in told.errors
            assert len(mount.source.read) == 60 + (0 if ram else len(gone))
            assert mount.engine.statistics().jobs[0].pfs_bytes_by_epoch == {0: len(mount.source.read) * SIZE}

    simulate(body)


def test_it_is_looked_at_nothing_while_an_unmount_waits(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 60) as mount:
            await mount.engine.shared.register(*given_job(shuffled(mount.files, 1, 1)))
            await trio.sleep(0.1)
            mount.engine.stop_prefetching(True)
            mount.pages.held.clear()
            await trio.sleep(3 * LONGEST_IDLE_PAUSE_S)
            assert mount.engine.statistics().page_watch == PageWatchStatistics(0, 0)
            mount.engine.stop_prefetching(False)
            await trio.sleep(2 * LONGEST_IDLE_PAUSE_S)
            assert mount.engine.statistics().page_watch.taken_back == 60
            assert len(mount.pages.held) == 60

    simulate(body)


def test_the_soonest_needed_come_first_and_nobodys_come_not_at_all(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 60) as mount:
            epochs = shuffled(mount.files, 2, 2)
            assert mount.engine.scheduler.staged(MOST) == []
            await mount.engine.shared.register(*given_job(epochs, batch_size=1))
            await trio.sleep(0.1)
            staged = mount.engine.scheduler.staged(10)
            steps = [pair for step in zip(*epochs[0], strict=True) for pair in step][:10]
            assert sorted(staged) == sorted(steps)
            for at in range(0, 10, 2):
                assert set(staged[at : at + 2]) == set(steps[at : at + 2])
            await mount.read(epochs[0][0][0], pid=100)
            await trio.sleep(0.1)
            assert epochs[0][0][0] not in mount.engine.scheduler.staged(10)

    simulate(body)


def test_pages_of_rows_that_were_taken_back_are_staged_again(tmp_path: Path) -> None:
    in_blocks = partial(Samples.in_blocks, above_bytes=1 << 16, block_bytes=1 << 16)

    async def body() -> None:
        async with running(tmp_path, 1, 1 << 20, staging=1 << 24, ram=1 << 24, samples_of=in_blocks) as mount:
            engine, (entry,) = mount.engine, mount.files
            spec = parse_job({"layout": "raw", "row_bytes": 20_000, "epochs": 1, "seed": 1})
            await engine.shared.register(spec, build_streams(spec, engine.manifest))
            await trio.sleep(2 * LONGEST_IDLE_PAUSE_S)
            assert engine.statistics().page_watch.taken_back == 0
            before = dict(mount.pages.there[entry])
            mount.pages.drop(entry, 0, 1 << 18)
            assert len(mount.pages.there[entry]) < len(before) - 40
            await trio.sleep(LONGEST_IDLE_PAUSE_S + 1)
            assert mount.pages.there[entry] == before
            assert engine.statistics().page_watch.taken_back >= (1 << 18) // 20_000
            assert "prefetch_failed" not in engine.statistics().counters.errors

    simulate(body)


def test_blocks_that_a_shard_has_lost_are_not_fetched(tmp_path: Path) -> None:
    in_blocks = partial(Samples.in_blocks, above_bytes=1 << 16, block_bytes=1 << 16)

    async def body() -> None:
        # The window has room for two blocks at a time.
        async with running(tmp_path, 1, 1 << 20, staging=1 << 17, samples_of=in_blocks) as mount:
            engine, (shard,) = mount.engine, mount.files
            await engine.shared.register(*given_job([[[shard]]], name="shards"))
            handle = await mount.open(shard)
            path = Path(os.fsdecode(mount.root) + "/" + os.fsdecode(engine.manifest.path(shard)))
            path.write_bytes(bytes(3 << 16))
            assert await mount.open(shard)  # which notices it
            await trio.sleep(1)
            engine.ranges.close_large(handle)
            assert "prefetch_failed" not in engine.statistics().counters.errors

    simulate(body)
