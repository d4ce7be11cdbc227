"""Where an epoch begins whose order is not known, and for how long its first reads are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfs.explain.disagreement import Beginnings
from mlfs.follow.evidence import UNFIT_READS
from mlfs.follow.job import JobRun
from mlfs.follow.score import REMEMBERED_OPENS
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

WORKERS = 3


def job_of(samples: int) -> JobRun:
    spec = parse_job({"sampler": "torch-random", "seed": 3, "epochs": 4, "batch_size": 8, "name": "train"})
    streams = JobStreams(spec, np.arange(samples), build_order(spec, samples))
    job = JobRun(spec, streams, np.full(samples, 10, dtype=np.int64))
    for epoch in range(4):
        job.add_epoch(job.load_epoch(epoch))
    return job


def read(job: JobRun, samples: Sequence[int], first_process: int = 100) -> None:
    """Workers of one parent read in turn, in another order than the job has."""
    for number, sample in enumerate(samples):
        job.observe(int(sample), first_process + number % WORKERS, 9)


def test_first_reads_tell_as_long_as_they_are_remembered() -> None:
    samples = 20_000
    job, beginnings = job_of(samples), Beginnings()
    order = np.random.default_rng(0).permutation(samples)
    read(job, order[:1000])
    begun = beginnings.latest(job)
    assert [head[0] for head in begun.heads] == order[:WORKERS].tolist()
    assert begun.is_enough(samples)
    assert begun.processes_ready(samples) == WORKERS
    assert beginnings.peek(job) == begun
    read(job, order[1000 : REMEMBERED_OPENS + 500])
    forgotten = beginnings.peek(job)
    assert (forgotten.opens, forgotten.processes_ready(samples)) == ([], 0)


def test_an_epoch_has_no_reads_of_ranks_that_nobody_reads_here() -> None:
    """The registration left out which ranks read here."""
    samples = 4 * 600
    spec = parse_job({"seed": 3, "epochs": 4, "batch_size": 8, "name": "train", "world_size": 4})
    streams = JobStreams(spec, np.arange(samples), build_order(spec, samples))
    job, beginnings = JobRun(spec, streams, np.full(samples, 10, dtype=np.int64)), Beginnings()
    for epoch in range(4):
        job.add_epoch(job.load_epoch(epoch))
    for sample in streams.epoch_ids(0, 0).tolist():
        job.observe(sample, 100, 9)
    assert job.ranks.newly_silent() == [1, 2, 3]
    assert job.ranks.epoch_reads == 600
    rng = np.random.default_rng(0)
    read(job, rng.permutation(samples)[:100], 200)
    assert (beginnings.latest(job).epoch, job.ranks.epoch_reads) == (1, 600)  # some of these lie in silent ranks
    while job.score.observed < 2 * 600 + UNFIT_READS:
        read(job, rng.permutation(samples)[:1], 200)
    assert beginnings.another_began(job, UNFIT_READS)
    assert beginnings.peek(job).epoch == 2


def test_who_looks_on_does_not_tell_of_a_later_epoch() -> None:
    samples = 200
    job, beginnings = job_of(samples), Beginnings()
    for epoch in (0, 1):
        read(job, np.random.default_rng(epoch).permutation(samples), 100 * (epoch + 1))
        if not epoch:
            assert beginnings.latest(job).passes == 1  # it has just ended
            beginnings.passes = 0
    read(job, np.random.default_rng(2).permutation(samples)[: UNFIT_READS + 1], 300)
    assert beginnings.peek(job).passes == 2
    assert beginnings.another_began(job, UNFIT_READS)
    assert beginnings.latest(job).passes == 2
    assert not beginnings.another_began(job, UNFIT_READS)
