"""What comes next where nobody knows the order: runs inside a random order are learned, and chance is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from support.held import held_bytes

from mlfs.follow.evidence import Read
from mlfs.plan.scheduler.neighbours import MOST_AHEAD, MOST_READERS, Neighbours, Rule

N = 1000
Reads = list[tuple[int, int]]


def read(sample: int, process: int, at_s: float) -> Read:
    """A read by a process, whose parent is of no account."""
    return Read(sample, process, 0, at_s)


def coming_after(neighbours: Neighbours, sample: int, process: int, at_s: float) -> list[int]:
    """What is said to come next, once a process has read a sample."""
    neighbours.read([read(sample, process, at_s)])
    return neighbours.coming(process)


def learned(reads: Reads, interval_s: float = 0.001) -> tuple[Neighbours, float, float]:
    """After reads of (sample, process): what learned them, the share foretold, and how many were foretold in vain."""
    neighbours = Neighbours([1] * N, 1.0)
    foretold: set[int] = set()
    hits = promised = 0
    for number, (sample, process) in enumerate(reads):
        hits += sample in foretold
        foretold.discard(sample)
        coming = coming_after(neighbours, sample, process, number * interval_s)
        assert len(coming) <= MOST_AHEAD
        promised += len(set(coming) - foretold)
        foretold.update(coming)
    return neighbours, hits / len(reads), (promised - hits) / len(reads)


def directories(draw: random.Random, length: int) -> list[int]:
    """Directories in a random order, their files in the order of their names."""
    begins = list(range(0, N, length))
    draw.shuffle(begins)
    return [sample for begin in begins for sample in range(begin, min(N, begin + length))]


def dealt(order: list[int], workers: int, batch: int) -> Reads:
    """As the workers of a loader read it, side by side."""
    turns: list[Iterator[int]] = []
    for worker in range(workers):
        batches = [order[at : at + batch] for at in range(worker * batch, len(order), workers * batch)]
        turns.append(iter([sample for one in batches for sample in one]))
    reads: Reads = []
    while len(reads) < len(order):
        for worker, turn in enumerate(turns):
            reads += [(sample, worker) for sample in [next(turn, -1)] if sample >= 0]
    return reads


@pytest.mark.parametrize("seed", range(6))
def test_runs_inside_a_random_order_are_learned(seed: int) -> None:
    draw = random.Random(seed)
    length, workers = draw.choice((20, 50, 100)), draw.choice((1, 2, 4))
    neighbours, share, in_vain = learned(dealt(directories(draw, length), workers, draw.choice((16, 32))))
    assert neighbours.statistics().used is Rule.ADJACENT
    assert share > 0.6
    assert in_vain < 1.0  # less than was read


@pytest.mark.parametrize("seed", range(4))
def test_the_same_order_again_is_learned_whoever_reads_it(seed: int) -> None:
    draw = random.Random(seed)
    order = draw.sample(range(N), N)
    first = [(sample, 1) for sample in order]
    again = [(sample, 2) for sample in order]
    neighbours, share, _ = learned(first + again)
    assert neighbours.statistics().used is Rule.EARLIER
    assert share > 0.45  # all of the second epoch but its beginning


@pytest.mark.parametrize("make", [lambda draw: draw.sample(range(N), N), lambda draw: draw.choices(range(N), k=N)])
def test_of_a_random_order_nothing_is_said(make: Callable[[random.Random], list[int]]) -> None:
    for seed in range(4):
        draw = random.Random(seed)
        reads = [(sample, 1) for _ in range(3) for sample in make(draw)]
        neighbours, share, in_vain = learned(reads)
        assert neighbours.statistics().used is None
        assert neighbours.statistics().words.endswith(": nothing is fetched ahead of such a reader")
        assert share == in_vain == 0.0


def test_what_was_learned_is_said_with_its_figures() -> None:
    neighbours = Neighbours([1] * N, 1.0)
    assert neighbours.statistics().words == ""
    for sample in range(1200 - N, N):
        neighbours.read([read(sample, 1, 0.0)])
    assert neighbours.statistics().words == (
        "no job followed 800 reads; of the last 64 of them 100 % were the next file of the directory:"
        " up to 16 files are fetched ahead of such a reader"
    )


def test_a_rule_that_is_wrong_by_now_is_used_no_more() -> None:
    draw = random.Random(5)
    walked = [(sample, 1) for sample in range(200)]
    neighbours, _, in_vain = learned(walked + [(sample, 1) for sample in draw.sample(range(N), 300)])
    assert neighbours.statistics().used is None
    assert in_vain * 500 < 4 * MOST_AHEAD + 64  # what was foretold before it showed


def test_a_slow_reader_gets_no_more_than_he_comes_to_in_time() -> None:
    neighbours = Neighbours([1] * N, 1.0)
    coming = [len(coming_after(neighbours, sample, 1, 0.25 * sample)) for sample in range(100)]
    assert max(coming) == 4  # pages wait for a second
    neighbours = Neighbours([1] * N, 1.0)
    assert len([coming_after(neighbours, sample, 1, 60.0 * sample) for sample in range(100)][-1]) == 1


def test_what_has_no_bytes_is_left_out_and_memory_is_bounded() -> None:
    neighbours = Neighbours([sample % 2 for sample in range(N)], 1.0)
    for sample in range(1, 200, 2):
        coming = coming_after(neighbours, sample, 1, 0.0)
    assert coming
    assert all(sample % 2 for sample in coming)
    held = []
    for process in range(10 * MOST_READERS):
        neighbours.read([read(process, process, 0.0)])
        if process in (2 * MOST_READERS, 10 * MOST_READERS - 1):
            held.append(held_bytes(neighbours))
    assert held[1] <= 1.05 * held[0]
