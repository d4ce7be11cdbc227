"""A worker's stream against the batches that torch hands to the worker."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlfs.follow.epoch_index import EpochIndex, Occurrence, occurrences
from mlfs.follow.score import Cell
from mlfs.follow.shape import Shape, worker_and_turn
from mlfs.follow.worker_stream import WorkerStream

LENGTHS, BATCHES, WORKERS = st.integers(1, 90), st.integers(1, 9), st.integers(1, 6)


def parts_of(length: int, begin: int, batch: int, workers: int) -> list[list[int]]:
    """The offsets that each worker reads: batch b goes to worker b mod W."""
    batches = [range(at, min(at + batch, length)) for at in range(begin, length, batch)]
    return [[offset for of_worker in batches[w::workers] for offset in of_worker] for w in range(workers)]


@given(LENGTHS, BATCHES, WORKERS, st.data())
def test_a_stream_goes_through_its_workers_batches(length: int, batch: int, workers: int, data: st.DataObject) -> None:
    """From wherever it is entered, over samples that are no files of the mount, to the end."""
    begin = data.draw(st.integers(0, length - 1))
    outside = data.draw(st.sets(st.integers(0, length - 1), max_size=length - 1))
    nothing = data.draw(st.sampled_from((-1, -2)))  # outside of the mount, or nothing is read: a sample in memory
    ids = np.array([nothing if offset in outside else 100 + offset for offset in range(length)])
    index = EpochIndex(3, 1000, [ids], 100 + length, begin)
    shape = Shape(batch, workers)
    for worker, part in enumerate(parts_of(length, begin, batch, workers)):
        assert [worker_and_turn(shape, offset - begin) for offset in part] == [(worker, t) for t in range(len(part))]
        if not part:
            continue
        entered = data.draw(st.integers(0, len(part) - 1))
        stream = WorkerStream(shape, Occurrence(0, index, part[entered]), Cell(3, 0))
        assert (stream.worker, stream.entered_at) == (worker, 1000 + part[entered])
        coming = [offset for offset in part[entered + 1 :] if offset not in outside]
        stretch = stream.stretch(7, length)
        assert stretch.positions == [1000 + offset for offset in coming]
        assert stretch.samples == [100 + offset for offset in coming]
        if stretch.samples and data.draw(st.booleans()):  # some of it is read at once
            read = data.draw(st.integers(1, len(stretch.samples)))
            stream.advance(stretch.positions[read - 1])
            del coming[:read]
        for offset in coming:
            assert (stream.next_sample, stream.next_position) == (100 + offset, 1000 + offset)
            assert not stream.ended
            stream.advance(stream.next_position)
        assert stream.ended


@given(st.integers(20, 60), st.integers(2, 5), BATCHES, st.integers(1, 3), st.data())
def test_turns_come_early_by_less_than_the_slack(
    length: int, slack: int, batch: int, workers: int, data: st.DataObject
) -> None:
    index = EpochIndex(0, 0, [np.arange(length)], length)
    part = parts_of(length, 0, batch, workers)[0]
    stream = WorkerStream(Shape(batch, workers, slack), Occurrence(0, index, 0), Cell(0, 0))
    left = part[1:]
    while left:
        at = data.draw(st.integers(0, min(slack, len(left)) - 1))
        oldest, occurrence = part.index(left[0]), Occurrence(0, index, left[at])
        ahead = part.index(left[at]) - oldest
        expected = ahead if ahead < slack else -1
        assert stream.turn == oldest
        assert stream.turns_ahead(occurrence, skip=0) == expected
        assert stream.turns_ahead(occurrence, skip=length) == ahead
        if expected >= 0:
            stream.opened(occurrence)
            assert stream.turns_ahead(occurrence, skip=length) == -1  # it was opened
            del left[at]
    assert stream.ended


def test_where_whoever_is_free_takes_the_next_batch_a_stream_ends_with_its_batch() -> None:
    index = EpochIndex(0, 0, [np.arange(10)], 10)
    stream = WorkerStream(Shape(4, 0, 20), Occurrence(0, index, 4), Cell(0, 0))
    read = []
    while not stream.ended:
        read.append(stream.next_sample)
        stream.advance(stream.next_position)
    assert read == [5, 6, 7]


def test_what_lies_in_another_epoch_or_rank_or_of_another_worker_is_not_in_the_stream() -> None:
    first, second = (EpochIndex(e, 12 * e, [np.arange(12), np.arange(12, 24)], 24) for e in range(2))
    stream = WorkerStream(Shape(2, 3), Occurrence(0, first, 0), Cell(0, 0))
    assert stream.turns_ahead(Occurrence(0, first, 1), 8) == 0
    assert stream.turns_ahead(Occurrence(0, first, 6), 8) == 1
    assert stream.turns_ahead(Occurrence(0, first, 6), 0) == -1
    assert stream.turns_ahead(Occurrence(1, first, 1), 8) == -1
    assert stream.turns_ahead(Occurrence(0, second, 1), 8) == -1
    assert stream.turns_ahead(Occurrence(0, first, 2), 8) == -1


@given(st.lists(st.lists(st.integers(-2, 12), min_size=5, max_size=5), min_size=1, max_size=3), st.integers(1, 3))
def test_an_entry_occurs_wherever_a_stream_has_it(streams: list[list[int]], epochs: int) -> None:
    index = {e: EpochIndex(e, 5 * e, [np.roll(np.array(of_rank), e) for of_rank in streams], 13) for e in range(epochs)}
    for entry in range(13):
        found = [(at.epoch.epoch, at.rank_index, at.offset) for at in occurrences(index, entry)]
        expected = [
            (e, rank, offset)
            for e in range(epochs)
            for rank, of_rank in enumerate(streams)
            for offset in range(5)
            if np.roll(of_rank, e)[offset] == entry
        ]
        assert sorted(found) == expected
