"""Blocks that come part by part for rows: what a lane is told to get, and the room that they take meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.measure.rates import Rates
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.rows import Rows
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.events import FetchEnded, Landed
from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.routing import Routing
from mlfs.plan.scheduler.states import SampleTable

BLOCK, ROW, RAM = 1 << 16, 8000, 1
FIRST_BLOCK, FIRST_ROW = 1, 9
RAM_PLACE = PlaceInfo(PlaceKind.RAM, "ram", 2, 8 * BLOCK)
SSD_PLACE = PlaceInfo(PlaceKind.SSD, "ssd", 2, 8 * BLOCK)
PEER = PlaceInfo(PlaceKind.PEER, "node 1", 2, node=1)


class Node:
    """A file of eight blocks, whose rows a job reads, each of so many bytes."""

    def __init__(self, *places: PlaceInfo, row_bytes: int = ROW, lanes: int = 16, busy_share: float = 0.0) -> None:
        sizes = np.zeros(FIRST_ROW + 1100, np.int64)
        sizes[0], sizes[FIRST_BLOCK:FIRST_ROW] = 8 * BLOCK, BLOCK
        large = np.array([0])
        blocks = FileBlocks(sizes.data, large, np.array([8]), FIRST_BLOCK, BLOCK, BLOCK, Rows(FIRST_ROW, sizes, large))
        offsets = np.arange(0, 8 * BLOCK - row_bytes, row_bytes)
        self.rows = blocks.rows.add(np.zeros_like(offsets), offsets, np.full_like(offsets, row_bytes)).tolist()
        self.out: list[c.Command] = []
        self.table = SampleTable(blocks.rows.sizes.data, 1 << 30, blocks)
        self.table.grow()
        of, rates = [PlaceInfo(PlaceKind.SOURCE, "pfs", lanes), *places], Rates()
        self.keeping = Keeping(of, self.table)
        routing = Routing(of, self.table.sizes, rates, {}, self.out)
        self.fetching = Fetching(self.table, of, Limits(1 << 30), routing, self.keeping, rates, self.out)
        for step, block in enumerate((7, 8)):  # lanes are judged by what they have brought for a warm-up
            self.fetching.fill([block])
            fetch = self.out.pop()
            assert isinstance(fetch, c.Fetch)
            landed = [Landed(fetch.fetch, block, SOURCE, BLOCK)] * 16
            self.fetching.ended(FetchEnded(fetch.fetch, landed, 0.1, 0.1 * busy_share, 0.0, []), 0.1 * step)
            self.keeping.kept([(fetch.fetch, block, 0, 0)])
        self.keeping.jobs_read([bytearray(b"\1") * len(self.table.state)])

    def gets(self, row: int) -> c.Fetch:
        """A lane has begun to fetch a row."""
        self.table.expect(row)
        self.fetching.reserve(row, 0, 0, 0.0)
        self.fetching.dispatch(urgent=True)
        fetch = self.out.pop()
        assert isinstance(fetch, c.Fetch)
        return fetch

    def has_got(self, fetch: c.Fetch, size_bytes: int = BLOCK // 8) -> None:
        """The source has given so much of each of its row's blocks."""
        [item] = fetch.items
        blocks = tuple(Landed(fetch.fetch, block.sample, SOURCE, size_bytes) for block in item.blocks)
        landed = Landed(fetch.fetch, item.sample, SOURCE, size_bytes * len(blocks), True, blocks=blocks)
        assert self.fetching.landed(landed) is not None
        self.fetching.ended(FetchEnded(fetch.fetch, [landed], 0.01, 0.001, 0.0, []), 0.01)


def test_a_block_comes_in_parts_as_large_as_a_row_and_its_room_is_promised_until_it_is_kept() -> None:
    node = Node(RAM_PLACE)
    first, second = node.gets(node.rows[0]), node.gets(node.rows[1])
    assert [of.items[0].blocks for of in (first, second)] == 2 * [
        (c.Item(FIRST_BLOCK, SOURCE, keep_in=(RAM,), part_bytes=BLOCK // 8),)
    ]
    assert not node.keeping.is_promised(FIRST_BLOCK)  # a READ that comes for it wants no more than it asks for
    node.has_got(first)
    node.has_got(second)
    assert node.keeping.promised_bytes == BLOCK
    third = node.gets(node.rows[2])
    node.keeping.kept([(third.fetch, FIRST_BLOCK, RAM, BLOCK)])
    assert node.keeping.promised_bytes == 0
    assert node.table.held_by[FIRST_BLOCK] == RAM


def test_the_room_of_blocks_that_came_in_part_is_given_back_when_no_job_reads_them_any_more() -> None:
    node = Node(RAM_PLACE)
    node.has_got(node.gets(node.rows[0]))
    assert node.keeping.promised_bytes == BLOCK
    node.keeping.jobs_read([])
    assert node.keeping.promised_bytes == 0


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Node(SSD_PLACE), "each part would be written twice"),
        (Node(RAM_PLACE, PEER), "another node may want the block"),
        (Node(RAM_PLACE, row_bytes=BLOCK // 2 + 1), "a row is nearly a block"),
        (Node(RAM_PLACE, row_bytes=500), "all rows of a block come one by one"),
        (Node(RAM_PLACE, lanes=2), "all lanes are at work"),
        (Node(RAM_PLACE, busy_share=0.9), "the processor is what takes time"),
    ],
)
def test_all_of_a_block_comes_at_once_where_parts_gain_nothing(node: Node, why: str) -> None:
    assert [block.part_bytes for block in node.gets(node.rows[0]).items[0].blocks] == [0], why
