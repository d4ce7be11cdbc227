"""Readers who are not the job, drawn from seeds beside a job's own: they neither move nor judge it, and are told of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from loaders import Loader, in_turns
from support.drawn import cases

from mlfs.follow.evidence import ONLY_READER_READS, Read
from mlfs.follow.families import Families, no_name
from mlfs.follow.hypothesis import Hypothesis, Origin, Rival
from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import in_words, strangers_to_all
from mlfs.follow.matching import Open, StreamMatcher
from mlfs.follow.plain_order import PlainOrder
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

SHELL = 50
STRANGER = 900
SEEDS = range(cases(8))


def job_of(n: int, names: dict[int, str] | None = None, **fields: Any) -> JobRun:
    spec = parse_job({"epochs": 3, "batch_size": 8, "seed": 3} | fields)
    known = names or {}
    sizes = np.full(n, 10, dtype=np.int64)
    return JobRun(
        spec,
        JobStreams(spec, np.arange(n), build_order(spec, n)),
        sizes,
        name_of=lambda process: known.get(process, ""),
    )


def load(job: JobRun) -> None:
    """Compute what is wanted."""
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))
        job.release_held()


@dataclass(frozen=True)
class Drawn:
    """A job and a stranger beside it.

    Attributes:
        order: of the stranger: directory, random, or repeated (the directories again and again).
        a_process: files that each of the stranger's processes reads, 0: it is one process.
        first: reads of the stranger before the job's first. a_read: reads of the stranger a read of the job.
        reads: of the stranger in all. named: whether the names of processes are known.
    """

    n: int
    ranks: int
    workers: int
    batch: int
    order: str
    a_process: int
    first: int
    a_read: float
    reads: int
    named: bool

    def stranger(self, rng: random.Random) -> Iterator[tuple[int, int, int]]:
        """(entry, process, parent) of its reads."""
        walk = list(range(self.n))
        for at in range(self.reads):
            if self.order == "directory" and at >= self.n:
                return
            entry = rng.randrange(self.n) if self.order == "random" else walk[at % self.n]
            if self.a_process:
                yield entry, STRANGER + 1 + at // self.a_process, STRANGER
            else:
                yield entry, STRANGER, SHELL if self.named else SHELL + 1

    def training(self, job: JobRun, rng: random.Random) -> Iterator[tuple[int, int, int]]:
        """The same of the job's."""

        def of_rank(rank: int) -> Iterator[tuple[int, int, int]]:
            main = 100 * (1 + rank)
            loader = Loader(self.batch, self.workers, main)
            for epoch in range(job.spec.epochs):
                for process, entry in loader.epoch(epoch, job.streams.epoch_ids(epoch, rank), rng):
                    yield entry, process, SHELL if process == main else main

        yield from in_turns([of_rank(rank) for rank in range(self.ranks)], rng)


def draw(seed: int) -> Drawn:
    rng = random.Random(seed)
    n = rng.choice((240, 600, 2000))
    return Drawn(
        n, rng.choice((1, 1, 2, 4)), rng.choice((0, 1, 2, 5)), rng.choice((4, 8, 16)),
        rng.choice(("directory", "directory", "random", "repeated")), rng.choice((0, 0, 1, 30)),
        rng.choice((0, 0, 20, 200)), rng.choice((0.2, 1.0, 5.0)), rng.choice((40, 500, 5000)), rng.random() < 0.7,
    )  # fmt: skip


def run(drawn: Drawn, seed: int) -> tuple[JobRun, int]:
    """Read by both; returns the job, and how many reads were the stranger's."""
    rng = random.Random(seed)
    names = {STRANGER: "cp"} | {100 * (1 + rank): "python" for rank in range(drawn.ranks)} if drawn.named else {}
    job = job_of(drawn.n, names, world_size=drawn.ranks, batch_size=drawn.batch)
    load(job)
    stranger, read = drawn.stranger(rng), 0

    def observe(opened: tuple[int, int, int]) -> None:
        if job.observe(*opened).another_leads:
            job.follow_leading()  # as the daemon does

    def strange_reads(count: int) -> int:
        opens = [opened for opened in (next(stranger, None) for _ in range(count)) if opened is not None]
        for opened in opens:
            observe(opened)
        return len(opens)

    read += strange_reads(drawn.first)
    owed = 0.0
    for opened in drawn.training(job, rng):
        observe(opened)
        load(job)
        job.judge(0.0)
        owed += drawn.a_read
        read += strange_reads(int(owed))
        owed -= int(owed)
    return job, read


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stranger_costs_a_job_no_agreement(seed: int) -> None:
    drawn = draw(seed)
    job, read = run(drawn, seed)
    told = strangers_to_all([job.statistics()])
    agreed, observed = job.score.agreed, job.score.observed
    assert observed - agreed <= 2, (drawn, agreed, observed, told)
    assert agreed >= 3 * job.streams.length(0) * drawn.ranks - 2, drawn
    assert job.finished, drawn
    assert job.predicting
    assert sum(one.reads for one in told) <= read
    if read >= 100:
        assert told, drawn


