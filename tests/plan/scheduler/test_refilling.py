"""When a round is refilled: behind what readers have come to, and only where the window has room for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from mlfs.follow.epoch_index import EpochIndex
from mlfs.plan.scheduler.look_ahead import LOOK_SAMPLES, Refilling, Uses
from mlfs.served.refill import refill_of

LENGTH, HALF, WINDOW = 40, 10, 20  # samples of one byte: parts of ten, in a window of twenty


def epoch(number: int) -> EpochIndex:
    """One of a rank that reads samples in a random order, in rounds of ten."""
    ids = np.random.default_rng(number).permutation(LENGTH)
    refill = refill_of([ids], [np.ones(LENGTH, dtype=np.int64)], np.arange(0, LENGTH, HALF), HALF)
    return EpochIndex(number, number * LENGTH, [ids], LENGTH, 0, refill)


def due(refilling: Refilling, epochs: list[EpochIndex], frontier: int, cursor: int, window: int = WINDOW) -> list[int]:
    """The linear positions that are due."""
    at_hand, found = {index.epoch: index for index in epochs}, []
    while (next_due := refilling.next_due(at_hand, frontier, cursor, window)) is not None:
        index, _, position = next_due
        found.append(index.base + position)
        refilling.go_on(index.epoch)
    return found


def test_while_a_part_is_looked_at_the_next_one_is_refilled_across_epochs() -> None:
    refilling, epochs = Refilling(), [epoch(1), epoch(2)]
    assert sorted(due(refilling, epochs, 20, 40 - 1)) == list(range(40, 50))
    assert len(due(refilling, epochs, 20, 44)) == 5
    last = due(refilling, epochs, 25, 2 * 40 - 1)
    assert sorted(last)[-10:] == list(range(80, 90))  # the first part of the epoch after
    order = [int(epochs[1].ids[0][position - 80]) for position in last[-10:]]
    assert order == sorted(order)


def test_what_readers_have_come_to_and_the_part_after_it_are_left_to_the_order_of_need() -> None:
    epochs = [epoch(0), epoch(1)]
    assert due(Refilling(), epochs, 0, HALF - 1) == []
    assert min(due(Refilling(), epochs, 0, 79)) == 20
    assert min(due(Refilling(), epochs, 25, 79)) == 40
    assert min(due(Refilling(), epochs, 35, 79)) == 50  # the part after it is the next epoch's first
    refilling = Refilling()
    due(refilling, epochs, 0, 79)
    refilling.begin_anew()
    assert min(due(refilling, epochs, 55, 79)) == 70


def test_a_window_that_has_shrunk_is_left_to_the_order_of_need_until_it_has_grown() -> None:
    refilling, epochs = Refilling(), [epoch(1)]
    assert due(refilling, epochs, 20, 45, window=HALF) == []
    assert len(due(refilling, epochs, 20, 45)) == 16


def test_a_refill_is_no_use_of_what_was_read_or_counted_or_nobody_reads() -> None:
    read = {42, 43}
    rank = SimpleNamespace(floor=20, frontier=20, done=read, is_done=lambda position: position in read)
    ranks = SimpleNamespace(progress=[rank], silent=set())
    at_hand = {0: epoch(0), 1: epoch(1)}
    epochs = SimpleNamespace(
        at_hand=at_hand, end=2 * LENGTH, first_length=0, index_at=lambda position: at_hand.get(position // LENGTH)
    )
    job: Any = SimpleNamespace(batch_files=4, ranks=ranks, epochs=epochs, member=None)

    def looked_at(to: int) -> list[int]:
        found = []
        while uses.cursors[0] < to:
            for sample, number in uses.coming(0, WINDOW):
                found.append(number * LENGTH + at_hand[number].ids[0].tolist().index(sample))
        return found

    uses = Uses(job, 1)
    found = looked_at(44)
    assert len(found) == len(set(found))
    assert set(range(20, 50)) - read < set(found) <= set(range(20, 60))  # some of the part that follows
    assert found != sorted(found)
    assert uses.leave_rank(0, 30) == [int(at_hand[p // LENGTH].ids[0][p % LENGTH]) for p in sorted(found) if p >= 30]
    ranks.silent.add(0)
    assert list(uses.refilled(2 * LENGTH, WINDOW)) == []  # nobody reads for the rank here
    assert uses.looked <= LENGTH + LOOK_SAMPLES
    ranks.silent.clear()
    assert sorted(looked_at(2 * LENGTH)) == [position for position in range(30, 2 * LENGTH) if position not in read]
