"""The counts of opens, against a list of all of them that is counted anew each time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.follow import score as module
from mlfs.follow.score import Open, Score

OPENS = st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 2), st.integers(-1, 1), st.booleans())
"""Entry, process, epoch, rank, whether it was predicted."""


def count(score: Score, entry: int, process: int, epoch: int, rank_index: int, agrees: bool) -> None:
    score.count(Open(entry, process, 0, score.cell(epoch, rank_index), agrees, rank_index, -1))


def check(score: Score, counted: Counter[tuple[int, int, bool]]) -> None:
    """The score says what was counted: (epoch, rank, predicted) of each open."""
    assert score.observed == counted.total()
    assert score.agreed == sum(n for (_, _, agrees), n in counted.items() if agrees)
    by_cell = {key: (cell.observed, cell.agreed) for key, cell in score.cells.items() if cell.observed}
    expected = {}
    for epoch, rank, _ in counted:
        agreed = counted[epoch, rank, True]
        if both := agreed + counted[epoch, rank, False]:
            expected[epoch, rank] = (both, agreed)
    assert by_cell == expected


@given(st.lists(OPENS, max_size=40), st.lists(OPENS, max_size=40), st.integers(1, 3), st.integers(1, 5))
def test_counts_add_up_whatever_is_taken_back(
    opens: list[tuple[int, int, int, int, bool]], anew: list[tuple[int, int, int, int, bool]], process: int, last: int
) -> None:
    score, counted = Score(2), Counter[tuple[int, int, bool]]()
    for opened in opens:
        count(score, *opened)
        counted[opened[2:]] += 1
    score.add(1, 0, 5, 3)
    counted.update({(1, 0, True): 3, (1, 0, False): 2})
    check(score, counted)

    score.disown(process, last)
    for _, _, *which in [opened for opened in opens if opened[1] == process][-last:]:
        counted[tuple(which)] -= not which[2]  # type: ignore[index]
    check(score, counted)

    fresh = Score(2)
    for opened in anew:
        count(fresh, *opened)
    for seen in score.history:
        counted[seen.cell.epoch, seen.cell.rank_index, seen.agrees] -= 1
    fresh.go_on_from(score)
    for opened in anew:
        counted[opened[2:]] += 1
    check(fresh, counted)
    assert list(fresh.cells)[: len(score.cells)] == list(score.cells)


def test_what_is_forgotten_is_taken_out_of_the_cells_once() -> None:
    score = Score(1)
    for agrees in (True, False, True):
        count(score, 4, 1, 0, 0, agrees)
    opens = list(score.history)
    score.forget(opens[1:])  # two of the three opens of entry 4: the last two
    cell = score.cells[0, 0]
    assert (cell.observed, cell.agreed) == (1, 1)
    assert score.observed == 3


@pytest.mark.parametrize(("opens", "predicted"), [(3, 3), (2, 0), (4, 0)])
def test_first_opens_are_predicted_late_if_they_are_all_of_the_process(opens: int, predicted: int) -> None:
    score = Score(1)
    for entry in range(3):
        count(score, entry, 7, 0, -1, False)
        count(score, entry, 8, 0, -1, False)
    score.count_late(7, opens, score.cell(0, 0))
    assert score.agreed == predicted
    assert [seen.agrees for seen in score.history if seen.process == 7] == [predicted > 0] * 3
    assert score.cells[0, -1].observed == 6 - predicted
    assert score.cells[0, 0].observed == score.cells[0, 0].agreed == predicted


def test_a_process_that_was_predicted_before_is_not_counted_late() -> None:
    score = Score(1)
    count(score, 0, 7, 0, 0, True)
    count(score, 1, 7, 0, 0, False)
    score.count_late(7, 2, score.cell(0, 0))
    assert score.agreed == 1


def test_agreement_is_about_the_last_opens() -> None:
    score = Score(1)
    assert score.agreement is None
    assert score.agreement_of_last(5) == 0.0
    for entry in range(300):
        count(score, entry, 1, 0, 0, entry < 200)
    assert score.recent_opens == 256
    assert score.agreement == (200 - 44) / 256
    assert score.agreement_of_last(200) == 0.5
    assert not score.drifting
    for entry in range(29):
        count(score, entry, 1, 0, 0, False)
    assert score.drifting


def test_the_history_is_complete_until_an_open_is_dropped_or_disowned_from_a_full_one() -> None:
    score = Score(1)
    for entry in range(module.REMEMBERED_OPENS - 1):
        count(score, entry, 1, 0, 0, False)
    assert score.complete
    score.disown(1, 5)
    assert score.complete
    for entry in range(5 + 1):
        count(score, entry, 1, 0, 0, False)
    assert not score.complete
    score.disown(1, 5)
    assert len(score.history) < module.REMEMBERED_OPENS
    assert not score.complete


def test_cells_of_the_oldest_epochs_are_let_go() -> None:
    score = Score(1)
    for epoch in range(3 * module.REMEMBERED_EPOCHS):
        count(score, 0, 1, epoch, 0, True)
    assert len(score.cells) == 2 * module.REMEMBERED_EPOCHS  # of one rank, and of none
    assert min(epoch for epoch, _ in score.cells) == module.REMEMBERED_EPOCHS
