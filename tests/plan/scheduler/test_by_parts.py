"""Which way rows come from a source that gives less, or as much, in small parts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mlfs.plan.scheduler.by_parts import PERIOD_S, TRY_AGAIN_S, ByParts


def ways(parts_per_s: float, blocks_per_s: float, seconds: float) -> list[tuple[float, bool]]:
    """When which way was taken, of a source that gives so much by each."""
    by, now_s, found = ByParts(), 0.0, [(0.0, False)]
    while now_s < seconds:
        now_s += 0.01
        rate = parts_per_s if by.in_parts else blocks_per_s
        if by.ended(by.in_parts, int(0.01 * rate), now_s, more=True):
            found.append((now_s, by.in_parts))
    return found


def test_parts_stay_where_a_source_gives_as_much_in_them() -> None:
    tried = ways(90e6, 100e6, 9.0)
    assert [way for _, way in tried] == [False, True]
    assert tried[-1][0] == pytest.approx(2 * PERIOD_S, abs=0.05)


def test_whole_blocks_come_where_a_source_gives_less_in_parts_and_parts_are_tried_again_ever_less_often() -> None:
    tried = ways(10e6, 100e6, 8 * TRY_AGAIN_S)
    again = [at_s - tried[1][0] for at_s, in_parts in tried if in_parts]
    assert again == pytest.approx([0, TRY_AGAIN_S, 3 * TRY_AGAIN_S, 7 * TRY_AGAIN_S], abs=2)
    assert sum(end - begin for (begin, way), (end, _) in pairwise(tried) if way) < 0.05 * 8 * TRY_AGAIN_S


def test_fetches_that_nothing_waits_behind_say_nothing() -> None:
    by = ByParts()
    assert not any(by.ended(by.in_parts, 1000, at / 100, more=at % 20 != 0) for at in range(200))
