"""What is learned of a loader's shape, from the opens of loaders that are drawn, and from opens that tell nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loaders import Loader, matcher_for, streams_of

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.learning import PlacedOpen, learn, seen_by_count, seen_where_matched
from mlfs.follow.score import Cell, Open
from mlfs.follow.shape import Shape
from mlfs.job import parse_job
from mlfs.orders.order import build_order


def seen_of(loader: Loader, length: int, seed: int, begin: int = 0) -> list[PlacedOpen]:
    """The opens of one epoch of a rank, at their true places."""
    places = np.arange(begin, length)
    return [PlacedOpen(process, 0, 0, x - begin) for process, x in loader.epoch(0, places, random.Random(seed))]


@given(st.integers(2, 24), st.integers(2, 6), st.integers(1, 4), st.integers(0, 1 << 20), st.integers(3, 6))
def test_workers_that_take_batches_in_turns_show_their_shape(
    batch: int, workers: int, prefetch: int, seed: int, rounds: int
) -> None:
    loader = Loader(batch, workers, 1000, prefetch)
    length = rounds * batch * workers + seed % batch
    assert learn(seen_of(loader, length, seed), length, batch_hint=1) == Shape(batch, workers, 1)


@given(st.integers(2, 8), st.integers(2, 3), st.integers(3, 6), st.integers(0, 1 << 20))
def test_workers_that_begin_in_the_middle_of_an_epoch_show_their_shape(
    batch: int, workers: int, rounds: int, seed: int
) -> None:
    behind = 3 * workers * batch
    seen = [
        one._replace(x=one.x + behind) for one in seen_of(Loader(batch, workers, 1000), rounds * batch * workers, seed)
    ]
    assert learn(seen, 100 + behind, batch_hint=1) == Shape(batch, workers, 1)


@given(st.integers(0, 1 << 20), st.integers(2, 24))
def test_a_process_that_reads_by_itself_is_the_only_worker(seed: int, batch: int) -> None:
    assert learn(seen_of(Loader(batch, 0, 1000), 300, seed), 300, batch) == Shape(1, 1, 1)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_need_slack(threads: int) -> None:
    rng, at_hand, seen = random.Random(threads), list(range(threads)), []
    for following in range(threads, 600):
        seen.append(PlacedOpen(7, 0, 0, at_hand.pop(rng.randrange(threads))))
        at_hand.append(following)
    shape = learn(seen, 600, 32)
    assert shape is not None
    assert (shape.batch, shape.workers) == (1, 1)
    assert threads <= shape.slack <= 40 * threads  # geometric: a thread may be slow for long


def test_whoever_is_free_takes_the_next_batch() -> None:
    shape = learn(seen_of(Loader(8, 3, 1000, in_order=False), 2000, 3), 2000, 8)
    assert shape is not None
    assert (shape.batch, shape.workers) == (8, 0)


def test_workers_that_take_single_samples_are_believed_only_where_batches_may_be_of_one() -> None:
    """torch's batches are larger; what looks like single samples in turns is then another world size."""
    seen = seen_of(Loader(1, 3, 1000), 300, 1)
    assert learn(seen, 300, 1, single=True) == Shape(1, 3, 1)
    believed = learn(seen, 300, 16, single=False)
    assert believed is None or believed.workers != 3


@given(st.integers(0, 1 << 20), st.integers(1, 4))
def test_reads_in_another_order_teach_nothing(seed: int, processes: int) -> None:
    rng = random.Random(seed)
    seen = [PlacedOpen(rng.randrange(processes), 0, 0, x) for x in rng.sample(range(400), 400)]
    assert learn(seen, 400, 8) is None


def test_opens_that_all_lie_before_the_epochs_beginning_teach_nothing() -> None:
    """Reads of another job beside one that resumes: this once ended the daemon."""
    assert learn([PlacedOpen(7, 0, 1, -1 - place) for place in range(400)], 400, 8) is None


