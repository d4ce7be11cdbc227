"""How far a rank has read, against sets that say the same slowly."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.follow.progress import RankProgress

LAGS = st.one_of(st.integers(1, 4), st.integers(1, 100))
TAKES = st.lists(st.tuples(st.integers(-3, 12), st.booleans()), max_size=120)


@settings(max_examples=cases(100))
@given(st.integers(0, 5), LAGS, TAKES)
def test_a_position_is_done_once_it_was_read_or_given_up(start: int, lag: int, takes: list[tuple[int, bool]]) -> None:
    progress = RankProgress(start)
    read, given_up = set(), set(range(start))
    for step, advance in takes:
        position = max(0, progress.frontier + step * (lag if step > 8 else 1))
        before = progress.frontier
        given_now = progress.take([position], lag, advance)
        read.add(position)
        if given_now is not None:
            assert given_now[0] < given_now[1]
            given_up.update(range(*given_now))
        done = read | given_up
        assert progress.floor == min(set(range(max(done) + 2)) - done)
        assert progress.done == {at for at in done if at > progress.floor}
        assert all(progress.is_done(at) == (at in done) for at in range(max(done) + 2))
        assert progress.frontier >= max(progress.floor, before)
        if advance:
            assert progress.frontier > position
            assert progress.frontier - lag <= progress.floor
        elif not given_now:
            assert progress.frontier == max(before, progress.floor)
