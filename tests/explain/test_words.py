"""A registration that lacks what was drawn from its generator, or has it wrong: the reads tell."""

from __future__ import annotations

import random
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from support.explaining import BATCH, FILES, explaining, order_of, simulate


def read_by(order: list[int], workers: int, batch: int, first_process: int) -> list[tuple[int, int]]:
    """(entry, process) in the order of time, as a DataLoader's workers read that take turns; 0 workers: one process."""
    batches = [order[at : at + batch] for at in range(0, len(order), batch)]
    if not workers:
        return [(entry, 7) for entry in order]
    turns = [list(chain(*batches[worker::workers])) for worker in range(workers)]
    rounds = zip_longest(*turns)
    return [(entry, first_process + worker) for one in rounds for worker, entry in enumerate(one) if entry is not None]


GENERATORS = ("default", "shared", "own")


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("told_batch", [BATCH, 32])
def test_words_drawn_before_and_between_are_found_from_the_registered_seed(
    tmp_path: Path, generator: str, workers: int, told_batch: int
) -> None:
    drawn = random.Random(f"{generator} {workers}")
    seed, before, between = drawn.randrange(1 << 32), drawn.randrange(1, 900_000), drawn.randrange(1, 5000)
    fields = {"sampler": "torch-random", "seed": seed, "generator": generator}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", batch_size=told_batch, **fields)
            truth = fields | {"words_before": before, "words_between": between}
            needed: list[int] = []
            for epoch in range(3):
                order = list(order_of(jobs.manifest, epoch, **truth))
                installed = len(jobs.installed)
                for number, (entry, process) in enumerate(read_by(order, workers, BATCH, 100 * epoch + 10), 1):
                    await jobs.read(entry, process)
                    if len(jobs.installed) > installed and len(needed) == epoch:
                        needed.append(number)
            (job,) = jobs.running.values()
            assert len(needed) == 2  # the third epoch goes on like the second
            assert max(needed) <= 24
            assert (job.spec.words_before, job.spec.words_between) == (before, between)
            assert job.findings.way_out == f"--words-before {before} --words-between {between}"
            assert job.matcher.observed == 3 * FILES
            assert job.matcher.agreed == 3 * FILES

    simulate(body)
