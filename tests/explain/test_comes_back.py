"""A run that comes back on other nodes: the job is dealt to another number of ranks, in the middle of an epoch.

Drawn: how many ranks there were and are, which of them read through this mount, how fast each is, and when it begins.
One may be epochs ahead when the last one begins. The job is followed from the first reads of each.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.drawn import cases
from support.explaining import FILES, FakeJobs, explaining, order_of, simulate

EPOCHS, SEED, BATCH = 4, 2024, 24  # samples of a step of all ranks
WORLDS = ((2, 3), (3, 2), (1, 4), (4, 3), (2, 4), (2, 1), (2, 6))


class Comeback(NamedTuple):
    """Attributes:
    before, after: how many ranks. steps: of epoch 1 that were read before. workers: of each rank, 0: none.
    here: the ranks that read through this mount. paces: by rank, relative. begins: by rank, when, in reads.
    """

    before: int
    after: int
    steps: int
    workers: int
    here: list[int]
    paces: list[float]
    begins: list[int]


def draw(number: int) -> Comeback:
    rng = random.Random(f"comes back {number}")
    before, after = WORLDS[number % len(WORLDS)]
    here = list(range(after)) if number % 3 else [0]
    paces = [rng.choice((0.3, 1.0, 1.0, 3.0)) for _ in range(after)]
    return Comeback(
        before, after, rng.randrange(0, 18), rng.choice((0, 2)), here, paces,
        [rng.choice((0, 100, FILES // after, 1500)) for _ in range(after)],
    )  # fmt: skip


Opened = tuple[int, int, int, int]
"""Entry, process, parent, epoch."""


def rank_reads(parts: Iterable[tuple[int, list[int]]], batch: int, workers: int, main: int) -> Iterator[Opened]:
    """What a rank reads of some epochs: its workers take batches in turn."""
    for epoch, stream in parts:
        for at, entry in enumerate(stream):
            process = main + 1 + workers * epoch + at // batch % workers if workers else main
            yield entry, process, main if workers else 1, epoch


def mixed(ranks: list[Iterator[Opened]], paces: list[float], begins: list[int], rng: random.Random) -> Iterator[Opened]:
    """The reads of all ranks in the order of time."""
    at = [(float(begin - min(begins)), rank) for rank, begin in enumerate(begins)]
    while at:
        now, rank = heapq.heappop(at)
        if (read := next(ranks[rank], None)) is not None:
            yield read
            heapq.heappush(at, (now + rng.expovariate(paces[rank]), rank))


class Run:
    """Reads of a job with so many ranks, of which some are here. Args: first: by epoch, the samples done before."""

    def __init__(self, jobs: FakeJobs, world: int, here: list[int], workers: int, main: int) -> None:
        self._orders = [list(order_of(jobs.manifest, epoch, seed=SEED, world_size=1)) for epoch in range(EPOCHS)]
        self._world, self._here, self._workers, self._main = world, here, workers, main

    def ranks(self, parts: Iterable[tuple[int, slice]]) -> list[Iterator[Opened]]:
        """By rank here, its reads. Args: parts: epochs, and which part of each is read."""
        batch, told = BATCH // self._world, list(parts)
        return [
            rank_reads(
                [(epoch, self._orders[epoch][part][rank :: self._world]) for epoch, part in told],
                batch, self._workers, self._main + 100 * rank,
            )
            for rank in self._here
        ]  # fmt: skip


async def shares(jobs: FakeJobs, reads: Iterator[Opened]) -> dict[int, float]:
    """By epoch, the share of these reads that were predicted as they came."""
    predicted: dict[int, list[bool]] = defaultdict(list)
    for entry, process, parent, epoch in reads:
        await jobs.read(entry, process, parent)
        (job,) = jobs.running.values()
        last = job.score.history[-1] if job.score.history else None
        predicted[epoch].append(last is not None and (last.sample, last.process, last.agrees) == (entry, process, True))
    return {epoch: sum(of_epoch) / len(of_epoch) for epoch, of_epoch in predicted.items()}


@pytest.mark.parametrize("number", range(cases(5)))
@pytest.mark.promise("variant")
def test_a_job_is_followed_however_far_apart_its_ranks_come_back(tmp_path: Path, number: int) -> None:
    drawn, rng = draw(number), random.Random(number)

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            world: dict[str, Any] = {"world_size": drawn.before, "batch_size": BATCH // drawn.before}
            if len(drawn.here) < drawn.after:
                world["ranks"] = drawn.here
            await jobs.register(name="train", seed=SEED, epochs=EPOCHS, **world)
            at_first = [rank for rank in range(drawn.before) if rank in drawn.here or len(drawn.here) == drawn.after]
            first = Run(jobs, drawn.before, at_first, drawn.workers, 1000)
            ranks = first.ranks([(0, slice(None)), (1, slice(BATCH * (drawn.steps + 2)))])
            await shares(jobs, mixed(ranks, [1.0] * len(ranks), [0] * len(ranks), rng))
            second = Run(jobs, drawn.after, drawn.here, drawn.workers, 10_000)
            ranks = second.ranks([(1, slice(BATCH * drawn.steps, None)), (2, slice(None)), (3, slice(None))])
            paces, begins = ([of_all[rank] for rank in drawn.here] for of_all in (drawn.paces, drawn.begins))
            found = await shares(jobs, mixed(ranks, paces, begins, rng))
            (job,) = jobs.running.values()
            assert min(found[2], found[3]) >= 0.95, (drawn, found, job.findings.known)
            assert job.findings.known == [f"this job's world size is {drawn.after}, not {drawn.before}"]

    simulate(body)


def test_a_second_run_with_more_ranks_beside_the_first_is_a_stranger(tmp_path: Path) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", seed=SEED, epochs=EPOCHS, world_size=2, batch_size=BATCH // 2)
            own = Run(jobs, 2, [0, 1], 2, 1000).ranks([(0, slice(None)), (1, slice(None))])
            other = Run(jobs, 3, [0, 1, 2], 2, 10_000).ranks([(1, slice(None))])
            begins = [0, 0, 200, 250, 200]
            await shares(jobs, mixed([*own, *other], [1.0] * 5, begins, random.Random(0)))
            (job,) = jobs.running.values()
            assert (job.findings.known, len(job.readers.statistics().strangers)) == ([], 3)
            assert job.score.agreed == job.score.observed == 2 * FILES

    simulate(body)
