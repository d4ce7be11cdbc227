"""An inferred job in use: the reads that do not fit are kept from the very first of them on."""

from __future__ import annotations

import numpy as np

from mlfs.explain.inferred_jobs import is_decided, last_epoch, unfit_reads
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

N = 400
FIELDS: dict[str, object] = {"name": "inferred", "sampler": "torch-random", "generator": "default", "epochs": 9}


def test_an_epoch_in_another_order_is_kept_from_its_first_read_on() -> None:
    """Even if how an open of the epoch before was counted changes in that moment."""
    spec = parse_job(FIELDS | {"seed": 3, "world_size": 1, "batch_size": 8})
    streams, found = JobStreams(spec, np.arange(N), build_order(spec, N)), Hypothesis(spec, Origin.SEARCH)
    job = JobRun(spec, streams, np.full(N, 10, dtype=np.int64), found)
    for epoch in job.missing_epochs():
        job.add_epoch(job.load_epoch(epoch))
    first = job.streams.epoch_ids(0, 0).tolist()
    other = build_order(parse_job(FIELDS | {"seed": 4, "world_size": 1}), N).rank_stream(1, 0).tolist()
    reads = [(entry, 1) for entry in first] + [(entry, 2) for entry in other]
    lost_at = -1
    for at, (entry, process) in enumerate(reads):
        job.observe(entry, process, 1)
        job.matcher.count(0, 0, observed=0, agreed=int(at == N))  # as when an earlier open turns out to have agreed
        if job.is_refuted:
            lost_at = at
            break
    assert N <= lost_at < N + 16
    kept = [read.sample for read in unfit_reads(job).recent]
    assert kept == other[: lost_at - N + 1]
    assert (last_epoch(job), is_decided(job)) == (0, False)
