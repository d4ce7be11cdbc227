"""A process whose threads come to their rows out of turn, as Grain's sixteen do, is followed row by row."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import trio
from fakes import running, simulate

from mlfs.job import parse_job
from mlfs.orders.streams import build_streams
from mlfs.tree.samples import Samples

MIB = 1 << 20
ROWS, ROW_BYTES, THREADS = 600, 20_000, 16


def test_threads_that_overtake_each_other_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.kin", lambda _: (100, 1))
    monkeypatch.setattr("os.kill", lambda *_: None)  # all of them live
    draw = random.Random(4)
    in_blocks = partial(Samples.in_blocks, above_bytes=4 * MIB, block_bytes=MIB)

    async def body() -> None:
        size = ROWS * ROW_BYTES
        async with running(tmp_path, 1, size, staging=2 * size, ram=2 * size, samples_of=in_blocks) as mount:
            engine, (entry,) = mount.engine, mount.files
            spec = parse_job({"layout": "raw", "row_bytes": ROW_BYTES, "seed": 3, "epochs": 2, "batch_size": 4})
            streams = build_streams(spec, engine.manifest)
            await engine.shared.register(spec, streams)
            await trio.sleep(5)
            tripwire_of = engine.samples.file_blocks.rows.tripwire_of
            for epoch in range(2):
                order = streams.epoch_ids(epoch, 0).tolist()
                late = sorted(range(ROWS), key=lambda at: at + draw.randrange(THREADS) * (draw.random() < 0.5))
                for at in late:
                    begin, end = tripwire_of(order[at])
                    thread = 100 + draw.randrange(THREADS)
                    engine.row_reads.read(entry, 0, 1, begin, end - begin, thread)
                    await trio.sleep(0.001)
            await trio.sleep(1)
            job = engine.jobs[spec.name]
            assert job.score.observed >= 0.98 * 2 * ROWS
            assert job.score.agreement >= 0.95
            assert mount.source.bytes_read == size

    simulate(body)


def test_what_the_kernel_reads_around_a_row_of_a_mapping_is_not_taken_for_what_comes_soon(tmp_path: Path) -> None:
    """It asks for the missing pages of 128 KiB around a row, in the order of the file."""
    in_blocks = partial(Samples.in_blocks, above_bytes=4 * MIB, block_bytes=MIB)

    async def body() -> None:
        size = ROWS * ROW_BYTES
        async with running(tmp_path, 1, size, staging=2 * size, ram=2 * size, samples_of=in_blocks) as mount:
            engine, (entry,) = mount.engine, mount.files
            spec = parse_job({"layout": "raw", "row_bytes": ROW_BYTES, "seed": 3, "epochs": 1, "batch_size": 4})
            streams = build_streams(spec, engine.manifest)
            await engine.shared.register(spec, streams)
            await trio.sleep(5)
            tripwire_of = engine.samples.file_blocks.rows.tripwire_of
            order = streams.epoch_ids(0, 0).tolist()
            by_place = sorted(order)
            for row in order:
                at = by_place.index(row)
                for other in by_place[max(0, at - 3) : at + 3]:
                    begin, end = tripwire_of(other)
                    engine.row_reads.read(entry, 0, 1, begin, end - begin, 100)
                await trio.sleep(0.1)
            await trio.sleep(1)
            score = engine.jobs[spec.name].score
            assert score.observed >= 0.98 * ROWS
            assert score.agreement >= 0.95

    simulate(body)
