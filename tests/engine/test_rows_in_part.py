"""Rows that readers wait for come from the source before the rest of their blocks; no byte comes twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from fakes import Mount, running, simulate

from mlfs.job import parse_job
from mlfs.orders.streams import build_streams
from mlfs.places.pieces import Pieces
from mlfs.places.place import SourcePlace
from mlfs.plan.scheduler.by_parts import ByParts
from mlfs.tree.samples import Samples

MIB = 1 << 20
ROWS, ROW_BYTES, READER = 400, 100_000, 100
SIZE = ROWS * ROW_BYTES
in_blocks = partial(Samples.in_blocks, above_bytes=4 * MIB, block_bytes=MIB)


async def read_row(mount: Mount, handle: int, row: int, content: bytes) -> None:
    """As the kernel asks for it: one READ of all of its pages that were not pushed, or one for its tripwire alone."""
    rows, (entry,) = mount.engine.samples.file_blocks.rows, mount.files
    begin, end = rows.pages_of(row)
    pushed = [
        first for first, data in mount.pages.there.get(entry, {}).items() if first < end and begin < first + len(data)
    ]
    first, last = rows.tripwire_of(row) if pushed else (begin, min(end, SIZE))
    data = mount.engine.row_reads.read(entry, 0, handle, first, last - first, READER)
    if data is None:
        data = await mount.engine.ranges.read_large(handle, first, last - first)
    assert bytes(data) == content[first:last]


@pytest.mark.parametrize("pieces_bytes", [64 * MIB, MIB], ids=["room", "no-room"])
def test_what_a_reader_waits_for_comes_first_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces_bytes: int
) -> None:
    in_part = list[bool]()

    def has_room(pieces: Pieces, size_bytes: int) -> bool:
        in_part.append(asked(pieces, size_bytes))
        return in_part[-1]

    asked = Pieces.has_room
    monkeypatch.setattr(Pieces, "has_room", has_room)
    monkeypatch.setattr("fakes.SourcePlace", partial(SourcePlace, pieces_bytes=pieces_bytes))
    monkeypatch.setattr(ByParts, "in_parts", property(lambda _: True, lambda *_: None), raising=False)

    async def body() -> None:
        seconds = {"pfs": 0.02, "read": 0.004, "demand": 0.02}
        async with running(
            tmp_path, 1, SIZE, staging=SIZE, ram=2 * SIZE, seconds=seconds, samples_of=in_blocks
        ) as mount:
            engine, (entry,) = mount.engine, mount.files
            spec = parse_job({"layout": "raw", "row_bytes": ROW_BYTES, "seed": 3, "epochs": 1, "batch_size": 4})
            streams = build_streams(spec, engine.manifest)
            handle = await engine.ranges.open(entry)
            await engine.shared.register(spec, streams)
            content = mount.content(entry)
            for row in streams.epoch_ids(0, 0).tolist():
                await read_row(mount, handle, row, content)
                await trio.sleep(0.001)
            await trio.sleep(1)
            assert any(in_part)
            assert all(in_part) == (pieces_bytes > MIB)
            assert mount.source.bytes_read == SIZE
            blocks = engine.samples.blocks_of(entry)
            assert all(engine.scheduler.table.held_by[block] for block in blocks)
            assert engine.jobs[spec.name].score.agreement == 1.0
            engine.ranges.close_large(handle)

    simulate(body)
