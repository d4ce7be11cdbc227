"""What a job makes of reads in batches (`JobRun.follow`) is what it makes of them one by one (`JobRun.observe`): drawn
jobs and readers, strangers among them, reads that are left out, made twice or in another order, evaluations. And what a
scheduler makes of reads that are told together is what it makes of them told one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from loaders import Loader, in_turns
from support.drawn import cases

from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.follow.loader_watch import UNTIMED
from mlfs.job import parse_job
from mlfs.lab.sim.detailed.run import NothingMeasured
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import PAGE_BYTES

EPOCHS = 4
Positions = set[tuple[int, int]]


def job_of(n: int, **fields: Any) -> JobRun:
    spec = parse_job({"epochs": EPOCHS, "seed": 3} | fields)
    return JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(n, 10, dtype=np.int64))


def rank_reads(job: JobRun, rank: int, loader: Loader, evaluates: bool, rng: random.Random) -> Iterator[Any]:
    """One rank's (process, sample)."""
    for epoch in range(EPOCHS):
        reads = list(loader.epoch(epoch, job.streams.epoch_ids(epoch, rank), rng))
        if rng.random() < 0.4:  # something happens in the middle of it
            at = rng.randrange(len(reads))
            some = reads[at : at + rng.choice((1, 3, 40))]
            reads[at : at + len(some)] = rng.choice(([], some * 2, some[::-1]))
        yield from reads
        if evaluates:
            yield from ((loader.pid0, sample) for sample in range(len(job.member) // 2))


def drawn_reads(job: JobRun, ranks: int, batch: int, rng: random.Random) -> Iterator[Read]:
    workers, evaluates = rng.choice((0, 0, 1, 2, 4)), rng.random() < 0.3
    loaders = [
        Loader(batch, workers, pid, persistent=rng.random() < 0.5, in_order=rng.random() < 0.9)
        for pid in range(1000, 1000 * (ranks + 1), 1000)
    ]
    readers = [rank_reads(job, rank, loader, evaluates, rng) for rank, loader in enumerate(loaders)]
    n, now_s = len(job.member), 0.0
    for kind in rng.choices(("walks", "guesses", "again"), k=rng.choice((0, 0, 1, 2))):
        walk: Sequence[int] = range(n) if kind == "walks" else [rng.randrange(n) for _ in range(n)]
        again = rank_reads(job, 0, Loader(batch, 0, 9000), False, rng)
        readers.append(again if kind == "again" else iter([(8000, sample) for sample in walk]))
    for process, sample in in_turns(readers, rng):
        now_s += rng.choice((0.001, 0.01))
        parent = 1 if process % 1000 == 0 else process // 1000 * 1000
        if sample >= 0:
            yield Read(int(sample), process, parent, now_s if rng.random() < 0.99 else UNTIMED)


class Followed:
    """A job, and what came of its reads: the positions that were read, and those that were given up without that."""

    def __init__(self, job: JobRun, in_batches: bool) -> None:
        self.job, self.in_batches = job, in_batches
        self.read: Positions = set()
        self.over: Positions = set()
        self.batched = 0

    def take(self, reads: Sequence[Read]) -> None:
        while reads:
            stretches, given = self.job.follow(reads) if self.in_batches else ([], [])
            count = sum(len(stretch.times) for stretch in stretches)
            self.read |= {(stretch.rank_index, position) for stretch in stretches for position in stretch.positions}
            self.batched += count
            if not count:
                match, given, *_ = self.job.observe(*reads[0])
                self.read |= {match} if match is not None else set()
            for rank_index, (low, high) in given:
                self.over |= {(rank_index, position) for position in range(low, high)}
            reads = reads[max(1, count) :]
        self.over -= self.read
        if self.job.rivals.leading is not None:
            self.job.follow_leading()

    def load(self) -> None:
        while wanted := self.job.wanted_epochs():
            self.job.add_epoch(self.job.load_epoch(wanted[0]))
            for match, *_ in self.job.release_held():
                self.read |= {match} if match is not None else set()

    def state(self) -> dict[str, object]:
        job = self.job
        history = [(*seen[:3], seen.cell.epoch, *seen[4:]) for seen in job.score.history]
        return {
            "statistics": job.statistics(),
            "progress": [(rank.floor, rank.frontier, sorted(rank.done)) for rank in job.matcher.ranks],
            "history": history,
            "loader": (job.matcher.shape, job.matcher.lag),
            "waits": (job.evaluation.may_come, job.held.may_hold, list(job.held.reads), job.finished),
            "readers": list(job.readers.proved.items()),
            "read": self.read,
            "over": self.over,
        }


@pytest.mark.parametrize("seed", range(cases(4)))
def test_reads_come_to_the_same_in_batches_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    n, ranks, batch = rng.choice((120, 240, 500)), rng.choice((1, 1, 2, 3)), rng.choice((4, 8, 16))
    fields: dict[str, object] = {"world_size": ranks, "batch_size": batch}
    registered = fields | rng.choice(({}, {}, {}, {"seed": 4}, {"set_epoch": False}))
    one, many = (Followed(job_of(n, **registered), in_batches) for in_batches in (False, True))
    reads = list(drawn_reads(job_of(n, **fields), ranks, batch, rng))
    one.load()
    many.load()
    while reads:
        count = rng.choice((1, 3, 16, 32, 32, 100))
        one.take(reads[:count])
        many.take(reads[:count])
        assert one.state() == many.state()
        reads = reads[count:]
        if rng.random() < 0.7:
            one.load()
            many.load()
        if rng.random() < 0.7:
            assert one.job.judge(reads[0].at_s if reads else 1e6) == many.job.judge(reads[0].at_s if reads else 1e6)
    assert many.batched > 0 or "seed" in registered


@pytest.mark.parametrize("workers", [0, 4])
def test_most_reads_are_followed_in_batches(workers: int) -> None:
    rng, n = random.Random(workers), 2000
    many = Followed(job_of(n, batch_size=16), in_batches=True)
    many.load()
    for epoch in range(EPOCHS):
        loader = Loader(16, workers, 1000).epoch(epoch, many.job.streams.epoch_ids(epoch, 0), rng)
        opens = [Read(sample, process, 1000 if workers else 1, 0.0) for process, sample in loader]
        for at in range(0, n, 32):
            many.take(opens[at : at + 32])
            many.load()
    assert many.batched > 0.9 * EPOCHS * n
    assert many.job.score.agreement == 1.0


class Node:
    """A scheduler with a job, of a node where each fetch and each drop is done at once."""

    def __init__(self, n: int, fields: dict[str, object], room: int) -> None:
        self.job, sizes = job_of(n, **fields), np.full(n, PAGE_BYTES, dtype=np.int64)
        places = [PlaceInfo(PlaceKind.SOURCE, "pfs", 1)]
        self.scheduler = Scheduler(sizes.data, places, Limits(room * PAGE_BYTES), NothingMeasured())
        self.tell(0.0, e.JobInstalled(self.job))

    def tell(self, now_s: float, *events: e.Event) -> None:
        events_now: list[e.Event] = list(events)
        while events_now:
            commands, events_now = self.scheduler.step(now_s, events_now), []
            for command in commands:
                if isinstance(command, c.LoadEpoch):
                    events_now.append(e.EpochKnown(command.job, command.job.load_epoch(command.epoch)))
                elif isinstance(command, c.Fetch):
                    landed = [e.Landed(command.fetch, item.sample, staged=True) for item in command.items]
                    events_now.append(e.FetchEnded(command.fetch, landed))
                elif isinstance(command, c.Drop):
                    events_now.append(e.Dropped(command.samples))
                elif isinstance(command, c.WakeAt) and command.at_s <= now_s:
                    events_now.append(e.TimePassed())

    def state(self) -> list[object]:
        table, (record,) = self.scheduler.table, self.scheduler.records.values()
        counted = [(rank.floor, rank.frontier, sorted(rank.done)) for rank in self.job.matcher.ranks]
        return [
            bytes(table.state), bytes(table.pending), table.readers, table.window_bytes, record.uses.cursors, counted,
            self.job.score.observed, self.job.score.agreed, self.scheduler.window.dropping,
        ]  # fmt: skip


@pytest.mark.parametrize("seed", range(cases(4)))
def test_a_scheduler_decides_the_same_of_reads_that_are_told_together_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    n, batch, ranks = rng.choice((120, 240)), rng.choice((4, 8)), rng.choice((1, 2))
    fields: dict[str, object] = {"world_size": ranks, "batch_size": batch}
    one, many = (Node(n, fields, 2 * n) for _ in range(2))
    reads = list(drawn_reads(job_of(n, **fields), ranks, batch, rng))
    while reads:
        count = rng.choice((1, 3, 32, 100))
        told, reads = reads[:count], reads[count:]
        at_s = told[-1].at_s
        one.tell(at_s, *(e.ReadsSeen([read], [read.sample]) for read in told))
        many.tell(at_s, e.ReadsSeen(told, [read.sample for read in told]))
        assert one.state() == many.state()
    assert many.job.score.agreed > 0
