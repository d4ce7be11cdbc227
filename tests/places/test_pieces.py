"""Pieces of samples against a plain array of bytes, of which some were read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.places.pieces import Pieces
from mlfs.tree.samples import Version

SIZE = 64
RANGES = st.tuples(st.integers(0, 3), st.integers(0, SIZE - 1), st.integers(1, SIZE), st.sampled_from(["add", "whole"]))


@settings(max_examples=200)
@given(st.lists(RANGES, max_size=30), st.integers(16, 4 * SIZE))
def test_no_byte_is_read_twice_that_is_held_and_each_is_the_right_one(
    asked: list[tuple[int, int, int, str]], most_bytes: int
) -> None:
    pieces = Pieces(most_bytes)
    content = [bytes((7 * sample + at) % 251 for at in range(SIZE)) for sample in range(4)]
    version = Version(SIZE, 1)
    for sample, begin, size, how in asked:
        end, before = min(SIZE, begin + size), pieces.of(sample)
        held = pieces.get(sample, version, begin, end)
        assert held in (None, content[sample][begin:end])
        if how == "whole":
            read: list[int] = []

            def of_source(at: int, count: int, sample: int = sample, read: list[int] = read) -> bytes:
                read.append(count)
                return content[sample][at : at + count]

            assert pieces.whole(sample, version, of_source) == content[sample]
            assert sum(read) == SIZE - before
            assert pieces.of(sample) == 0
        elif held is None:
            whole = pieces.add(sample, version, begin, content[sample][begin:end])
            assert whole in (None, content[sample])
            if whole is not None:
                assert pieces.of(sample) == 0
        assert pieces.bytes == sum(pieces.of(one) for one in range(4)) <= most_bytes
    assert pieces.get(0, Version(SIZE, 2), 0, 1) is None
    assert pieces.of(0) == 0
