"""How long each rank's readers have waited: waits told before their reads, in drawn courses."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from mlfs.plan.scheduler import rank_waits
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.rank_waits import RankReader, RankWaits


class Jobs:
    """The records of two jobs, as far as waits are counted in them."""

    def __init__(self) -> None:
        self.waited: dict[int, dict[int, float]] = {}
        self.waits = RankWaits(
            {
                number: cast(
                    JobRecord, SimpleNamespace(waited=self._counting(number), loads=SimpleNamespace(waited=min))
                )
                for number in (1, 2)
            }
        )

    def _counting(self, number: int):  # type: ignore[no-untyped-def]
        def waited(rank: int, seconds: float) -> None:
            of_job = self.waited.setdefault(number, {})
            of_job[rank] = of_job.get(rank, 0.0) + seconds

        return waited


@pytest.mark.parametrize("seed", range(20))
def test_each_wait_counts_for_the_rank_whose_read_follows(seed: int) -> None:
    rng, jobs = random.Random(seed), Jobs()
    expected: dict[int, dict[int, float]] = {}
    pending: list[tuple[int, float]] = []
    ended = 3  # the number of a job that has ended
    for _ in range(300):
        if rng.random() < 0.5 or not pending:
            wait = rng.randrange(20), float(rng.randrange(1, 9))
            pending.append(wait)
            jobs.waits.waited(*wait)
            continue
        sample = rng.choice(pending)[0]
        at = next(index for index, (other, _) in enumerate(pending) if other == sample)
        _, seconds = pending.pop(at)
        reader = rng.choice(
            [RankReader(1, 0, 7), RankReader(1, 1, 8), RankReader(2, 0, 9), RankReader(ended, 0, 9), None]
        )
        assert list(jobs.waits.read([sample], reader)) == [seconds]
        if reader is not None and reader.job != ended:
            of_job = expected.setdefault(reader.job, {})
            of_job[reader.rank] = of_job.get(reader.rank, 0.0) + seconds
    assert jobs.waited == expected


def test_waits_of_a_process_count_for_its_rank_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_waits, "MOST_PENDING", 2)
    jobs = Jobs()
    for sample, process, seconds in ((1, 7, 2.0), (2, 7, 3.0), (3, 8, 4.0)):
        jobs.waits.waited(sample, seconds)
        jobs.waits.read_by_unknown(sample, process)
    assert jobs.waited == {}
    assert list(jobs.waits.read([4], RankReader(1, 1, 7))) == [0.0]
    assert jobs.waited == {1: {1: 5.0}}
    jobs.waits.read([5], RankReader(1, 1, 7))
    assert jobs.waited == {1: {1: 5.0}}  # they count once
    for process in (8, 9, 10):  # strangers, of whom the last ones are kept
        jobs.waits.waited(6, 1.0)
        jobs.waits.read_by_unknown(6, process)
    jobs.waits.read([3], RankReader(2, 0, 8))
    assert 2 not in jobs.waited


def test_a_wait_while_the_file_is_open_counts_for_who_has_opened_it() -> None:
    jobs = Jobs()
    jobs.waits.waited(7, 2.0, opened=True)  # its read is told of later
    jobs.waits.read([7], RankReader(1, 1, 8))
    jobs.waits.waited(7, 3.0, opened=True)
    jobs.waits.closed([7])
    jobs.waits.waited(7, 4.0, opened=True)
    jobs.waits.read([7], None)  # a stranger
    assert jobs.waited == {1: {1: 5.0}}


def test_waits_whose_reads_never_come_are_forgotten() -> None:
    jobs = Jobs()
    for sample in range(rank_waits.MOST_PENDING + 1):
        jobs.waits.waited(sample, 1.0)
    for sample in range(rank_waits.MOST_PENDING + 1):
        jobs.waits.read([sample], RankReader(1, 0, 7))
    assert jobs.waited == {1: {0: float(rank_waits.MOST_PENDING)}}
    for _ in range(2 * rank_waits.MOST_OF_A_SAMPLE):  # a file that cannot be read is asked for again and again
        jobs.waits.waited(7, 1.0)
    for _ in range(2 * rank_waits.MOST_OF_A_SAMPLE):
        jobs.waits.read([7], RankReader(2, 0, 7))
    assert jobs.waited[2] == {0: float(rank_waits.MOST_OF_A_SAMPLE)}
