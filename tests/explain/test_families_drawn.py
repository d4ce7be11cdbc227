"""A job that nobody has proved yet, and others who read beside it from the start: drawn cases, without an engine.

The job is registered rightly, wrongly or not at all; a stranger begins before it, with it, in its middle, or anew with
each epoch. The job is followed as if the stranger were not there, and nothing is adopted that only the stranger shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.drawn import cases
from support.explaining import BATCH, FILES, READ_S, FakeJobs, SearchInline, explaining, order_of, simulate

SHELL, OTHER_SHELL, MAIN, SECOND, STRANGER = 50, 60, 100, 500, 900
EPOCHS, VALIDATION, SEED, OTHER_SEED = 2, 60, 5, 77
TRUE: dict[str, Any] = {"seed": SEED, "root": "train"}
REGISTERED: dict[str, dict[str, Any]] = {
    "rightly": {},
    "another seed": {"seed": 42},
    "no set_epoch": {"set_epoch": False},
    "not shuffled": {"shuffle": False},
    "not at all": {},
}
SAID = {
    "rightly": "",
    "another seed": f"this job's seed is {SEED}, not 42",
    "no set_epoch": "this job calls set_epoch: every epoch reads another order",
    "not shuffled": "this job shuffles",
    "not at all": "",
}
# Reads of an epoch after which the job is found where nobody reads beside it.
FOUND_ALONE = {
    "rightly": (0, 0),
    "another seed": (26, 0),
    "no set_epoch": (0, 26),
    "not shuffled": (26, 0),
    "not at all": (30, 0),
}
MORE = 16  # reads, two batches, by which somebody beside it may delay that
STRANGERS = ("cp", "xargs", "exec", "du", "random", "second")
STARTS = ("before", "at once", "middle", "each epoch")
SURE = 16  # reads in a row that come as predicted, from which on the job is found


class Opened(NamedTuple):
    """An open: of what, and by whom."""

    entry: int
    process: int
    parent: int


def name_of(process: int) -> str:
    """Of a process's program."""
    if process >= STRANGER:
        return "cat" if process > STRANGER + 1 else "cp"
    return "python"


def training(order: list[int], main: int, workers: int, epoch: int, rng: random.Random) -> Iterator[Opened]:
    """An epoch, by the main process or by workers that live as long as it and keep near each other."""
    if not workers:
        yield from (Opened(entry, main, SHELL) for entry in order)
        return
    batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
    left = [[entry for batch in batches[worker::workers] for entry in batch] for worker in range(workers)]
    while any(left):
        most = max(map(len, left))
        worker = rng.choice([one for one in range(workers) if left[one] and len(left[one]) > most - 2 * BATCH])
        for _ in range(min(rng.randint(1, 3), len(left[worker]))):
            yield Opened(left[worker].pop(0), main + 1 + workers * epoch + worker, main)


def stranger(kind: str, jobs: FakeJobs, turn: int, rng: random.Random) -> Iterator[Opened]:
    """Who reads beside the job, once."""
    files, first = jobs.manifest.files.tolist(), STRANGER + 10_000 * turn
    if kind == "cp":
        yield from (Opened(entry, first, OTHER_SHELL) for entry in files)
    elif kind in ("xargs", "exec"):
        each, some = (20, files) if kind == "xargs" else (1, files[: FILES // 3])
        yield from (Opened(entry, first + 2 + at // each, OTHER_SHELL + 1) for at, entry in enumerate(some))
    elif kind == "random":
        yield from (Opened(rng.choice(files), first, OTHER_SHELL) for _ in range(len(files)))
    elif kind == "second":
        order = list(order_of(jobs.manifest, turn, root="train", seed=OTHER_SEED))
        yield from training(order, SECOND, 2, turn, rng)


def beside(own: list[Opened], other: Iterator[Opened], start: str, rng: random.Random) -> Iterator[tuple[Opened, bool]]:
    """The job's opens of an epoch, and a stranger's beside them; with each whether it is the job's."""
    if start == "before":
        yield from ((opened, False) for opened in other)
    pace, at_least = rng.choice((0.3, 1.0, 4.0)), len(own) // 3 if start == "middle" else 0
    owed = 0.0
    for number, opened in enumerate(own):
        owed += pace * (number >= at_least)
        while owed >= 1:
            owed -= 1
            if (strange := next(other, None)) is not None:
                yield strange, False
        yield opened, True


def scenes() -> list[Any]:
    """Each kind of stranger for each registration; when it begins and the workers are drawn."""
    drawn = []
    for registered in REGISTERED:
        for at, kind in enumerate(STRANGERS):
            rng = random.Random(f"{registered} {kind}")
            # Rightly and not at all: two of the four starts for each kind; wrongly: one.
            starts = (
                rng.sample(STARTS, 2) if registered in ("rightly", "not at all") else [STARTS[(at + len(drawn)) % 4]]
            )
            drawn += [(registered, kind, start, rng.choice((0, 2))) for start in starts]
    random.Random(0).shuffle(drawn)
    return [pytest.param(*one, id="{}, {} {}, {} workers".format(*one)) for one in drawn[: cases(9)]]


def is_predicted(jobs: FakeJobs, opened: Opened) -> bool:
    """Whether some job has predicted an open that it has just counted."""
    last = [job.score.history[-1] for job in jobs.running.values() if job.score.history]
    return any((seen.sample, seen.process, seen.agrees) == (opened.entry, opened.process, True) for seen in last)


@pytest.mark.parametrize(("registered", "kind", "start", "workers"), scenes())
def test_a_job_is_found_and_followed_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: str, kind: str, start: str, workers: int
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    rng = random.Random(f"{registered} {kind} {start} {workers}")
    predicted: list[list[bool]] = []

    async def body() -> None:
        async with explaining(tmp_path, infer=True, validation=VALIDATION, name_of=name_of, infer_s=2 * READ_S) as (
            jobs,
            _,
        ):
            truth = [list(order_of(jobs.manifest, epoch, **TRUE)) for epoch in range(EPOCHS)]
            if registered != "not at all":
                await jobs.register(name="train", **(TRUE | REGISTERED[registered]))
            for epoch, order in enumerate(truth):
                own = list(training(order, MAIN, workers, epoch, rng))
                begins = epoch == 0 or start == "each epoch"
                other = stranger(kind, jobs, epoch, rng) if begins else iter(())
                of_epoch: list[bool] = []
                for opened, mine in beside(own, other, start, rng):
                    await jobs.read(*opened)
                    if mine:
                        of_epoch.append(is_predicted(jobs, opened))
                predicted.append(of_epoch)
            judge(jobs, registered, predicted)

    simulate(body)


def judge(jobs: FakeJobs, registered: str, predicted: list[list[bool]]) -> None:
    """What has to be true in the end."""
    right = next(job for job in jobs.running.values() if job.spec.shuffle and job.spec.seed in (SEED, SEED + 1))
    score = right.score
    assert score.agreement_of_last(FILES) == 1.0
    assert score.observed - score.agreed <= 2  # what nobody predicted is none of the job's
    found = [found_after(of_epoch) for of_epoch in predicted]
    expected = FOUND_ALONE[registered]
    assert all(after <= alone + MORE for after, alone in zip(found, expected, strict=True)), found
    said = [told for job in jobs.running.values() for told in job.findings.known]
    assert said in ([], [SAID[registered]]), said


def found_after(predicted: list[bool]) -> int:
    """Reads of the job's own before it is predicted from then on."""
    for at in range(len(predicted)):
        if sum(predicted[at : at + SURE]) >= SURE - 1:
            return at
    return len(predicted)
