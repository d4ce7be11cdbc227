"""Pieces of samples against a plain array of bytes, of which some were read."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.places.memory_file import PAGE_BYTES, MemoryFile
from mlfs.places.pieces import Pieces, Spill
from mlfs.tree.samples import Version

SIZE, PART = 64, 12
PLACE = object()
RANGES = st.tuples(
    st.integers(0, 3), st.integers(0, SIZE - 1), st.integers(1, SIZE), st.sampled_from(["range", "parts", "whole"])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(RANGES, max_size=30), st.integers(0, 4 * SIZE), st.integers(0, 6), st.lists(st.integers(0, 29)))
def test_no_byte_is_read_twice_that_is_held_and_each_is_the_right_one(
    asked: list[tuple[int, int, int, str]], most_bytes: int, pages: int, damaged_at: list[int]
) -> None:
    room = pages * PAGE_BYTES
    spill = Spill(MemoryFile(), PLACE, lambda: room)
    pieces = Pieces(most_bytes, [spill], least_bytes=1)
    content = [bytes((7 * sample + at) % 251 for at in range(SIZE)) for sample in range(4)]
    version = Version(SIZE, 1)
    for step, (sample, begin, size, how) in enumerate(asked):
        end, before, read = min(SIZE, begin + size), pieces.of(sample), list[int]()
        if step in damaged_at:  # by the disk
            for page in range(64):
                spill.file.drop(PAGE_BYTES, page * PAGE_BYTES)

        def of_source(at: int, count: int, sample: int = sample, read: list[int] = read) -> bytes:
            read.append(count)
            return content[sample][at : at + count]

        if how == "whole":
            data, size_bytes = pieces.whole(sample, version, of_source)
            assert data == content[sample]
            assert sum(read) == size_bytes == SIZE - before or damaged_at
            assert pieces.of(sample) == 0
        else:
            part = PART if how == "parts" else 1
            data, size_bytes, whole = tidied(pieces, sample, version, begin, end, of_source, part)
            assert data == content[sample][begin:end]
            assert sum(read) == size_bytes <= -(-end // part) * part - begin // part * part
            assert whole in (None, content[sample])
            if whole is not None:
                assert pieces.of(sample) == 0
            elif pieces.of(sample):
                assert tidied(pieces, sample, version, begin, end, of_source)[1] == 0 or damaged_at
        assert pieces.bytes <= most_bytes
        assert spill.used_bytes <= room
    with pieces.room_for(PLACE, [room]):
        assert spill.used_bytes == 0
    assert sum(pieces.of(one) for one in range(4)) == pieces.bytes
    for sample in range(4):
        tidied(pieces, sample, Version(SIZE, 2), 0, 1, lambda at, count: bytes(count))
        assert pieces.of(sample) <= 1
    pieces.close()
    assert pieces.bytes == 0


VERSION = Version(SIZE, 1)


def tidied(pieces: Pieces, *asked: Any) -> tuple[bytes, int, bytes | None]:
    """A range, and what is too much for memory has moved away."""
    found = pieces.range(*asked)
    pieces.tidy()
    return found


def spill_of(pages: int) -> Spill:
    return Spill(MemoryFile(), PLACE, lambda: pages * PAGE_BYTES)


def at_once(pieces: Pieces, sample: int, begin: int, end: int) -> int:
    """A range of a sample of zeros; how many bytes of it were read."""
    data, read_bytes, _ = tidied(pieces, sample, VERSION, begin, end, lambda at, size: bytes(size))
    assert data == bytes(end - begin)
    return read_bytes


def test_a_disk_that_takes_its_time_keeps_nobody_waiting_for_another_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread waits for the disk. The others read on, and take no more memory than twice of what they may."""
    spill, is_writing, may_write = spill_of(100), threading.Event(), threading.Event()
    write = spill.file.write

    def slowly(data: memoryview, offset: int) -> None:
        is_writing.set()
        assert may_write.wait(60)
        write(data, offset)

    monkeypatch.setattr(spill.file, "write", slowly)
    pieces = Pieces(SIZE, [spill], least_bytes=1)
    at_once(pieces, 0, 0, SIZE - 1)
    mover = threading.Thread(target=at_once, args=(pieces, 1, 0, SIZE - 1))
    mover.start()
    assert is_writing.wait(60)
    for sample in range(2, 10):
        assert at_once(pieces, sample, 0, SIZE - 1) == SIZE - 1
        assert at_once(pieces, sample, 0, SIZE - 1) == 0
        assert pieces.bytes <= 2 * SIZE
    # What is being written is of the past by now.
    tidied(pieces, 0, Version(SIZE, 2), 0, 1, lambda at, size: bytes(size))
    may_write.set()
    mover.join(60)
    assert pieces.bytes <= SIZE
    with pieces.room_for(PLACE, [100 * PAGE_BYTES]):
        assert spill.used_bytes == 0
    pieces.close()


