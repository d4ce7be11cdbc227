"""A job's record: what comes to its end after the job did counts for nobody, and what goes on counts on."""

from __future__ import annotations

import numpy as np

from mlfs.follow.agreement import Share
from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.lab.sim.detailed.run import NothingMeasured
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.reading_times import ReadingTime
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import PAGE_BYTES

N, BATCH, PROCESS, PARENT = 64, 4, 100, 10
SIZES = np.full(N, PAGE_BYTES, dtype=np.int64)


class Node:
    """A scheduler with a job, whose reader has read two batches and waits for the next sample."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            SIZES.data, [PlaceInfo(PlaceKind.SOURCE, "pfs", 1)], Limits(N * PAGE_BYTES), NothingMeasured()
        )
        self.now_s = 0.0
        self.job = self.begins()
        stream = self.job.streams.epoch_ids(0, 0).tolist()
        for sample in stream[: 2 * BATCH]:
            self.tell(e.ReadsSeen([Read(sample, PROCESS, PARENT, self.now_s)], [sample]))
        self.sample = stream[2 * BATCH]
        self.tell(e.ReadsSeen([Read(self.sample, PROCESS, PARENT, self.now_s)], waits=True))

    def tell(self, *events: e.Event) -> None:
        self.now_s += 1.0
        self.scheduler.step(self.now_s, events)

    def begins(self, layout: str = "imagefolder") -> JobRun:
        """A job is registered, which has read nothing."""
        spec = parse_job({"name": "train", "layout": layout, "epochs": 2, "batch_size": BATCH, "seed": 3})
        job = JobRun(spec, JobStreams(spec, np.arange(N), build_order(spec, N)), SIZES)
        self.tell(e.JobInstalled(job))
        for epoch in (0, 1):
            self.tell(e.EpochKnown(job, job.load_epoch(epoch)))
        return job

    def goes_on(self) -> None:
        """The reader has the sample, which the source gave, and waits once more for bytes of it."""
        self.tell(e.Opened(self.sample, PROCESS, self.now_s, PAGE_BYTES))
        self.tell(e.ReadersWaited(self.sample, 2.0))
        self.tell(e.Released(self.sample))


def test_a_wait_and_bytes_of_a_job_that_reads_on_are_counted() -> None:
    node = Node()
    node.goes_on()
    assert node.job.statistics().pfs_bytes_by_epoch == {0: PAGE_BYTES}
    assert node.scheduler.statistics().rank_waits == {"train": {0: 2.0}}


def test_nothing_is_counted_for_a_job_that_has_ended() -> None:
    node = Node()
    node.tell(e.JobEnded("train"))
    node.goes_on()
    assert node.job.statistics().pfs_bytes_by_epoch == {}
    told = node.scheduler.statistics()
    assert (told.rank_waits, told.reading, node.scheduler.jobs) == ({}, {}, {})


def test_a_job_that_is_registered_anew_has_nothing_of_the_one_before() -> None:
    node = Node()
    assert node.scheduler.statistics().reading["train"].epochs[0].samples == 2 * BATCH + 1
    again = node.begins()
    node.goes_on()
    assert again.statistics().pfs_bytes_by_epoch == node.job.statistics().pfs_bytes_by_epoch == {}
    told = node.scheduler.statistics()
    assert (told.rank_waits, told.reading) == ({}, {"train": ReadingTime()})


def test_a_job_that_goes_on_keeps_what_was_counted_and_what_is_under_way() -> None:
    node = Node()
    node.tell(e.JobInstalled(node.job))
    node.goes_on()
    assert node.job.statistics().pfs_bytes_by_epoch == {0: PAGE_BYTES}
    told = node.scheduler.statistics()
    assert told.rank_waits == {"train": {0: 2.0}}
    assert told.reading["train"].epochs[0].samples == 2 * BATCH + 1


def test_files_that_a_process_opens_several_times_ahead_are_followed() -> None:
    """As litdata's workers open small chunks: each three times, and the next ones whenever they come to one."""
    node = Node()
    job = node.begins("litdata")
    for epoch in (0, 1):
        order = job.streams.epoch_ids(epoch, 0).tolist()
        opens = [sample for sample in order[:4] for _ in range(3)]
        for at, sample in enumerate(order):
            opens += [sample, *(ahead for ahead in order[at + 1 : at + 4] for _ in range(2))]
            opens += order[at + 4 : at + 5] * 3
        for sample in opens:
            node.tell(e.ReadsSeen([Read(sample, 200 + epoch, PARENT, node.now_s)], [sample]))
    assert job.statistics().shares == {epoch: {0: Share(N, N)} for epoch in (0, 1)}
