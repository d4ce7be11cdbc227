"""A job that is followed by one process after another, at whatever read: each read is counted as predicted."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from loaders import Loader

from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

SCRIPT = 50


def job_of(n: int, before: JobRun | None = None, **fields: object) -> JobRun:
    """A job, which goes on where another process has followed it to."""
    place = before.place() if before is not None else None
    start = {} if place is None else {"start_epoch": place[0], "start_step": place[1]}
    spec = parse_job({"epochs": 4, "seed": 3} | fields | start)
    job = JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))
    if before is not None:
        noted = [json.loads(json.dumps(before.noted()))]
        for epoch in job.epochs_noted(noted) - job.epochs.at_hand.keys():
            job.add_epoch(job.load_epoch(epoch))
        job.go_on(noted)
    return job


@pytest.mark.parametrize("seed", range(12))
def test_each_read_is_predicted_whoever_follows(seed: int) -> None:
    rng = random.Random(seed)
    n, often = rng.choice((100, 200)), rng.choice((3, 20))
    fields = {"batch_size": rng.choice((4, 8)), "num_workers": rng.choice((1, 2, 4))}
    job = job_of(n, **fields)
    for epoch in range(4):
        loader = Loader(fields["batch_size"], fields["num_workers"], 100 * (epoch + 1))
        for process, entry in loader.epoch(epoch, job.streams.epoch_ids(epoch, 0), rng):
            job.observe(entry, process, SCRIPT)
            while wanted := job.wanted_epochs():
                job.add_epoch(job.load_epoch(wanted[0]))
                job.release_held()
            if not rng.randrange(often) and not job.finished:
                job = job_of(n, job, **fields)
    counted = [(cell.observed, cell.agreed) for cell in job.score.cells.values() if cell.observed]
    assert [sum(numbers) for numbers in zip(*counted, strict=True)] == [4 * n, 4 * n]
