"""Blocks of large files in the order in which the readers need them."""

from __future__ import annotations

import numpy as np

from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.rows import Rows
from mlfs.plan.scheduler.shards_ahead import Shard, ShardsAhead
from mlfs.plan.scheduler.states import SampleTable


def table_of(*blocks: int) -> SampleTable:
    """Files of so many blocks of 10 bytes each."""
    counts = np.array(blocks)
    sizes = np.concatenate([counts * 10, np.full(counts.sum(), 10)]).astype(np.int64)
    files = np.arange(len(counts), dtype=np.int64)
    rows = Rows(len(sizes), np.empty(0, np.int64))
    return SampleTable(sizes.data, 1 << 20, FileBlocks(sizes.data, files, counts, len(counts), 10, 10, rows))


class Job:
    """A job whose workers read files in turn, and the look-ahead along it."""

    def __init__(self, workers: int, *blocks: int) -> None:
        self.table = table_of(*blocks)
        self.ahead = ShardsAhead(self.table)
        for file in range(len(blocks)):
            self.ahead.expect(file, 1, 0, file % workers)
            self.table.expect(file)

    def look(self, count: int) -> list[tuple[int, int]]:
        """The next blocks, as (file, number)."""
        found = []
        for _ in range(count):
            shard = self.ahead.next()
            assert shard is not None
            found.append((shard.file, shard.looked))
            self.table.expect(shard.blocks[shard.looked])
            self.ahead.took(shard)
        return found

    def open(self, file: int) -> Shard:
        self.table.opened((file,))
        self.over(self.ahead.ended(self.table.fulfil((file,))))
        self.ahead.opened(file, 1, 0, 0)
        return self.ahead.by_file[file]

    def over(self, blocks: object) -> list[int]:
        return self.table.fulfil(blocks)  # type: ignore[arg-type]

    def reach(self, file: int, number: int) -> list[int]:
        """The numbers of the blocks that are over by that."""
        shard = self.ahead.by_file[file]
        over = self.over(self.ahead.reached(shard.blocks[number]))
        return [block - shard.blocks.start for block in over]

    def close(self, file: int) -> list[int]:
        self.table.closed((file,))
        return self.over(self.ahead.ended((file,)))


def test_a_block_of_each_workers_file_comes_in_turn() -> None:
    job = Job(2, 3, 3, 2, 2)
    assert job.look(6) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert job.look(4) == [(2, 0), (3, 0), (2, 1), (3, 1)]
    assert job.ahead.next() is None


def test_the_worker_who_has_least_ahead_comes_first() -> None:
    job = Job(2, 9, 9)
    job.open(0), job.open(1)
    job.look(8)
    for number in range(4):
        job.reach(1, number)
    assert job.look(2) == [(1, 4), (1, 5)]


def test_blocks_are_over_that_lie_before_the_one_that_the_reader_may_be_in() -> None:
    job = Job(1, 6)
    job.open(0)
    job.look(6)
    assert [job.reach(0, number) for number in range(6)] == [[], [], [0], [1], [2], [3]]
    assert len(job.close(0)) == 2
    assert not any(job.table.pending)


def test_a_reader_before_the_look_ahead_is_not_followed_by_it() -> None:
    job = Job(1, 6)
    job.open(0)
    job.reach(0, 2)
    assert job.look(1) == [(0, 3)]
    job.ahead.ahead_of_reader(job.ahead.by_file[0].blocks[4])
    assert job.look(1) == [(0, 5)]


def test_who_leaves_blocks_out_or_comes_back_has_all_kept_until_he_closes_the_file() -> None:
    for numbers in ((0, 4, 5), (0, 1, 2, 3, 1, 4, 5)):
        job = Job(1, 6)
        job.open(0)
        job.look(6)
        for block in job.ahead.by_file[0].blocks:
            job.ahead.landed(block)
        over = [job.reach(0, number) for number in numbers]
        assert not over[-1]
        assert not over[-2]
        job.close(0)
        assert not any(job.table.pending)


def test_a_file_that_another_one_reads_or_will_read_is_kept_until_all_have_closed_it() -> None:
    job = Job(1, 4)
    job.open(0)
    job.look(4)
    job.table.opened((0,))
    assert not job.reach(0, 3)
    assert not job.close(0)
    assert len(job.close(0)) == 4
    again = Job(1, 4)
    again.ahead.expect(0, 1, 1, 0)
    again.table.expect(0)
    again.open(0)
    again.look(4)
    assert not again.reach(0, 3)
    assert len(again.close(0)) == 4
    assert again.look(4) == [(0, number) for number in range(4)]  # the next epoch's


def test_a_use_that_is_given_up_gives_its_blocks_up() -> None:
    job = Job(2, 3, 3)
    job.look(4)
    assert len(job.over(job.ahead.ended(job.table.fulfil((0,))))) == 2
    assert job.look(1) == [(1, 2)]
    assert not job.ahead.are_enough(1)


def test_readers_of_one_line_who_read_at_the_same_time_get_lines_of_their_own() -> None:
    job = Job(1, 9, 9, 9)
    job.open(0), job.open(1)
    assert job.look(4) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_who_opens_the_next_file_at_the_end_of_the_last_one_stays_one_reader() -> None:
    job = Job(1, 4, 4, 4)
    job.open(0)
    for number in range(4):
        job.reach(0, number)
    job.open(1)
    job.close(0)
    assert job.look(8) == [(file, number) for file in (1, 2) for number in range(4)]


def test_what_is_behind_is_filled_in_the_same_order_until_no_place_takes_it() -> None:
    job = Job(2, 4, 4, 2)
    job.look(4)
    blocks = [job.ahead.by_file[file].blocks for file in range(3)]
    job.table.held_by[blocks[1][2]] = 1
    assert job.ahead.to_fill(2) == [blocks[0][2], blocks[0][3]]
    assert not job.ahead.are_enough(3)
    assert job.ahead.are_enough(2)
    job.ahead.no_room()
    assert not job.ahead.to_fill(9)
    assert job.look(2) == [(0, 2), (1, 2)]
