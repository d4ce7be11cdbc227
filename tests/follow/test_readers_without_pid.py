"""Readers that cannot be told apart (another pid namespace): matched by their samples alone.

Loaders of any kind are drawn. Where they read in the predicted order, their opens agree; where they read in another
one, most of them do not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import Loader, in_turns, matcher_for, streams_of

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobState
from mlfs.follow.score import RECENT_OPENS
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

EPOCHS = 3


@dataclass(frozen=True)
class Case:
    """A job whose readers nobody can tell apart.

    Attributes:
        told: whether the batch size was told. threads: in place of workers, where more than 1.
        left_out: share of the samples that the script does not read. again: how often each file is opened.
        pace: how many times faster than the last rank the first one reads: nothing has to keep ranks together.
    """

    seed: int
    ranks: int
    length: int
    batch: int
    workers: int
    told: bool
    in_order: bool
    threads: int
    left_out: float
    again: int
    pace: int

    def opens(self, rank: int, seed: int, rng: random.Random, start: int = 0) -> Iterator[int]:
        loader = Loader(self.batch, self.workers, 1000 * rank, in_order=self.in_order)
        for epoch in range(EPOCHS):
            stream = streams_of(seed, epoch, self.length * self.ranks, self.ranks)[rank][0 if epoch else start :]
            stream = stream[np.random.default_rng((seed, epoch, rank)).random(len(stream)) >= self.left_out]
            if self.threads > 1:
                early = [(at + rng.uniform(0, self.threads), int(entry)) for at, entry in enumerate(stream)]
                read = (entry for _, entry in sorted(early))
            else:
                read = (entry for _, entry in loader.epoch(epoch, stream, rng))
            for entry in read:
                yield from [entry] * self.again


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**30),
    ranks=st.integers(1, 4),
    length=st.integers(150, 500),
    batch=st.sampled_from([1, 4, 8, 12]),
    workers=st.integers(0, 5),
    told=st.booleans(),
    in_order=st.booleans(),
    threads=st.sampled_from([1, 1, 4, 12]),
    left_out=st.sampled_from([0.0, 0.0, 0.01]),
    again=st.sampled_from([1, 1, 2]),
    pace=st.sampled_from([1, 1, 3]),
).map(lambda case: replace(case, length=max(case.length, 6 * case.batch * case.workers)))
"""What workers are handed ahead, two batches each, is a third of an epoch at most."""


def several(opens: Iterator[int], at_once: int) -> Iterator[list[int]]:
    """Some opens at each turn."""
    while part := list(islice(opens, at_once)):
        yield part


def agreement(case: Case, seed: int, start: int = 0) -> tuple[float, float, list[int]]:
    """The share of all opens that were predicted, the least of the last 256 ones seen, and the ranks' frontiers."""
    rng = random.Random(case.seed)
    matcher = matcher_for(case.seed, case.length * case.ranks, case.ranks, case.batch if case.told else 1, EPOCHS)
    least = 1.0
    paces = [case.pace, *[1] * (case.ranks - 1)]
    ranks = [several(case.opens(rank, seed, rng, start), pace) for rank, pace in enumerate(paces)]
    for number, entry in enumerate(chain.from_iterable(in_turns(ranks, rng)), 1):
        matcher.observe(entry, NO_PID)
        if number % 64 == 0 and matcher.score.recent_opens == RECENT_OPENS:
            least = min(least, matcher.score.agreement or 0.0)
    return matcher.score.agreed / matcher.score.observed, least, [rank.frontier for rank in matcher.ranks]


@pytest.mark.promise("namespace-readers")
@settings(max_examples=25)
@given(CASES)
def test_reads_in_the_predicted_order_agree(case: Case) -> None:
    share, least, frontiers = agreement(case, case.seed)
    assert share >= 0.92 - 4 * case.left_out, (share, case)
    assert least >= 0.8 - 8 * case.left_out
    assert all(frontier >= 0.9 * EPOCHS * case.length for frontier in frontiers)


@settings(max_examples=25)
@given(CASES)
def test_reads_in_another_order_do_not(case: Case) -> None:
    share, _, _ = agreement(case, case.seed + 1)
    assert share < 0.5, (share, case)


@settings(max_examples=15)
@given(CASES, st.floats(0.2, 0.8))
def test_a_job_that_is_registered_while_it_is_read_is_found(case: Case, begun: float) -> None:
    share, _, frontiers = agreement(case, case.seed, int(begun * case.length))
    assert share >= 0.6  # its first reads are lost, and an epoch may have 150 samples
    assert all(frontier >= 0.9 * EPOCHS * case.length for frontier in frontiers)


def job_of(n: int, **fields: Any) -> JobRun:
    spec = parse_job({"epochs": 3, "batch_size": 8, "seed": 3} | fields)
    return JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))


def loaded(job: JobRun) -> JobRun:
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))
    return job


def reads_of(job: JobRun, seed: int) -> Iterator[int]:
    """Two ranks with three workers each read three epochs."""
    rng = random.Random(seed)

    def of_rank(rank: int) -> Iterator[int]:
        for epoch in range(3):
            for _, entry in Loader(8, 3, 0).epoch(epoch, job.streams.epoch_ids(epoch, rank), rng):
                yield entry

    return in_turns([of_rank(0), of_rank(1)], rng)


@pytest.mark.promise("namespace-readers")
@pytest.mark.parametrize("seed", range(4))
def test_who_walks_beside_a_job_costs_it_little(seed: int) -> None:
    job = loaded(job_of(600, world_size=2))
    walk = iter(range(600))
    for number, entry in enumerate(reads_of(job, seed)):
        job.observe(entry, NO_PID, 0)
        if number > 200 and number % 3 == 0 and (walked := next(walk, None)) is not None:
            job.observe(walked, NO_PID, 0)
        job.judge(float(number))
        loaded(job)
    now = job.statistics()
    assert now.share.share > 0.9
    assert now.state in (JobState.RUNNING, JobState.FINISHED)
    assert now.readers.proved == ()
    assert now.findings.known == ()


def test_a_script_that_is_started_again_is_followed_from_its_start() -> None:
    job = loaded(job_of(600, world_size=2))
    for number, entry in enumerate(reads_of(job, 1)):
        if number == 1000:
            break
        job.observe(entry, NO_PID, 0)
        loaded(job)
    restarted = 0
    for entry in reads_of(job, 2):
        if job.observe(entry, NO_PID, 0).another_leads:
            restarted += 1
            job.follow_leading()
        loaded(job)
    assert restarted == 1
    assert job.finished
    assert job.score.agreement == 1.0


def test_a_job_whose_ranks_all_have_readers_with_names_has_no_others() -> None:
    job = loaded(job_of(600))
    order = job.streams.epoch_ids(0, 0).tolist()
    for entry in order[:20]:
        job.observe(entry, 100, 7)
    assert job.readers.proved
    assert all(job.observe(entry, NO_PID, 0).apart for entry in order[20:60])
    assert all(job.observe(entry, 100, 7).match for entry in order[20:60])
    assert job.statistics().share.share == 1.0
