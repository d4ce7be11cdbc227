"""A process whose threads come to their rows out of turn, as Grain's sixteen do, is followed row by row."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from fakes import running, simulate

from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.streams import build_streams
from mlfs.tree.samples import Samples

MIB = 1 << 20
ROWS, ROW_BYTES, THREADS = 600, 20_000, 16


@asynccontextmanager
async def job_of_rows(
    directory: Path, epochs: int, rows: int = ROWS, row_bytes: int = ROW_BYTES
) -> AsyncIterator[tuple[JobRun, Callable[[int, int], None], list[list[int]], Callable[[], int]]]:
    """A job of one process that reads rows: the job; has a thread read a row; the rows of each epoch, in their order;
    the bytes that the source has given."""
    size = rows * row_bytes
    in_blocks = partial(Samples.in_blocks, above_bytes=MIB, block_bytes=MIB)
    async with running(directory, 1, size, staging=2 * size, ram=2 * size, samples_of=in_blocks) as mount:
        engine, (entry,) = mount.engine, mount.files
        spec = parse_job({"layout": "raw", "row_bytes": row_bytes, "seed": 3, "epochs": epochs, "batch_size": 4})
        streams = build_streams(spec, engine.manifest)
        await engine.shared.register(spec, streams)
        await trio.sleep(5)

        def read(row: int, thread: int) -> None:
            begin, end = engine.samples.file_blocks.rows.tripwire_of(row)
            engine.row_reads.read(entry, 0, 1, begin, end - begin, thread)

        orders = [streams.epoch_ids(epoch, 0).tolist() for epoch in range(epochs)]
        yield engine.jobs[spec.name], read, orders, lambda: mount.source.bytes_read


def test_threads_that_overtake_each_other_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.kin", lambda _: (100, 1))
    monkeypatch.setattr("os.kill", lambda *_: None)  # all of them live
    draw = random.Random(4)

    async def body() -> None:
        async with job_of_rows(tmp_path, 2) as (job, read, orders, source_bytes):
            for order in orders:
                late = sorted(range(ROWS), key=lambda at: at + draw.randrange(THREADS) * (draw.random() < 0.5))
                for at in late:
                    read(order[at], 100 + draw.randrange(THREADS))
                    await trio.sleep(0.001)
            await trio.sleep(1)
            assert job.score.observed >= 0.98 * 2 * ROWS
            assert job.score.agreement >= 0.95
            assert source_bytes() == ROWS * ROW_BYTES

    simulate(body)


def test_what_the_kernel_reads_around_a_row_of_a_mapping_is_not_taken_for_what_comes_soon(tmp_path: Path) -> None:
    """It asks for the missing pages of 128 KiB around a row, in the order of the file."""

    async def body() -> None:
        async with job_of_rows(tmp_path, 1) as (job, read, (order,), _):
            by_place = sorted(order)
            for row in order:
                at = by_place.index(row)
                for other in by_place[max(0, at - 3) : at + 3]:
                    read(other, 100)
                await trio.sleep(0.1)
            await trio.sleep(1)
            assert job.score.observed >= 0.98 * ROWS
            assert job.score.agreement >= 0.95

    simulate(body)


def test_workers_of_a_library_that_reads_on_behind_each_row_are_followed_though_nobody_told_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 asks for 64 KiB from where a row begins: it is the first one of them that is read."""
    monkeypatch.setattr("fakes.kin", lambda pid: (pid, 1))
    monkeypatch.setattr("os.kill", lambda *_: None)  # both of them live
    rows, row_bytes = 552, 4000

    async def body() -> None:
        async with job_of_rows(tmp_path, 2, rows, row_bytes) as (job, read, orders, _):
            end = max(orders[0]) + 1
            for order in orders:
                for at in range(0, rows, 8):
                    for turn in range(8):  # of two workers, who have a batch of four each
                        row = order[at + turn % 2 * 4 + turn // 2]
                        for other in range(row, min(row + (64 << 10) // row_bytes, end)):
                            read(other, 100 + turn % 2)
                        await trio.sleep(0.001)
            await trio.sleep(1)
            assert job.score.observed >= 0.97 * 2 * rows
            assert job.score.agreement >= 0.9

    simulate(body)
