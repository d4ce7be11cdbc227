"""A job with others at once: a scan before it, a second start, a stranger, an evaluation, a wrong registration. Drawn.

The job that trains gets and keeps its agreement, and nothing is adopted that only somebody else shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.drawn import cases
from support.explaining import BATCH, FILES, FakeJobs, SearchInline, explaining, order_of, simulate
from support.trees import make_tree

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.job_statistics import in_words, strangers_to_all

SHELL, OTHER_SHELL, MAIN, SECOND, STRANGER = 50, 60, 1000, 5000, 9000
EPOCHS, SEED = 3, 5
DRAWN = cases(2)
Opened = tuple[int, int, int]


def training(order: list[int], main: int, shell: int, workers: int, epoch: int) -> Iterator[Opened]:
    """(entry, process, parent) of an epoch: workers take batches in turn, and end with it."""
    for at, entry in enumerate(order):
        if workers:
            yield entry, main + 1 + workers * epoch + at // BATCH % workers, main
        else:
            yield entry, main, shell


async def read(jobs: FakeJobs, opened: Opened) -> bool:
    """One open; whether it was predicted."""
    before = {id(job): job.score.agreed for job in jobs.running.values()}
    await jobs.read(*opened)
    return any(job.score.agreed > before.get(id(job), job.score.agreed) for job in jobs.running.values())


def judge(jobs: FakeJobs) -> None:
    """What the engine does now and then."""
    for job in jobs.running.values():
        job.judge(0.0)


# -- a scan of all files by the training process itself, before it trains

# Reads of the first epoch until the job is followed: two batches of the scan may seem to be its own, and 32 reads show
# that the script begins.
AFTER_A_SCAN = 64


@pytest.mark.parametrize("seed", range(DRAWN))
@pytest.mark.promise("strangers")
def test_a_scan_before_training_is_nothing_to_the_job(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)
    rng = random.Random(f"scan {seed}")
    workers, opens, share = rng.choice((0, 0, 1, 2, 4)), rng.choice((1, 2)), rng.choice((1.0, 1.0, 0.5))
    sampler, labels = rng.choice(("torch-distributed", "torch-random")), rng.random() < 0.5
    fields: dict[str, Any] = {"seed": SEED, "sampler": sampler, "root": "images"}
    parts = {"images": "jpg", "labels": "txt"} if labels else {"images": "jpg"}
    spec = {f"{part}/c{i % 3}/{i:04d}.{suffix}": 1 for part, suffix in parts.items() for i in range(FILES)}
    data = make_tree(tmp_path / "data", spec)

    async def body() -> None:
        named = explaining(tmp_path, infer=True, images=data, name_of=lambda _: "python", infer_s=0.02)
        async with named as (jobs, _):
            await jobs.register(name="train", **fields)
            files = sorted(order_of(jobs.manifest, 0, **fields))
            root = "labels" if labels else "images"
            beside = sorted(order_of(jobs.manifest, 0, sampler="sequential", layout="sorted", root=root))
            for entry, label in list(zip(files, beside, strict=True))[: int(share * FILES)]:
                for one in [entry] * opens + [label] * labels:
                    await read(jobs, (one, MAIN, SHELL))
            judge(jobs)
            for epoch in range(EPOCHS):
                order = list(order_of(jobs.manifest, epoch, **fields))
                predicted = [await read(jobs, opened) for opened in training(order, MAIN, SHELL, workers, epoch)]
                judge(jobs)
                assert predicted.count(False) <= (AFTER_A_SCAN if not epoch else FILES // 20), (epoch, workers, opens)
            job = jobs.running["train"]
            assert (job.spec.start_epoch, job.spec.sampler) == (0, fields["sampler"])
            assert job.score.agreement_of_last(FILES) == 1.0

    simulate(body)


# -- the same script, started twice


@pytest.mark.parametrize("seed", range(DRAWN))
@pytest.mark.promise("strangers")
def test_the_same_script_started_twice_is_called_so(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    rng = random.Random(f"twice {seed}")
    workers, begun = rng.randint(0, 4), rng.choice((30, 100, 300, 450))
    shell, pace = rng.choice((SHELL, OTHER_SHELL)), rng.choice((0.7, 1.0))

    async def body() -> None:
        async with explaining(tmp_path, infer=True, name_of=lambda _: "python") as (jobs, _):
            await jobs.register(name="train", seed=SEED)
            orders = [list(order_of(jobs.manifest, epoch, seed=SEED)) for epoch in range(EPOCHS)]

            def run(main: int, of: int) -> Iterator[Opened]:
                for epoch, order in enumerate(orders):
                    yield from training(order, main, of, workers, epoch)

            runs = run(MAIN, SHELL), run(SECOND, shell)
            missed, owed = 0, 0.0
            for number, opened in enumerate(runs[0]):
                missed += not await read(jobs, opened)
                owed += pace * (number >= begun)
                while owed >= 1 and (again := next(runs[1], None)) is not None:
                    owed -= 1
                    await read(jobs, again)
                if number % 64 == 0:
                    judge(jobs)
            (job,) = jobs.running.values()
            (stranger,) = strangers_to_all([job.statistics()])
            assert "as the same script would that was started twice" in in_words(stranger)
            assert missed <= 16
            assert not job.findings.known

    simulate(body)


# -- readers that cannot be told apart


@pytest.mark.parametrize("seed", range(DRAWN))
@pytest.mark.promise("namespace-readers")
def test_nothing_is_corrected_or_inferred_from_readers_without_names(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    rng = random.Random(f"nameless {seed}")
    workers, world = rng.choice((0, 2, 3)), rng.choice((1, 2, 4))
    wrong = rng.choice(({}, {"seed": 42}, {"set_epoch": False}, {"world_size": 3}, {"sampler": "torch-random"}))
    true: dict[str, Any] = {"seed": SEED, "world_size": world}

    async def body() -> None:
        async with explaining(tmp_path, infer=True, infer_s=0.02) as (jobs, _):
            registered = await jobs.register(name="train", **(true | wrong))
            predicted = []
            for epoch in range(EPOCHS):
                orders = [list(order_of(jobs.manifest, epoch, rank, **true)) for rank in range(world)]
                for opens in zip(*(training(order, MAIN, SHELL, workers, epoch) for order in orders), strict=True):
                    for entry, _, _ in opens:
                        predicted.append(await read(jobs, (entry, NO_PID, 0)))
                judge(jobs)
            (job,) = jobs.running.values()
            assert job is registered
            assert not job.findings.known
            assert not job.statistics().readers.strangers
            if not wrong:
                assert sum(predicted) >= 0.94 * len(predicted)

    simulate(body)


# -- several of these at once

# What is true of a job, and wrong registrations of it.
SAMPLERS: dict[str, tuple[dict[str, Any], Sequence[dict[str, Any]]]] = {
    "torch-distributed": ({}, ({"seed": 42}, {"set_epoch": False}, {"shuffle": False})),
    "torch-random": ({}, ({"seed": 42}, {"generator": "own"})),
    "torch-random, own": ({"sampler": "torch-random", "generator": "own"}, ({"seed": 42}, {"generator": "default"})),
    "torch-stateful": ({"num_workers": 0}, ({"seed": 42}, {"generator": "own"})),
    "accelerate": ({}, ({"seed": 42}, {"use_seedable_sampler": True})),
    "numpy": ({}, ({"seed": 42}, {"reseed": True})),
    "numpy, reseed": ({"sampler": "numpy", "reseed": True}, ({"seed": 42}, {"reseed": False})),
    "python-random": ({}, ({"seed": 42}, {"in_place": True})),
    "hf-datasets": ({}, ({"seed": 42},)),
    "grain": ({}, ({"seed": 42},)),
}
# A run that nobody registered and that was resumed is found where a later epoch has the order of another seed's first.
FOUND_RESUMED = ("torch-distributed", "numpy, reseed", "grain")
# Reads of the first two epochs that are spent: the walk of a stranger who was first was taken for the job, and then the
# registration was wrong; in the second epoch the amount of words between the epochs is found.
SPENT = 64


class AtOnce(NamedTuple):
    """Who reads beside a job, and how it was registered.

    Attributes:
        registered: None: not at all.
        second: reads of the job before the script is started a second time, -1 for never. stranger: the same.
        evaluates: after each epoch. resumed: the epoch with which the script begins.
    """

    true: dict[str, Any]
    registered: dict[str, Any] | None
    workers: int
    second: int
    stranger: int
    evaluates: bool
    resumed: int


def drawn_at_once(name: str, seed: int) -> AtOnce:
    """Two to five of the six."""
    rng = random.Random(f"at once {name} {seed}")
    kinds = rng.sample(("wrong", "second", "stranger", "evaluation", "resume", "unregistered"), rng.randint(2, 5))
    given, wrong = SAMPLERS[name]
    true = {"sampler": name, "seed": SEED, "epochs": 9, **given}
    registered = None if "unregistered" in kinds else true | (rng.choice(wrong) if "wrong" in kinds else {})
    resumes = "resume" in kinds and (registered is not None or name in FOUND_RESUMED)
    return AtOnce(
        true, registered, 0 if "num_workers" in true else rng.choice((0, 2)),
        rng.choice((100, 700)) if "second" in kinds else -1, rng.choice((0, 300)) if "stranger" in kinds else -1,
        "evaluation" in kinds, 2 if resumes else 0,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(cases(1)))
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.promise("strangers")
def test_several_at_once_cost_a_job_no_more_than_each(
    tmp_path: Path, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)
    monkeypatch.setattr("mlfs.explain.screen.LONGEST_FOR_PAIRS_S", 60.0)  # as many on a slow machine as on a fast one
    drawn = drawn_at_once(name, seed)

    def run(orders: list[list[int]], main: int, shell: int, files: list[int]) -> Iterator[tuple[int, Opened]]:
        """(epoch, open); -1 for an evaluation."""
        for epoch, order in enumerate(orders):
            yield from ((epoch, opened) for opened in training(order, main, shell, drawn.workers, epoch))
            yield from ((-1, (entry, main, shell)) for entry in files if drawn.evaluates)

    async def body() -> None:
        def name_of(process: int) -> str:
            return "cp" if process >= STRANGER else "python"

        async with explaining(tmp_path, infer=True, name_of=name_of, infer_s=0.02) as (jobs, _):
            if drawn.registered is not None:
                await jobs.register(name="train", **drawn.registered)
            orders = [list(order_of(jobs.manifest, drawn.resumed + epoch, **drawn.true)) for epoch in range(EPOCHS)]
            files, missed = jobs.manifest.files.tolist(), [0] * EPOCHS
            second = run(orders, SECOND, OTHER_SHELL, files) if drawn.second >= 0 else iter(())
            stranger = iter(files if drawn.stranger >= 0 else [])
            for number, (epoch, opened) in enumerate(run(orders, MAIN, SHELL, files)):
                predicted = await read(jobs, opened)
                if epoch >= 0:
                    missed[epoch] += not predicted
                if number >= drawn.second >= 0 and (again := next(second, None)) is not None:
                    await read(jobs, again[1])
                if number >= drawn.stranger >= 0 and (entry := next(stranger, None)) is not None:
                    await read(jobs, (entry, STRANGER, OTHER_SHELL))
                if number % 64 == 0:
                    judge(jobs)
            assert missed[-1] <= FILES // 100, (drawn, missed)
            assert max(missed) <= SPENT, (drawn, missed)

    simulate(body)
