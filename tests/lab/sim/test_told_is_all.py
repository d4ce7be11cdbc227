"""The scheduler decides the same whoever drives it: what it was told and when is all that its commands depend on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import numpy as np
import pytest
from support.drawn import cases
from support.failures.drawing import Habits, JobCase
from support.failures.plain import plain
from support.failures.reading import worker_samples
from support.failures.run import CaseStreams, job_run
from support.one_node import OneReader, Step, drawn_durations, run_node

from mlfs.follow.job import JobRun
from mlfs.measure.rates import Rates
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import Limits, PlaceInfo
from mlfs.plan.scheduler.scheduler import Scheduler


class Drawn:
    """A node, its jobs and readers, drawn from a seed; built anew whenever it is asked for."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        count = random.choice((8, 30, 60))
        self.seed = seed
        self.sizes = np.array([random.randrange(1, 20_000) for _ in range(count)], dtype=np.int64)
        total = int(self.sizes.sum())
        self.window_bytes = random.choice((4096 * 4, total // 3, 2 * total))
        self.room_bytes = random.choice((0, total // 2, total))
        self.lanes = random.choice((1, 2, 4))
        self.jobs = [
            JobCase(
                f"job{number}", seed + number, 0, count, random.choice((1, 3)), random.choice((1, 4)), 1, 0.0,
                Habits(random.choice((1, 1, 2)), think_s=random.choice((0.0001, 0.003))),
            )
            for number in range(random.choice((1, 1, 2)))
        ]  # fmt: skip

    def places(self) -> list[PlaceInfo]:
        return [
            PlaceInfo(PlaceKind.SOURCE, "pfs", self.lanes),
            PlaceInfo(PlaceKind.RAM, "ram", 2, self.room_bytes),
        ]

    def scheduler(self) -> Scheduler:
        limits = Limits(self.window_bytes, 0, 5.0, 5.0)
        return Scheduler(self.sizes.data, self.places(), limits, Rates())

    def runs(self) -> list[JobRun]:
        return [job_run(job, self.streams(job), 0, 1, self.sizes) for job in self.jobs]

    def streams(self, job: JobCase) -> CaseStreams:
        return CaseStreams(job, 1, self.sizes.tolist(), self.window_bytes)

    def readers(self) -> list[OneReader]:
        readers = []
        for number, job in enumerate(self.jobs):
            streams = self.streams(job)
            epochs = [streams.epoch_ids(epoch, 0).tolist() for epoch in range(job.epochs)]
            for worker in range(job.habits.workers):
                samples = list(worker_samples(epochs, job.batch, worker, job.habits, Random(worker)))
                begins_s = 0.0101 + 0.0007 * worker + 0.0031 * number
                readers.append(
                    OneReader(10 * number + worker + 1, 1000 + number, samples, begins_s, job.habits.think_s)
                )
        return readers

    def trace(self) -> list[Step]:
        first = [e.JobInstalled(job) for job in self.runs()]
        return run_node(self.scheduler(), self.places(), self.readers(), drawn_durations(self.seed), first)


@cache
def trace_of(seed: int) -> list[Step]:
    """The trace of what the seed draws: several tests look at it."""
    return Drawn(seed).trace()


def texts(trace: list[Step]) -> list[str]:
    return [plain(command) for step in trace for command in step.commands]


def told_again(drawn: Drawn, trace: list[Step], in_other_form: Callable[[e.Event], list[e.Event]]) -> None:
    """The recorded events, told to a scheduler that no driver drives, lead to the same commands in each step."""
    fresh, jobs = drawn.scheduler(), {job.name: job for job in drawn.runs()}
    for step in trace:
        told: list[e.Event] = []
        for event in step.events:
            if isinstance(event, e.JobInstalled):
                told.append(event._replace(job=jobs[event.job.name]))
            elif isinstance(event, e.EpochKnown):
                job = jobs[event.job.name]
                told.append(e.EpochKnown(job, job.load_epoch(event.streams.epoch)))
            else:
                told += in_other_form(event)
        assert [plain(command) for command in fresh.step(step.at_s, told)] == list(map(plain, step.commands))


def one_by_one(event: e.Event) -> list[e.Event]:
    """Each read of a batch as an event of its own, and then what was released."""
    if not isinstance(event, e.ReadsSeen):
        return [event]
    return [*(event._replace(reads=[read], released=()) for read in event.reads), *map(e.Released, event.released)]


@pytest.mark.parametrize("seed", range(cases(15)))
def test_what_was_told_and_when_is_all_that_commands_depend_on(seed: int) -> None:
    drawn = Drawn(seed)
    trace = trace_of(seed)
    told_again(drawn, trace, lambda event: [event])
    told_again(drawn, trace, one_by_one)


def test_all_reads_were_followed_and_most_were_ahead() -> None:
    """The traces are about something: reads, drops, copies, fetches ahead of readers and for them."""
    kinds = {text.split()[0] for seed in range(30) for text in texts(trace_of(seed))}
    assert {"Fetch", "Drop", "Answer", "Recall", "LoadEpoch", "CountReads", "EpochBegan", "Digested"} <= kinds
    most_at_once = 0
    for seed in range(30):
        drawn = Drawn(seed)
        batches = [
            len(event.reads) for step in trace_of(seed) for event in step.events if isinstance(event, e.ReadsSeen)
        ]
        assert sum(batches) == sum(len(reader.samples) for reader in drawn.readers())
        most_at_once = max(most_at_once, *batches)
    assert most_at_once >= 8


def test_other_durations_lead_to_other_commands() -> None:
    drawn = Drawn(3)
    other = Drawn(3)
    other.seed = 4
    assert texts(drawn.trace()) == texts(trace_of(3))
    assert texts(trace_of(3)) != texts(other.trace())
