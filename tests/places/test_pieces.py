"""Pieces of samples against a plain array of bytes, of which some were read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.places.memory_file import PAGE_BYTES, MemoryFile
from mlfs.places.pieces import Pieces, Spill
from mlfs.tree.samples import Version

SIZE = 64
RANGES = st.tuples(
    st.integers(0, 3), st.integers(0, SIZE - 1), st.integers(1, SIZE), st.sampled_from(["range", "whole"])
)


@settings(max_examples=300, deadline=None)
@given(st.lists(RANGES, max_size=30), st.integers(0, 4 * SIZE), st.integers(0, 6), st.lists(st.integers(0, 29)))
def test_no_byte_is_read_twice_that_is_held_and_each_is_the_right_one(
    asked: list[tuple[int, int, int, str]], most_bytes: int, pages: int, damaged_at: list[int]
) -> None:
    room = pages * PAGE_BYTES
    spill = Spill(MemoryFile(), lambda: room)
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
            data, size_bytes, whole = pieces.range(sample, version, begin, end, of_source)
            assert data == content[sample][begin:end]
            assert sum(read) == size_bytes <= end - begin
            assert whole in (None, content[sample])
            if whole is not None:
                assert pieces.of(sample) == 0
            elif pieces.of(sample):
                assert pieces.range(sample, version, begin, end, of_source)[1] == 0 or damaged_at
        assert pieces.bytes <= most_bytes
        assert spill.used_bytes <= room
    pieces.make_room(room)
    assert spill.used_bytes == 0
    assert sum(pieces.of(one) for one in range(4)) == pieces.bytes
    for sample in range(4):
        pieces.range(sample, Version(SIZE, 2), 0, 1, lambda at, count: bytes(count))
        assert pieces.of(sample) <= 1
    pieces.close()
    assert pieces.bytes == 0
