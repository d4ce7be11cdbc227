"""A mount is read by more ranks than were registered: all of them are found, whenever they begin. Drawn cases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.drawn import cases
from support.explaining import BATCH, FILES, FakeJobs, explaining, order_of, simulate

EPOCHS = 3
SHELL = 50
MOST_APART = 24  # reads by which one rank is ahead of another
# Reads of a rank that nobody registered before it is followed: two batches until it is a stranger, one until it is
# looked at, and what the others read meanwhile.
FOUND_AFTER = 48
DRAWN = range(cases(5))


class Drawn(NamedTuple):
    """A job of `world` ranks, some of which are registered, and some more read.

    Attributes:
        late: reads of each registered rank before the others begin. one_parent: of all ranks (torchrun), or one each.
    """

    world: int
    registered: list[int]
    more: list[int]
    sampler: str
    workers: int
    late: int
    one_parent: bool


def draw(seed: int) -> Drawn:
    rng = random.Random(seed)
    world = rng.choice((2, 3, 3, 4, 8))
    registered = list(range(rng.randint(1, min(3, world - 1))))
    others = [rank for rank in range(world) if rank not in registered]
    return Drawn(
        world, registered, sorted(rng.sample(others, rng.randint(1, min(2, len(others))))),
        rng.choice(("torch-distributed", "torch-distributed", "hf-trainer", "grain")), rng.choice((0, 2)),
        rng.choice((0, 20, 70)), rng.random() < 0.5,
    )  # fmt: skip


def reads_of(order: list[int], rank: int, epoch: int, drawn: Drawn) -> Iterator[tuple[int, int, int]]:
    """(entry, process, parent) of a rank's epoch: its workers take batches in turn."""
    main = 1000 * (rank + 1)
    for at, entry in enumerate(order):
        if drawn.workers:
            yield entry, main + 1 + drawn.workers * epoch + at // BATCH % drawn.workers, main
        else:
            yield entry, main, SHELL if drawn.one_parent else SHELL + rank


async def read_epoch(jobs: FakeJobs, epoch: int, true: dict[str, Any], drawn: Drawn, rng: random.Random) -> list[bool]:
    """All ranks read one; returns of each read of those that are not registered whether it was predicted."""
    left = {
        rank: reads_of(list(order_of(jobs.manifest, epoch, rank, **true)), rank, epoch, drawn)
        for rank in (*drawn.registered, *drawn.more)
    }
    reads, predicted = dict.fromkeys(left, 0), list[bool]()
    while left:
        waits = epoch == 0 and any(reads[rank] < drawn.late for rank in drawn.registered if rank in left)
        ready = [rank for rank in left if not (waits and rank in drawn.more)]
        rank = rng.choice([rank for rank in ready if reads[rank] <= min(reads[one] for one in ready) + MOST_APART])
        read = next(left[rank], None)
        if read is None:
            del left[rank]
            continue
        reads[rank] += 1
        before = {id(job): job.score.agreed for job in jobs.running.values()}
        await jobs.read(*read)
        if rank in drawn.more:
            agreed = (job.score.agreed > before.get(id(job), job.score.agreed) for job in jobs.running.values())
            predicted.append(any(agreed))
    return predicted


@pytest.mark.parametrize("seed", DRAWN)
@pytest.mark.promise("variant")
def test_all_ranks_that_read_are_found(tmp_path: Path, seed: int) -> None:
    drawn = draw(seed)
    true = {"sampler": drawn.sampler, "seed": 5, "world_size": drawn.world}

    async def body() -> None:
        async with explaining(tmp_path, infer=True, name_of=lambda _: "python") as (jobs, _):
            await jobs.register(name="train", ranks=drawn.registered, **true)
            rng = random.Random(seed)
            predicted = [await read_epoch(jobs, epoch, true, drawn, rng) for epoch in range(EPOCHS)]
            (job,) = jobs.running.values()
            told = job.statistics()
            assert not told.readers.strangers
            every = sorted(drawn.registered + drawn.more)
            assert list(job.spec.ranks) == every
            assert told.findings.way_out == "--ranks " + ",".join(map(str, every))
            a_rank = -(-FILES // drawn.world)
            assert predicted[0].count(False) <= FOUND_AFTER * len(drawn.more) + a_rank * (a_rank < FOUND_AFTER), drawn
            assert all(sum(of_epoch) >= 0.98 * len(of_epoch) for of_epoch in predicted[1:]), drawn

    simulate(body)