def test_who_walks_the_directories_is_told_of_by_name_and_pid() -> None:
    drawn = Drawn(600, 1, 2, 8, "directory", 0, 0, 1.0, 600, True)
    job, _ = run(drawn, 0)
    (stranger,) = strangers_to_all([job.statistics()])
    assert in_words(stranger) == f"cp (pid {STRANGER}) reads {stranger.reads} files in directory order"
    assert stranger.reads >= 580
    assert job.score.agreed == job.score.observed == 1800


def test_a_family_that_is_seen_anew_is_seen_from_that_read_on() -> None:
    """It may be the first of the job's order."""
    job, readers, rivals = job_of(2000, {}), Families(no_name), list[Rival]()
    load(job)

    def propose() -> Rival:
        matcher = job.same_job.expect(job.epochs.at_hand)
        rivals.append(Rival(Hypothesis(job.spec, Origin.ONLY_READER), matcher))
        return rivals[-1]

    entries = random.Random(0).sample(range(2000), ONLY_READER_READS + 2)
    for parent in (50, 60):
        readers.read_first(Read(0, 10 * parent, parent, 0.0))
    for entry in entries:
        readers.read_by_one(Read(entry, 500, 50, 0.0), job.matcher, propose)
    assert [rival.reads for rival in rivals] == [ONLY_READER_READS, 1]


def test_a_walk_before_anybody_has_proved_himself_costs_no_look_at_all_reads_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    opens = StreamMatcher.opens

    def counted(matcher: StreamMatcher) -> list[Open]:
        nonlocal looks
        looks += 1
        return opens(matcher)

    monkeypatch.setattr(StreamMatcher, "opens", counted)
    job, rng = job_of(2000, {}), random.Random(0)
    load(job)
    for at in range(400):
        job.observe(rng.randrange(2000), 100, 7)
        job.observe(at, STRANGER, 9)
    (stranger,) = job.statistics().readers.strangers
    assert (stranger.process, stranger.plain) == (STRANGER, True)
    assert looks < 40


def test_a_walk_is_plain_and_a_shuffle_is_not() -> None:
    rng = random.Random(0)
    for _ in range(200):
        walk, shuffled = PlainOrder(), PlainOrder()
        start = rng.randrange(1000)
        for at in range(40):
            walk.read(start + at * rng.choice((1, 1, 1, 2)) if rng.random() < 0.5 else start + at, at // 3)
            shuffled.read(rng.randrange(200), at // 3)
        assert not shuffled.is_plain
    walk = PlainOrder()
    for entry in range(100):
        walk.read(entry, entry)
    assert walk.is_plain


@pytest.mark.parametrize(("parent", "begun"), [(9, 200), (9, 3000), (7, 400)])
def test_the_same_script_started_twice_is_called_that(parent: int, begun: int) -> None:
    job = job_of(4096, {100: "python", 300: "python"}, epochs=3)
    load(job)
    second = job.streams.epoch_ids(0, 0).tolist()
    for at, entry in enumerate(job.streams.epoch_ids(0, 0).tolist()):
        job.observe(entry, 100, 7)
        if at % 64 == 0:
            job.judge(float(at))
        if at >= begun:
            job.observe(second[at - begun], 300, parent)
    readers = job.statistics().readers
    assert readers.proved == (100,)
    (stranger,) = readers.strangers
    assert (stranger.process, stranger.again, stranger.plain) == (300, True, False)
    assert "in the job's order, as the same script would that was started twice" in in_words(stranger)
    share = job.statistics().share
    assert share.agreed >= share.opens - 16
