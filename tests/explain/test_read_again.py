"""A list that is shuffled once, by nobody knows what, and read in each epoch: it is known once it is read again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.explaining import BATCH, FILES, SearchInline, explaining, order_of, simulate

from mlfs.explain.read_again import ReadBefore
from mlfs.follow.evidence import Read

READS_THAT_SHOW = 16
SHELL, MAIN = 50, 1000


def batches_of(order: Sequence[int], workers: int) -> list[list[int]]:
    """What each worker of a loader reads."""
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    return [[entry for batch in batches[worker::workers] for entry in batch] for worker in range(workers)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_without_a_seed_is_known_once_it_is_read_again(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)

    async def body() -> None:
        async with explaining(tmp_path, infer=True, infer_s=0.02) as (jobs, _):
            files = list(order_of(jobs.manifest, 0, sampler="sequential"))
            order = random.Random(987654321).sample(files, FILES)
            for epoch in range(4):
                before = {name: (job.score.observed, job.score.agreed) for name, job in jobs.running.items()}
                streams = batches_of(order, workers) if workers else [order]
                for turn in range(max(map(len, streams))):
                    for worker, stream in enumerate(streams):
                        reader = (MAIN + 1 + epoch * workers + worker, MAIN) if workers else (MAIN, SHELL)
                        if turn < len(stream):
                            await jobs.read(stream[turn], *reader)
                if epoch == 0:
                    assert not jobs.running
                    continue
                (job,) = jobs.running.values()
                observed, agreed = before.get(job.name, (0, 0))
                missed = (job.score.observed - observed) - (job.score.agreed - agreed)
                assert missed == 0
                assert job.score.observed - observed >= FILES - READS_THAT_SHOW * max(1, workers)

    simulate(body)


def reads(order: Sequence[int], process: int) -> list[Read]:
    return [Read(entry, process, MAIN, 0.0) for entry in order]


def test_what_two_processes_read_beside_each_other_is_not_read_again() -> None:
    order = random.Random(1).sample(range(FILES), FILES)
    before = ReadBefore(FILES)
    both = zip(reads(order, 1), reads(order, 2), strict=True)
    assert not any(before.add(pair) for pair in both)


def test_another_order_is_not_what_was_read_before() -> None:
    before = ReadBefore(FILES)
    for seed in range(20):
        assert not before.add(reads(random.Random(seed).sample(range(FILES), FILES), 1))


def test_a_process_that_has_looked_at_a_sample_first_is_known_without_it() -> None:
    order = random.Random(1).sample(range(FILES), FILES)
    before = ReadBefore(FILES)
    assert not before.add(reads([order[7], *order], 1))
    assert before.add(reads(order[:READS_THAT_SHOW], 1))
    (stream,) = before.streams()
    assert stream.tolist() == order
