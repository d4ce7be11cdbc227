"""Where an epoch begins in its generator's words is found for torch's less usual samplers too."""

from __future__ import annotations

import random
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from support.explaining import BATCH, FILES, explaining, order_of, simulate


def read_by(order: list[int], workers: int, first_process: int) -> list[tuple[int, int]]:
    """(entry, process) as a DataLoader's workers read that take turns; 0 workers: one process."""
    if not workers:
        return [(entry, first_process) for entry in order]
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    turns = zip_longest(*(list(chain(*batches[worker::workers])) for worker in range(workers)))
    return [(entry, first_process + worker) for turn in turns for worker, entry in enumerate(turn) if entry is not None]


def weights_file(path: Path, drawn: random.Random) -> str:
    """Three classes, one of which is rare, as such weights are made."""
    path.write_text("".join(f"{drawn.choice([1.0, 0.5, 4.0])}\n" for _ in range(FILES)))
    return str(path)


def drawn_job(sampler: str, drawn: random.Random, workers: int, directory: Path) -> dict[str, Any]:
    fields: dict[str, Any] = {"sampler": sampler, "seed": drawn.randrange(1 << 32), "epochs": 4}
    fields["generator"] = drawn.choice(
        ["shared", "own"] if sampler == "torch-stateful" else ["default", "shared", "own"]
    )
    if sampler == "torch-weighted":
        fields["weights_file"] = weights_file(directory / "weights", drawn)
    if sampler == "torch-stateful":
        fields["num_workers"] = workers
        fields["persistent_workers"] = bool(workers) and drawn.random() < 0.5
    return fields


@pytest.mark.parametrize("sampler", ["torch-subset", "torch-weighted", "torch-stateful"])
@pytest.mark.parametrize("workers", [0, 2])
def test_words_drawn_before_and_between_are_found(tmp_path: Path, sampler: str, workers: int) -> None:
    drawn = random.Random(f"{sampler} {workers}")
    fields = drawn_job(sampler, drawn, workers, tmp_path)
    # An odd number: else the draws of one epoch are, two words each, also those of later ones that are expected.
    before, between = drawn.randrange(1, 900_000), drawn.randrange(1, 5000) | 1

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", **fields)
            truth = fields | {"words_before": before, "words_between": between}
            for epoch in range(3):
                order = list(order_of(jobs.manifest, epoch, **truth))
                for entry, process in read_by(order, workers, 100 * epoch + 10):
                    await jobs.read(entry, process)
            (job,) = jobs.running.values()
            assert (job.spec.words_before, job.spec.words_between) == (before, between)
            assert job.findings.way_out == f"--words-before {before} --words-between {between}"
            assert job.score.agreed == job.score.observed

    simulate(body)


def test_what_the_loader_seeded_its_generator_with_is_found(tmp_path: Path) -> None:
    """StatefulDataLoader after torch.manual_seed and a model: one generator for all epochs, seeded by a word."""
    drawn = random.Random("stateful")
    before = drawn.randrange(1, 900_000)
    fields = {"sampler": "torch-stateful", "seed": drawn.randrange(1 << 32), "num_workers": 0}

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(name="train", **fields)
            for epoch in range(3):
                for entry in order_of(jobs.manifest, epoch, **fields, words_before=before):
                    await jobs.read(entry, 7)
            (job,) = jobs.running.values()
            assert job.findings.way_out == f"--words-before {before}"
            assert job.score.agreed == job.score.observed == 3 * FILES

    simulate(body)
