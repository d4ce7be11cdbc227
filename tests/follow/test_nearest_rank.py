"""Lanes work for the rank that is nearest to waiting: a scheduler with one lane, and two ranks of different speed."""

from __future__ import annotations

from collections import deque

import numpy as np

from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.lab.sim.detailed.run import NothingMeasured
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.commands import Command, Drop, Fetch, LoadEpoch
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.events import Dropped, EpochKnown, Event, FetchEnded, JobInstalled, Landed, ReadsSeen
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import PAGE_BYTES

N, BATCH, WINDOW = 400, 4, 40


class Node:
    """A scheduler whose only lane takes 1 s a fetch. Readers read what is staged for them, as fast as they may."""

    def __init__(self) -> None:
        sizes = np.full(N, PAGE_BYTES, dtype=np.int64)
        fields = {"epochs": 2, "batch_size": BATCH, "seed": 3, "world_size": 2, "ranks": [0, 1], "num_workers": 1}
        spec = parse_job(fields)
        self.job = JobRun(spec, JobStreams(spec, np.arange(N), build_order(spec, N)), sizes)
        self.streams = [self.job.streams.epoch_ids(0, rank).tolist() for rank in (0, 1)]
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1)]
        self.scheduler = Scheduler(sizes.data, places, Limits(WINDOW * PAGE_BYTES), NothingMeasured())
        self.now_s = 0.0
        self.lane: deque[Fetch] = deque()
        self.at = [0, 0]
        self.tell(JobInstalled(self.job))

    def tell(self, *events: Event) -> None:
        for command in self.scheduler.step(self.now_s, events):
            self.carry_out(command)

    def carry_out(self, command: Command) -> None:
        if isinstance(command, LoadEpoch):
            self.tell(EpochKnown(command.job, self.job.load_epoch(command.epoch)))
        elif isinstance(command, Fetch):
            self.lane.append(command)
        elif isinstance(command, Drop):
            self.tell(Dropped(command.samples))

    def fetch(self) -> list[int]:
        """The lane brings what it was given; the ranks whose samples these are."""
        self.now_s += 1.0
        fetch = self.lane.popleft()
        landed = [Landed(fetch.fetch, item.sample, 0, PAGE_BYTES, True) for item in fetch.items]
        self.tell(FetchEnded(fetch.fetch, landed, 1.0))
        return [int(item.sample in self.streams[1]) for item in fetch.items]

    def read(self, rank: int, most: int) -> None:
        """A rank reads at most so many of its next samples, if they are staged."""
        for _ in range(min(most, self.scheduler.ahead(self.job.name)[rank].samples)):
            sample = self.streams[rank][self.at[rank]]
            self.at[rank] += 1
            self.tell(ReadsSeen([Read(sample, 100 + rank, 10 + rank, self.now_s)], [sample]))


def test_the_lane_works_for_the_rank_that_reads_and_not_for_the_one_that_has_enough() -> None:
    node, ranks = Node(), []
    while node.lane and len(ranks) < 150:
        ranks += node.fetch()
        node.read(0, BATCH)
    ahead = node.scheduler.ahead(node.job.name)
    assert ranks.count(1) <= WINDOW  # never more than lies ready for it
    assert ranks[60:150] == [0] * 90
    assert ahead[0].samples < ahead[1].samples


def test_of_two_ranks_the_one_that_reads_twice_as_fast_is_served_twice_as_often() -> None:
    node, ranks = Node(), []
    while len(ranks) < 150:
        for _ in range(4):
            ranks += node.fetch() if node.lane else []
        node.read(0, 2)
        node.read(1, 1)
    assert 1.7 < ranks[60:].count(0) / ranks[60:].count(1) < 2.3
