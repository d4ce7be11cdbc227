"""A job that evaluates over the files that it trains with, without shuffling: every read of its training is predicted,
and what evaluation reads is fetched ahead in the order of the files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loaders import Loader, in_turns

from mlfs.follow.evaluation import MOST_PASSES, STEPS_TOLD
from mlfs.follow.job import JobRun, Seen
from mlfs.follow.plain_order import WALKED_AHEAD
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

EPOCHS = 3


def job_of(n: int, **fields: Any) -> JobRun:
    spec = parse_job({"epochs": EPOCHS, "seed": 3} | fields)
    return JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))


def load(job: JobRun) -> None:
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))


def loop(job: JobRun, rank: int, train: Loader, evaluate: Loader, share: float, rng: random.Random) -> Iterator[Any]:
    """One rank's opens: (process, entry, whether it evaluates)."""
    n = len(job.member)
    for epoch in range(EPOCHS):
        yield from ((*opened, False) for opened in train.epoch(epoch, job.streams.epoch_ids(epoch, rank), rng))
        yield from ((*opened, True) for opened in evaluate.epoch(epoch, np.arange(round(share * n)), rng))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("eval_workers", [0, 1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_between_epochs_is_nothing_to_the_job(workers: int, eval_workers: int, ranks: int) -> None:
    rng = random.Random(f"{workers} {eval_workers} {ranks}")
    n, batch, share = rng.choice((300, 600)), rng.choice((8, 16)), rng.choice((0.5, 1.0))
    told = rng.choice(({}, {"batch_size": batch, "num_workers": workers} if workers else {"batch_size": batch}))
    job = job_of(n, world_size=ranks, **told)
    load(job)
    trained, evaluated, ahead = 0, 0, 0
    running = [
        loop(
            job, rank, Loader(batch, workers, pid, persistent=rng.random() < 0.5),
            Loader(32, eval_workers, pid if not eval_workers else pid + 500), share, rng,
        )
        for rank, pid in enumerate(range(1000, 1000 * (ranks + 1), 1000))
    ]  # fmt: skip
    last: Seen | None = None
    for process, entry, evaluates in in_turns(running, rng):
        last = job.observe(entry, process, process // 1000 * 1000 if process % 1000 else 1)
        assert not last.another_leads
        load(job)
        trained += not evaluates
        evaluated += evaluates
        ahead += evaluates and last.apart and list(last.coming) == list(range(entry + 1, min(n, entry + 17)))
    assert job.score.agreed == job.score.observed == trained
    assert ahead >= evaluated - EPOCHS * ranks * (STEPS_TOLD + 1) * max(1, eval_workers) - evaluated // 32
    assert WALKED_AHEAD == 16


def test_who_reads_in_another_order_between_epochs_does_not_evaluate() -> None:
    job = job_of(300, batch_size=8)
    load(job)
    for entry in job.streams.epoch_ids(0, 0).tolist():
        job.observe(entry, 100, 7)
    others = random.Random(1).sample(range(300), 40)
    assert not any(job.observe(entry, 100, 7).apart for entry in others)
    assert job.score.observed >= 300 + 39  # one may wait for the next


@pytest.mark.parametrize("passes", [2, 12])
def test_an_evaluation_makes_few_passes_and_runs_of_files_in_a_random_order_are_none(passes: int) -> None:
    job = job_of(600, batch_size=8)
    load(job)
    for entry in job.streams.epoch_ids(0, 0).tolist():
        job.observe(entry, 100, 7)
    begins = sorted(random.Random(2).sample(range(0, 600, 20), passes), reverse=True)
    apart = [job.observe(entry, 100, 7).apart for begin in begins for entry in range(begin, begin + 20)]
    few = passes <= MOST_PASSES
    assert sum(apart) == 20 * passes - STEPS_TOLD - (passes - 1) if few else sum(apart) < 20 * MOST_PASSES
    assert job.score.observed == 600 if few else job.score.observed >= 600 + 20 * (passes - MOST_PASSES)


def test_the_next_epoch_ends_an_evaluation_that_was_left_early() -> None:
    job = job_of(300, batch_size=8)
    for epoch in range(2):
        load(job)
        for entry in job.streams.epoch_ids(epoch, 0).tolist():
            assert job.observe(entry, 100, 7).match is not None
        assert [job.observe(entry, 100, 7).apart for entry in range(20)][-1]
    assert job.score.agreed == job.score.observed == 600


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("eval_workers", [0, 1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_in_the_middle_of_an_epoch_is_nothing_to_the_job(
    workers: int, eval_workers: int, ranks: int
) -> None:
    """Every so many steps the script reads some files in their order, and then goes on where it was."""
    rng = random.Random(f"middle {workers} {eval_workers} {ranks}")
    n, batch = rng.choice((300, 600)), rng.choice((8, 16))
    told = rng.choice(({}, {"batch_size": batch, "num_workers": workers} if workers else {"batch_size": batch}))
    job = job_of(n, world_size=ranks, **told)
    load(job)
    every, files = n // ranks // 3, np.arange(rng.choice((40, n)))
    running = []
    for rank, pid in enumerate(range(1000, 1000 * (ranks + 1), 1000)):
        train = Loader(batch, workers, pid)
        evaluate = Loader(32, eval_workers, pid if not eval_workers else pid + 500)
        running.append(interrupted(job, rank, train, evaluate, files, every, rng))
    trained = 0
    for process, entry, evaluates in in_turns(running, rng):
        assert not job.observe(entry, process, process // 1000 * 1000 if process % 1000 else 1).another_leads
        load(job)
        trained += not evaluates
    assert job.score.agreed == job.score.observed == trained


def interrupted(
    job: JobRun, rank: int, train: Loader, evaluate: Loader, files: np.ndarray, every: int, rng: random.Random
) -> Iterator[Any]:
    """One rank's opens, with an evaluation after each `every` of them."""
    for epoch in range(EPOCHS):
        for number, opened in enumerate(train.epoch(epoch, job.streams.epoch_ids(epoch, rank), rng), 1):
            yield (*opened, False)
            if number % every == 0:
                yield from ((*at, True) for at in evaluate.epoch(epoch, files, rng))
