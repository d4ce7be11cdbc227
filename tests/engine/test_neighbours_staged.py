"""Where nobody knows the order, what lies next to each other is staged before it is read, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from fakes import Mount, running, simulate

FILES, DIRECTORY = 480, 40
SOURCE_S = 0.002


async def read_all(mount: Mount, files: list[int], workers: int) -> int:
    """Workers read files in turn, batch by batch. Returns how many lay in the page cache before they were opened."""
    staged = 0
    batches = [files[at : at + 8] for at in range(0, len(files), 8)]
    turns = [[entry for batch in batches[worker::workers] for entry in batch] for worker in range(workers)]
    for turn in range(max(map(len, turns))):
        for worker in range(workers):
            if turn < len(turns[worker]):
                entry = turns[worker][turn]
                staged += mount.pages.resident(entry)
                await mount.read(entry, 10 + worker)
                await trio.sleep(0.01)
    return staged


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.promise("neighbours")
def test_runs_in_a_random_order_are_staged_and_a_random_order_is_not(tmp_path: Path, workers: int) -> None:
    draw = random.Random(workers)

    async def body(shuffled: bool) -> None:
        directory = tmp_path / str(shuffled)
        directory.mkdir()
        async with running(directory, FILES, staging=1 << 22, seconds={"pfs": SOURCE_S}) as mount:
            begins = list(range(0, FILES, DIRECTORY))
            draw.shuffle(begins)
            order = [mount.files[at] for begin in begins for at in range(begin, begin + DIRECTORY)]
            if shuffled:
                draw.shuffle(order)
            staged = await read_all(mount, order, workers)
            assert len(mount.source.read) <= 1.05 * FILES
            if shuffled:
                assert staged == 0
            else:
                assert staged > 0.85 * FILES
            await trio.sleep(2)  # nobody comes for what was foretold at the end
            assert sum(mount.table.pending) == 0

    for shuffled in (False, True):
        simulate(lambda shuffled=shuffled: body(shuffled))
