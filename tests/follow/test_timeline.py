"""Linear positions: bases of epochs of any lengths, and what threads see that ask for them at the same time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.follow.epochs_at_hand import Timeline
from mlfs.job import JobSpec


class Lengths:
    """Streams of which only the lengths are known. `while_asked` is called while a length is worked out."""

    batch_files = 4

    def __init__(self, lengths: list[int], while_asked: Callable[[int], None] | None = None) -> None:
        self.lengths = lengths
        self.while_asked = while_asked
        self.asked = 0

    def length(self, epoch: int) -> int:
        self.asked += 1
        if self.while_asked is not None:
            self.while_asked(epoch)
        return self.lengths[epoch]


def timeline_of(lengths: Lengths, start_epoch: int = 0, start_step: int = 0) -> Timeline:
    spec = JobSpec.model_construct(epochs=len(lengths.lengths), start_epoch=start_epoch, start_step=start_step)
    return Timeline(spec, lengths)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_a_position_lies_in_the_epoch_that_begins_last_before_it(lengths: list[int], data: st.DataObject) -> None:
    timeline = timeline_of(Lengths(lengths))
    epochs = list(range(len(lengths)))
    for epoch in data.draw(st.permutations([*epochs, len(lengths)])):
        assert timeline.base(epoch) == sum(lengths[:epoch])
    assert timeline.end == sum(lengths)
    position = data.draw(st.integers(0, sum(lengths)))
    expected = [epoch for epoch in epochs if sum(lengths[:epoch]) <= position][-1]
    assert timeline.epoch_of(position) == timeline_of(Lengths(lengths)).epoch_of(position) == expected


@pytest.mark.parametrize(("epoch", "step", "begin"), [(0, 0, 0), (1, 2, 8), (2, 9, 12)])
def test_a_resumed_job_begins_in_the_middle_of_an_epoch_or_at_its_end(epoch: int, step: int, begin: int) -> None:
    timeline = timeline_of(Lengths([10, 20, 12, 9]), epoch, step)
    assert timeline.start == sum([10, 20, 12][:epoch]) + begin
    assert [timeline.begin(e) for e in range(4)] == [begin if e == epoch else 0 for e in range(4)]


@pytest.mark.parametrize("pause_at", range(9))
@pytest.mark.parametrize("further", range(1, 10))
def test_a_thread_that_was_overtaken_changes_nothing(pause_at: int, further: int) -> None:
    """One thread stands still within a length, another one works out as many bases as it likes."""
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5]

    def overtake(epoch: int) -> None:
        if epoch == pause_at:
            lengths.while_asked = None
            timeline.base(further)

    lengths = Lengths(sizes, overtake)
    timeline = timeline_of(lengths)
    timeline.base(len(sizes))
    assert [timeline.base(epoch) for epoch in range(10)] == [sum(sizes[:epoch]) for epoch in range(10)]
    asked = lengths.asked
    assert timeline.epoch_of(sum(sizes) - 1) == 8
    assert lengths.asked == asked  # each length is worked out once and for all


def test_each_length_is_asked_for_once() -> None:
    lengths = Lengths([2] * 1000)
    timeline = timeline_of(lengths)
    for position in range(2000):
        assert timeline.epoch_of(position) == position // 2
    assert lengths.asked <= 1000
