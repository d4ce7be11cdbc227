"""Rows of large files: their ids, their pages and tripwires, and the blocks that they lie in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.rows import Rows
from mlfs.plan.scheduler.states import SampleTable

PAGE, BLOCK = 4096, 1 << 16
FILES = [3 * BLOCK + 100, 10, 40 * BLOCK]  # the second one is small


def blocks() -> FileBlocks:
    """Three files, of which two are in blocks, and room for a thousand rows."""
    large = np.array([0, 2])
    counts = np.array([4, 40])
    first_row = 3 + 44
    sizes = np.zeros(first_row + 1000, np.int64)
    sizes[:3] = FILES
    sizes[3:first_row] = BLOCK
    sizes[6] = 100
    return FileBlocks(sizes.data, large, counts, 3, BLOCK, BLOCK, Rows(first_row, sizes, large))


def added(rows: Rows, *ranges: tuple[int, int, int]) -> list[int]:
    return rows.add(*np.array(ranges, np.int64).T).tolist()


def test_the_same_rows_have_the_same_ids_and_others_stand_behind_them() -> None:
    rows = blocks().rows
    one = added(rows, (2, 5, 3 * PAGE), (0, 100, 2 * PAGE))
    assert one == [47, 48]
    assert added(rows, (2, 5, 4 * PAGE)) == [49]
    assert added(rows, (2, 5, 3 * PAGE), (0, 100, 2 * PAGE)) == one
    assert added(rows, (0, 100, 2 * PAGE), (0, 100, PAGE), (2, 5, 3 * PAGE), (0, 100, PAGE)) == [48, 50, 47, 50]
    assert [(rows.file_of(row), rows.offset_of(row), int(rows.sizes[row])) for row in one] == [
        (2, 5, 3 * PAGE), (0, 100, 2 * PAGE),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="too many"):
        rows.add(np.full(998, 2), np.arange(998) * PAGE, np.full(998, 2 * PAGE))


def test_a_file_that_grows_again_and_again_costs_ids_for_what_it_has_more() -> None:
    rows, before = blocks().rows, np.empty(0, np.int64)
    for count in range(20, 901, 20):
        ids = rows.add(np.full(count, 2), np.arange(count) * 100, np.full(count, 100))
        assert ids[: len(before)].tolist() == before.tolist()
        before = ids
    assert sorted(before.tolist()) == list(range(rows.first, rows.first + 900)) == list(rows.of_file(2))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 3)), max_size=9), max_size=9))
def test_rows_have_the_same_id_exactly_where_they_are_the_same(lists: list[list[tuple[int, int, int]]]) -> None:
    rows, known = blocks().rows, dict[tuple[int, int, int], int]()
    for ranges in filter(None, lists):
        for one, row in zip(ranges, added(rows, *ranges), strict=True):
            assert known.setdefault(one, row) == row
            if one[0] == 1:  # a small file has no rows
                assert row == -1
            else:
                assert (rows.file_of(row), rows.offset_of(row), int(rows.sizes[row])) == one
    ids = [row for row in known.values() if row >= 0]
    assert len(set(ids)) == len(ids) == len(rows)


@settings(deadline=None, max_examples=cases(80))
@given(offset=st.integers(0, 30 * BLOCK), length=st.one_of(st.integers(1, 5 * BLOCK), st.integers(1, 3 * PAGE)))
def test_a_tripwire_is_a_page_of_its_row_alone_or_all_of_its_pages_and_its_read_tells_of_it(
    offset: int, length: int
) -> None:
    of = blocks()
    (row,) = added(of.rows, (2, offset, length))
    begin, end = of.rows.tripwire_of(row)
    first, last = of.rows.pages_of(row)
    if last - first <= 2 * PAGE:
        assert (begin, end) == (first, last) == of.rows.own_pages_of(row)
    else:
        assert offset <= begin < end <= offset + length
        assert end - begin == PAGE
        assert of.rows.own_pages_of(row) == (begin, last)
    assert list(of.rows.read(2, begin, PAGE)) == [row]
    assert not list(of.rows.read(2, begin + PAGE, BLOCK))
    assert not list(of.rows.read(2, begin - PAGE, PAGE))
    assert not list(of.rows.read(0, begin, PAGE))
    assert first <= offset
    assert offset + length <= last
    assert last - first < length + 2 * PAGE
    assert of.rows.tripwires_of([row], None) == [(2, begin, end)]
    assert of.rows.tripwires_of([row], row) == []
    at = of.of(row)
    assert list(at) == [7 + n for n in range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)]
    begins, ends = of.of_rows(np.array([row]))
    assert (begins[0], ends[0]) == (at.start, at.stop - 1)


def test_a_read_may_tell_of_many_rows() -> None:
    """The kernel may have read on beyond what was asked for, or around it."""
    rows = blocks().rows
    ids = added(rows, *((2, n * 3 * PAGE, 3 * PAGE) for n in range(10)))
    assert list(rows.read(2, 0, 30 * PAGE)) == list(ids)
    assert list(rows.read(2, 3 * PAGE, 4 * PAGE)) == [ids[1], ids[2]]


def test_tripwires_that_lie_side_by_side_are_dropped_together_but_for_the_pages_that_are_being_read() -> None:
    rows = blocks().rows
    small = added(rows, *((2, n * 1000, 1000) for n in range(20)))
    assert rows.tripwires_of(small, None) == [(2, 0, 5 * PAGE)]
    assert rows.tripwires_of(small, small[6]) == [(2, 0, PAGE), (2, 2 * PAGE, 5 * PAGE)]
    (other,) = added(rows, (0, 0, 10))
    assert rows.tripwires_of([other, small[0]], small[0]) == [(0, 0, PAGE)]


def test_what_is_said_of_rows_is_said_of_their_blocks() -> None:
    of = blocks()
    table = SampleTable(of.rows.sizes.data, 1 << 30, of)
    rows = added(of.rows, (2, BLOCK - PAGE, 3 * PAGE), (0, 0, 2 * PAGE))
    table.grow()
    assert len(table.state) == of.rows.end == 49
    member = bytearray(of.rows.end)
    member[rows[0]] = member[rows[1]] = 1
    assert np.flatnonzero(table.by_block(member)).tolist() == [3, 7, 8]
    table.held_by[7] = 1
    assert table.holder(rows[0]) == 0
    table.held_by[8] = 1
    assert table.holder(rows[0]) == 1
    assert of.keeping(np.array([1, rows[1], -1, rows[0]])).tolist() == [1, 3, -1, 7]
