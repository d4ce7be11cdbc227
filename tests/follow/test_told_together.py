"""Reads that the kernel tells of in batches, in which it has made one of a process's opens of a file."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from loaders import Loader

from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.lab.sim.detailed.run import NothingMeasured
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.commands import LoadEpoch
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.events import EpochKnown, Event, JobInstalled, ReadsSeen
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import PAGE_BYTES

N, BATCH, EPOCHS = 400, 8, 4


class Node:
    """A scheduler with a job, which is told of reads in batches."""

    def __init__(self, batch: int) -> None:
        sizes = np.full(N, PAGE_BYTES, dtype=np.int64)
        spec = parse_job({"epochs": EPOCHS, "batch_size": BATCH, "seed": 3})
        self.job = JobRun(spec, JobStreams(spec, np.arange(N), build_order(spec, N)), sizes)
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1)]
        self._scheduler = Scheduler(sizes.data, places, Limits(N * PAGE_BYTES), NothingMeasured())
        self._now_s, self._batch, self.left_out = 0.0, batch, 0
        self._tell(JobInstalled(self.job))

    def _tell(self, *events: Event) -> None:
        for command in self._scheduler.step(self._now_s, events):
            if isinstance(command, LoadEpoch):
                self._tell(EpochKnown(command.job, self.job.load_epoch(command.epoch)))

    def read(self, opens: Iterator[tuple[int, int]]) -> None:
        """Processes open samples. Of a batch each is told once, in portions."""
        opened = list(opens)
        for first in range(0, len(opened), self._batch):
            self._now_s += 0.01
            batch = opened[first : first + self._batch]
            told = [Read(sample, process, 1, self._now_s) for process, sample in dict.fromkeys(batch)]
            self.left_out += len(batch) - len(told)
            for begun in range(0, len(told), 64):
                portion = told[begun : begun + 64]
                self._tell(ReadsSeen(portion, [read.sample for read in portion]))


def run_of(job: JobRun, workers: int) -> Iterator[tuple[int, int]]:
    loader, rng = Loader(BATCH, workers, 100, persistent=True), random.Random(1)
    for epoch in range(EPOCHS):
        yield from loader.epoch(epoch, job.streams.epoch_ids(epoch, 0), rng)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [150, 250, 370])
def test_a_read_that_was_told_with_an_earlier_one_of_the_same_process_counts_and_is_no_deviation(
    workers: int, batch: int
) -> None:
    node = Node(batch)
    node.read(run_of(node.job, workers))
    assert node.left_out > 10
    score = node.job.score
    assert score.observed == score.agreed == EPOCHS * N
    assert node.job.finished


def test_an_order_that_was_not_predicted_does_not_seem_so_though_all_files_were_told_a_moment_before() -> None:
    node, rng = Node(N), random.Random(2)
    node.read(iter(list(run_of(node.job, 0))[:N]))
    assert node.job.score.agreed == N
    node.read((100, sample) for sample in rng.sample(range(N), N))
    assert node.job.score.agreed < N + N / 4  # by chance


def test_what_was_told_a_while_ago_is_left_out_and_not_told_with_others() -> None:
    """The script skips samples that it has read an epoch before."""
    node = Node(50)
    opens = list(run_of(node.job, 0))
    node.read(iter([*opens[: N + 100], *opens[N + 105 :]]))
    assert node.job.score.observed <= EPOCHS * N - 5