def test_too_few_opens_teach_nothing() -> None:
    assert learn([PlacedOpen(1, 0, 0, x) for x in range(3)], 100, 8) is None
    assert learn([PlacedOpen(1, 0, 0, x) for x in range(4)], 100, 8) == Shape(1, 1, 1)


def test_opens_are_taken_where_they_were_matched_or_by_how_often_an_entry_was_opened() -> None:
    orders = [[3, 1, 4, 0, 2], [4, 4, 2, -1, 0]]
    epochs = {e: EpochIndex(e, 5 * e, [np.array(orders[e])], 6, begin=1 - e) for e in range(2)}
    cells = [Cell(0, 0), Cell(1, 0), Cell(9, 0)]

    def opened(entry: int, epoch: int, position: int) -> Open:
        return Open(entry, 70 + entry, 1, cells[epoch], True, 0, position)

    opens = [opened(1, 0, 1), opened(4, 0, 2), opened(5, 1, -1), opened(4, 0, -1), opened(2, 1, 7), opened(0, 2, 3)]
    matched = [(s.process, s.epoch, s.x) for s in seen_where_matched(opens, epochs)]
    assert matched == [(71, 0, 0), (74, 0, 1), (72, 1, 2), (70, 9, 3)]
    counted = [(s.process, s.epoch, s.x) for s in seen_by_count(opens, epochs)]
    assert counted == [(71, 0, 0), (74, 0, 1), (74, 1, 0), (72, 0, 3), (70, 0, 2)]


@given(st.integers(0, 1 << 20), st.integers(1, 3), st.integers(2, 9))
def test_how_often_an_entry_was_opened_tells_nothing_behind_an_epoch_that_was_let_go(
    seed: int, known: int, left: int
) -> None:
    """The first epochs stay at hand, and of those behind them the last ones."""
    orders = [np.random.default_rng((seed, epoch)).permutation(20) for epoch in range(known + left + 2)]
    epochs = {e: EpochIndex(e, 20 * e, [orders[e]], 20) for e in range(len(orders)) if not known <= e < known + left}
    opens = [Open(entry, 7, 1, Cell(0, 0), False, -1, -1) for order in orders for entry in order.tolist()]
    assert seen_by_count(opens, epochs) == [PlacedOpen(7, 0, epoch, x) for epoch in range(known) for x in range(20)]


@pytest.mark.parametrize(("world", "workers", "batch"), [(1, 2, 8), (2, 2, 16), (2, 3, 5), (4, 2, 32)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_shape_is_learned_where_samples_are_repeated_and_ranks_have_them_in_common(
    world: int, workers: int, batch: int, epoch: int
) -> None:
    spec = parse_job({"sampler": "ra-sampler", "seed": 5, "world_size": world, "epochs": 2})
    order = build_order(spec, 600)
    epochs = {
        number: EpochIndex(number, 0, [order.rank_stream(number, rank) for rank in range(world)], 600)
        for number in range(2)
    }
    opens: list[Open] = []
    for number in range(epoch + 1):
        for rank in range(world):
            stream = order.rank_stream(number, rank).tolist()
            for at, entry in enumerate(stream):
                process = 1 + number * 100 + rank * 10 + at // batch % workers
                opens.append(Open(entry, process, 1, Cell(0, 0), False, -1, -1))
    assert learn(seen_by_count(opens, epochs), order.stream_length(0), 1) == Shape(batch, workers, 1)


@pytest.mark.parametrize("seed", range(8))
def test_an_epoch_in_another_order_does_not_look_like_late_threads(seed: int) -> None:
    """More slack explains some of its reads by chance, and with it chance would look like agreement for ever."""
    rng = random.Random(seed)
    matcher = matcher_for(seed, 600, 1, 16, 9)
    loader = Loader(16, 2, 1000)
    for number, stream in enumerate((streams_of(seed, 0, 600, 1)[0], streams_of(seed + 100, 1, 600, 1)[0][:200])):
        for process, entry in loader.epoch(number, stream, rng):
            matcher.observe(entry, process, 1)
    assert matcher.score.agreement_of_last(200) < 0.25
