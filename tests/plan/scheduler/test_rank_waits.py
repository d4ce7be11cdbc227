"""How long each rank's readers have waited: waits told before their reads, in drawn courses."""

from __future__ import annotations

import random

import pytest

from mlfs.plan.scheduler import rank_waits
from mlfs.plan.scheduler.rank_loads import Reader
from mlfs.plan.scheduler.rank_waits import RankWaits


@pytest.mark.parametrize("seed", range(20))
def test_each_wait_counts_for_the_rank_whose_read_follows(seed: int) -> None:
    rng, waits = random.Random(seed), RankWaits()
    expected: dict[str, dict[int, float]] = {}
    pending: list[tuple[int, float]] = []
    for _ in range(300):
        if rng.random() < 0.5 or not pending:
            wait = rng.randrange(20), float(rng.randrange(1, 9))
            pending.append(wait)
            waits.waited(*wait)
            continue
        sample = rng.choice(pending)[0]
        at = next(index for index, (other, _) in enumerate(pending) if other == sample)
        _, seconds = pending.pop(at)
        reader = rng.choice([Reader("train", 0, 7), Reader("train", 1, 8), Reader("val", 0, 9), None])
        waits.read(sample, reader)
        if reader is not None:
            of_job = expected.setdefault(reader[0], {})
            of_job[reader[1]] = of_job.get(reader[1], 0.0) + seconds
    assert waits.statistics() == expected
    waits.forget("train")
    assert "train" not in waits.statistics()


def test_a_wait_while_the_file_is_open_counts_for_who_has_opened_it() -> None:
    waits = RankWaits()
    waits.waited(7, 2.0, opened=True)  # its read is told of later
    waits.read(7, Reader("train", 1, 8))
    waits.waited(7, 3.0, opened=True)
    waits.closed(7)
    waits.waited(7, 4.0, opened=True)
    waits.read(7, None)  # a stranger
    assert waits.statistics() == {"train": {1: 5.0}}


def test_waits_whose_reads_never_come_are_forgotten() -> None:
    waits = RankWaits()
    for sample in range(rank_waits.MOST_PENDING + 1):
        waits.waited(sample, 1.0)
    for sample in range(rank_waits.MOST_PENDING + 1):
        waits.read(sample, Reader("train", 0, 7))
    assert waits.statistics() == {"train": {0: float(rank_waits.MOST_PENDING)}}
