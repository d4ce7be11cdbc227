"""The landing memory: no two pieces overlap, and what nobody refers to comes back."""

import gc
import threading

from hypothesis import given
from hypothesis import strategies as st

from mlfs.peers.landing import Landing

PAGE = 4096


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5 * PAGE)), max_size=60))
def test_pieces_never_overlap_and_all_of_it_comes_back(steps: list[tuple[bool, int]]) -> None:
    landing = Landing(16 * PAGE)
    held: list[tuple[int, int]] = []
    for reserve, number in steps:
        if reserve:
            offset = landing.reserve(number)
            if offset is None:
                assert landing.free_bytes < 16 * PAGE
                continue
            size = max(1, -(-number // PAGE)) * PAGE
            assert all(offset + size <= other or other + -(-max(1, of) // PAGE) * PAGE <= offset for other, of in held)
            held.append((offset, number))
        elif held:
            landing.release(*held.pop(number % len(held)))
    for piece in held:
        landing.release(*piece)
    assert landing.free_bytes == 16 * PAGE
    assert landing.reserve(16 * PAGE) == 0  # in one piece


def test_what_was_lent_comes_back_with_its_last_reference() -> None:
    landing = Landing(4 * PAGE)
    offset = landing.reserve(10)
    assert offset is not None
    landing.write(offset, b"0123456789")
    lent = landing.lend(offset, 10)
    part = lent[2:5]
    assert lent == b"0123456789"
    assert lent.readonly
    del lent
    gc.collect()
    assert landing.free_bytes == 3 * PAGE
    assert part == b"234"
    del part
    gc.collect()
    assert landing.free_bytes == 4 * PAGE


def test_a_piece_that_is_too_large_is_refused_at_once_and_room_is_waited_for() -> None:
    landing = Landing(2 * PAGE)
    assert landing.reserve(3 * PAGE, wait_s=60) is None
    first = landing.reserve(2 * PAGE)
    assert first == 0
    assert landing.reserve(1) is None
    threading.Timer(0.05, landing.release, (first, 2 * PAGE)).start()
    assert landing.reserve(PAGE, wait_s=60) == 0
