"""A script that is killed and started again, drawn: it is followed from its first epoch, whoever its parent is."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import numpy as np
import pytest
from loaders import Loader
from support.drawn import cases

from mlfs.follow.families import FamilyState
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

SHELL, OTHER_SHELL = 50, 60


def job_of(n: int, **fields: Any) -> JobRun:
    spec = parse_job({"epochs": 5, "seed": 3} | fields)
    job = JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))
    load(job)
    return job


def load(job: JobRun) -> None:
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))
        job.release_held()


def read(job: JobRun, loader: Loader, shell: int, epoch: int, stop: int | None, rng: random.Random) -> None:
    """The script reads an epoch, up to a place; the job is followed as the daemon does."""
    order = job.streams.epoch_ids(epoch, 0)
    for process, entry in islice(loader.epoch(epoch, order, rng), stop):
        if job.observe(entry, process, shell if process == loader.pid0 else loader.pid0).another_leads:
            job.follow_leading()
        load(job)


@pytest.mark.parametrize("seed", range(cases(8)))
def test_a_script_that_reads_each_epoch_alike_is_followed_from_its_start(seed: int) -> None:
    """Its first reads fit the next epoch as well; but then the rest of the one before would have been left out."""
    rng = random.Random(seed)
    n, batch, workers = rng.choice((600, 2000)), rng.choice((4, 8)), rng.choice((0, 1, 2, 4))
    job = job_of(n, batch_size=batch, set_epoch=False)
    killed_in = rng.randrange(3)
    for epoch in range(killed_in):
        read(job, Loader(batch, workers, 100), SHELL, epoch, None, rng)
    read(job, Loader(batch, workers, 100), SHELL, killed_in, rng.randrange(n // 4, n - n // 4), rng)
    read(job, Loader(batch, workers, 300), OTHER_SHELL, 0, n // 2, rng)
    assert job.ranks.current_epochs() == (0, 0)


@pytest.mark.parametrize("seed", range(cases(8)))
def test_a_script_of_short_epochs_is_followed_from_its_start(seed: int) -> None:
    """Its first 32 reads are of several epochs, none of which the run before has any more."""
    rng = random.Random(seed)
    n, batch, workers = rng.choice((8, 12, 20, 26)), rng.choice((2, 4)), rng.choice((0, 1, 2))
    job = job_of(n, batch_size=batch, epochs=14, start_epoch=rng.choice((0, 2)))
    start, killed_in = job.spec.start_epoch, rng.randrange(1, 5)
    for epoch in range(start, start + killed_in + 1):
        stop = rng.randrange(1, n) if epoch == start + killed_in else None
        read(job, Loader(batch, workers, 100), SHELL, epoch, stop, rng)
    shell = rng.choice((SHELL, OTHER_SHELL))
    for epoch in range(start, start + 8):
        read(job, Loader(batch, workers, 300), shell, epoch, None, rng)
    assert job.ranks.current_epochs() == (start + 8, start + 8)
    assert job.score.agreed >= 0.9 * job.score.observed


@pytest.mark.parametrize("seed", range(cases(5)))
def test_what_was_read_is_over_though_the_run_that_it_seemed_to_begin_is_refused(seed: int) -> None:
    """Else it would wait for its reader in the window for ever."""
    rng = random.Random(seed)
    n, batch, workers = rng.choice((100, 300)), rng.choice((4, 8)), rng.choice((0, 1, 2))
    job = job_of(n, batch_size=batch)
    over: set[int] = set()
    refused = 0
    for epoch, first_process in ((0, 100), (1, 100), (0, 300), (0, 500), (0, 700)):
        loader = Loader(batch, workers, first_process)
        for process, entry in loader.epoch(epoch, job.streams.epoch_ids(epoch, 0), rng):
            seen = job.observe(entry, process, SHELL if process == loader.pid0 else loader.pid0)
            over.update([] if seen.match is None else [seen.match.position])
            over.update(position for _, given in seen.given for position in range(*given))
            if seen.another_leads and job.rivals.leading is not None:
                refused += 1
                job.rivals.withdraw(job.rivals.leading)
            load(job)
    assert refused
    assert {position for position in range(5 * n) if job.ranks.progress[0].is_done(position)} <= over


@pytest.mark.parametrize("seed", range(cases(5)))
def test_a_script_whose_epochs_are_other_processes_goes_on(seed: int) -> None:
    """They begin where the one before has ended: nothing was left out."""
    rng = random.Random(seed)
    n, batch = rng.choice((600, 2000)), rng.choice((4, 8))
    job = job_of(n, batch_size=batch, set_epoch=False)
    for epoch in range(4):
        read(job, Loader(batch, 0, 100 + 100 * epoch), SHELL + epoch, epoch, None, rng)
    assert job.ranks.current_epochs() == (4, 4)
    assert job.score.agreed == job.score.observed


@pytest.mark.parametrize("seed", range(cases(5)))
def test_nobody_is_silent_whose_reads_turned_out_to_be_a_strangers(seed: int) -> None:
    """A reader whose count falls by as much as it has risen has read all the same: nobody inherits the job from it."""
    rng = random.Random(seed)
    n = 2000
    job = job_of(n, batch_size=8)
    order, far = job.streams.epoch_ids(0, 0).tolist(), job.streams.epoch_ids(0, 0)[n // 2 :].tolist()
    kin, stranger, reads = 101, 900, rng.randrange(1, 4)
    for entry in order[:16]:
        job.observe(entry, 100, SHELL)
    for entry in rng.sample(far, reads):
        job.observe(entry, kin, SHELL)
    for entry in rng.sample(far, 20):
        job.observe(entry, stranger, OTHER_SHELL)
    for entry in order[16 : 16 + reads]:
        job.observe(entry, 100, SHELL)
    job.matcher.disown(kin)
    for entry in rng.sample(far, 30):
        job.observe(entry, stranger, OTHER_SHELL)
    assert job.readers.family_of(stranger, OTHER_SHELL).state is FamilyState.STRANGER
