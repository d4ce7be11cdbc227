"""Jobs whose sampler repeats its samples: every read is predicted, whether the loader's shape is told or not.

A sample comes several times in a row then: for one process, at the end of one worker's batch and the beginning of
another's, for several ranks. Whose read it was is known only with the loader's shape.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from loaders import Loader

from mlfs.follow.evidence import FEWEST_READ_BEFORE
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

EPOCHS = 2


def drawn_run(ranks: int, repeats: int, workers: int, told: bool) -> JobRun:
    """A job after its epochs. A rank's processes have one parent, and ranks read each at its own pace."""
    rng = random.Random(f"{ranks} {repeats} {workers} {told}")
    n, batch = rng.choice((300, 600)), rng.choice((8, 16, 32))
    fields = {"sampler": rng.choice(("ra-sampler", "timm-repeat-aug")), "world_size": ranks, "repeats": repeats}
    known = {"batch_size": batch, "num_workers": workers} if told else {}
    spec = parse_job({"epochs": EPOCHS} | fields | known)
    job = JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))
    loaders = [Loader(batch, workers, 1000 * (rank + 1), rng.choice((1, 2, 4))) for rank in range(ranks)]
    for epoch in range(EPOCHS):
        while wanted := job.wanted_epochs():
            job.add_epoch(job.load_epoch(wanted[0]))
        running = [loader.epoch(epoch, job.streams.epoch_ids(epoch, rank), rng) for rank, loader in enumerate(loaders)]
        while running:
            opens = rng.choice(running)
            opened = next(opens, None)
            if opened is None:
                running.remove(opens)
                continue
            process, entry = opened
            parent = process // 1000 * 1000 if process % 1000 else 1
            assert not job.observe(entry, process, parent).another_leads
    return job


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
def test_every_read_is_counted_and_was_predicted(ranks: int, repeats: int) -> None:
    for workers in range(5):
        for told in (True, False):
            job = drawn_run(ranks, repeats, workers, told)
            cells = [job.score.cells[epoch, rank] for epoch in range(EPOCHS) for rank in range(ranks)]
            agreed = [sum(cell.agreed for cell in cells if cell.epoch == epoch) for epoch in range(EPOCHS)]
            assert agreed == [ranks * job.streams.length(epoch) for epoch in range(EPOCHS)], (workers, told)
            assert job.score.observed == sum(agreed), (workers, told)


def test_a_file_that_is_opened_twice_for_one_sample_is_read_once() -> None:
    spec = parse_job({"epochs": 1, "batch_size": 8, "seed": 3})
    job = JobRun(spec, JobStreams(spec, np.arange(300), build_order(spec, 300)), np.full(300, 10, dtype=np.int64))
    job.add_epoch(job.load_epoch(0))
    for entry in np.repeat(job.streams.epoch_ids(0, 0), 2).tolist():
        job.observe(entry, 100, 7)
    assert (job.score.agreed, job.score.observed) == (300, 300)


def test_reads_of_samples_that_nobody_has_read_are_no_second_run() -> None:
    """The first run had hardly begun: its own matcher follows these reads."""
    spec = parse_job({"epochs": 1, "batch_size": 8, "seed": 3})
    job = JobRun(spec, JobStreams(spec, np.arange(300), build_order(spec, 300)), np.full(300, 10, dtype=np.int64))
    job.add_epoch(job.load_epoch(0))
    ids = job.streams.epoch_ids(0, 0).tolist()
    for entry in ids[: FEWEST_READ_BEFORE - 1]:
        job.observe(entry, 100, 7)
    assert not any(job.observe(entry, 200, 7).another_leads for entry in ids[:100])
    assert job.ranks.progress[0].frontier == 100