def test_a_read_of_a_disk_that_hangs_is_no_reason_not_to_ask_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    spill, is_reading, may_read = spill_of(100), threading.Event(), threading.Event()
    pieces = Pieces(0, [spill], least_bytes=1)
    at_once(pieces, 0, 0, 10)
    assert spill.used_bytes == PAGE_BYTES

    def never(size_bytes: int, offset: int) -> bytes:
        is_reading.set()
        assert may_read.wait(60)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(spill.file, "read", never)
    reader = threading.Thread(target=at_once, args=(pieces, 0, 0, 10))
    reader.start()
    assert is_reading.wait(60)
    monkeypatch.setattr("mlfs.places.pieces.HANGS_S", -1.0)
    assert at_once(pieces, 0, 0, 10) == 10
    may_read.set()
    reader.join(60)
    pieces.close()


def test_a_disk_that_is_full_keeps_no_part_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = spill_of(100)
    write = spill.file.write

    def half(data: memoryview, offset: int) -> None:
        write(data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(spill.file, "write", half)
    pieces = Pieces(0, [spill], least_bytes=1)
    for sample in range(4):
        assert at_once(pieces, sample, 0, SIZE - 1) == SIZE - 1
        assert pieces.of(sample) == 0
    assert os.fstat(spill.file.fd).st_blocks == 0
    assert spill.used_bytes == pieces.bytes == 0
    pieces.close()


def test_two_places_that_keep_at_once_have_room_for_both() -> None:
    spill = spill_of(4)
    pieces = Pieces(0, [spill], least_bytes=1)
    for sample in range(3):
        at_once(pieces, sample, 0, 10)
    with pieces.room_for(PLACE, [PAGE_BYTES]):
        assert spill.used_bytes == 3 * PAGE_BYTES
        with pieces.room_for(PLACE, [PAGE_BYTES]):
            assert spill.used_bytes == 2 * PAGE_BYTES
            at_once(pieces, 9, 0, 10)  # nothing comes to where they have room
            assert spill.used_bytes == 2 * PAGE_BYTES
    pieces.close()


def test_a_disk_that_is_smaller_than_its_budget_has_room_for_copies() -> None:
    """Of what is free, pieces take half; what copies then take goes from the pieces' half as well."""
    disk_bytes = [10 * PAGE_BYTES]
    spill = Spill(MemoryFile(), PLACE, lambda: 1 << 40, lambda: disk_bytes[0] - spill.used_bytes)
    pieces = Pieces(0, [spill], least_bytes=1)
    for sample in range(10):
        at_once(pieces, sample, 0, 10)
    assert spill.used_bytes == 5 * PAGE_BYTES
    disk_bytes[0] -= 4 * PAGE_BYTES
    with pieces.room_for(PLACE, [PAGE_BYTES]):
        assert spill.used_bytes <= 2 * PAGE_BYTES
        with pieces.room_for(object(), 1 << 40):
            assert spill.used_bytes
    pieces.close()


def test_what_was_used_longest_ago_is_forgotten_where_no_room_is() -> None:
    pieces = Pieces(0, [spill_of(3)], least_bytes=1)
    for sample in range(5):
        at_once(pieces, sample, 0, 10)
    assert [pieces.of(sample) for sample in range(5)] == [0, 0, 10, 10, 10]
    pieces.close()


def test_pieces_that_could_not_be_completed_are_not_read_again() -> None:
    def fail(at: int, size: int) -> bytes:
        raise OSError(errno.EIO, "broken")

    pieces = Pieces(SIZE, least_bytes=1)
    at_once(pieces, 0, 0, 10)
    with pytest.raises(OSError, match="broken"):
        pieces.whole(0, VERSION, fail)
    assert pieces.whole(0, VERSION, lambda at, size: bytes(size)) == (bytes(SIZE), SIZE - 10)


def test_a_file_of_pieces_begins_again_before_its_offsets_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.places.pieces.LAST_OFFSET", 5 * PAGE_BYTES)
    spill, content = Spill(MemoryFile(), PLACE, lambda: 100 * PAGE_BYTES), bytes(range(SIZE))
    pieces, ends, read = Pieces(0, [spill], least_bytes=1), list[int](), list[int]()

    def of_source(at: int, count: int) -> bytes:
        read.append(count)
        return content[at : at + count]

    for sample in range(40):
        for begin in (0, 0, 20, 20):
            assert tidied(pieces, sample, VERSION, begin, begin + 10, of_source)[0] == content[begin : begin + 10]
            ends.append(spill.file.end)
    assert max(ends) <= 7 * PAGE_BYTES
    assert 80 <= len(read) <= 80 + 80 // 5  # all is forgotten when it begins again
    assert spill.used_bytes <= 7 * PAGE_BYTES
    pieces.close()
