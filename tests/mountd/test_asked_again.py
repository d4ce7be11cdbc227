"""Opens that come a second time: each is given up at last, with what it holds open."""

from __future__ import annotations

from mountd.handlers import AGAIN_PATIENCE_S, MOST_AWAITED, AskedAgain


def test_who_does_not_come_is_given_up_for_the_newest_or_after_a_while() -> None:
    now_s = 0.0
    given_up: list[tuple[int, int, int]] = []
    again = AskedAgain(lambda: now_s, lambda *who: given_up.append(who))
    for pid in range(MOST_AWAITED + 3):
        again.comes(7, pid, 100 + pid, pid)
    assert given_up == [(7, 0, 0), (7, 1, 1), (7, 2, 2)]
    assert again.take(7, 2) is None
    assert again.take(8, 3) is None
    first = again.take(7, 3)
    assert first is not None
    assert (first.source_bytes, first.handle) == (103, 3)
    assert again.take(7, 3) is None
    again.comes(7, 4, 1, 99)  # anew: what the one before has opened is closed
    assert given_up[3:] == [(7, 4, 4)]
    now_s = AGAIN_PATIENCE_S / 2
    again.comes(7, 1000, 0, 1000)
    now_s = AGAIN_PATIENCE_S + 1
    again.comes(7, 1001, 0, 1001)
    assert [pid for _, pid, _ in given_up[4:]] == [*range(5, MOST_AWAITED + 3), 4]
    assert again.take(7, 1000) is not None
