"""Registrations with two wrong fields, drawn over samplers: never worse than none, and `status` says the right one."""

from __future__ import annotations

import argparse
import random
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.drawn import cases
from support.explaining import BATCH, FakeJobs, SearchInline, explaining, simulate
from support.trees import make_classes

from mlfs.cli import register
from mlfs.errors import JobError
from mlfs.explain.explainer import Explainer
from mlfs.explain.screen import find_correction
from mlfs.explain.variants import LARGEST_PRODUCT, pairs, variants
from mlfs.follow.matching import Open
from mlfs.follow.score import Cell
from mlfs.job import parse_job
from mlfs.job.names import built_in
from mlfs.orders.mt19937 import PythonGenerator
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams, build_streams

FILES, EPOCHS, SHELL = 300, 3, 50
MANY = 12  # epochs that are registered: seed 5 in epoch 4 is seed 9 in epoch 0, and such a job is not to end early
# Reads of an epoch that are spent on what was registered, before it is explained as if nobody had registered it.
SPENT = 48
SEEDS = (0, 1, 5, 7, 42, 1234)
GENERATOR = {"generator": ("default", "own", "shared"), "persistent_workers": (None, True)}
LOOP = {"seed": SEEDS, "reseed": (None, True), "in_place": (None, True)}
# What may be wrong of each sampler.
FIELDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "torch-distributed": {
        "seed": SEEDS,
        "set_epoch": (True, False),
        "shuffle": (True, False),
        "world_size": (1, 2, 4),
        "start_epoch": (0, 2),
    },
    # Two words between epochs, with workers that stay, are an epoch of the registered order that nobody reads.
    "torch-random": {"seed": SEEDS, "words_before": (None, 3000), "words_between": (None, 3), **GENERATOR},
    "torch-subset": {"seed": SEEDS, "words_before": (None, 3000), **GENERATOR},
    "torch-stateful": {"seed": SEEDS, **GENERATOR},
    "accelerate": {"seed": SEEDS, "use_seedable_sampler": (None, True), "split_batches": (None, True)},
    "hf-trainer": {"seed": SEEDS, "use_seedable_sampler": (True, False), "split_batches": (None, True)},
    "numpy": {"legacy": (True, False), **LOOP},
    "python-random": LOOP,
    "hf-datasets": LOOP,
    "grain": {"seed": SEEDS, "world_size": (1, 2), "shuffle": (True, False)},
    "dali": {"shuffle": (True, False), "shuffle_after_epoch": (None, True), "stick_to_shard": (None, True)},
}
GIVEN: Mapping[str, Mapping[str, Any]] = {"torch-stateful": {"num_workers": 0}}
# A pair that was once missed, for the first case that is drawn.
FIRST_DRAWN = {"torch-distributed": ["start_epoch", "world_size"], "grain": ["seed", "world_size"]}
# And one in which the flags that `status` said registered the second epoch as the first.
CASES = [*((sampler, number) for sampler in FIELDS for number in range(cases(1))), ("torch-random", 7004)]


def test_pairs_are_as_many_however_many_epochs_there_are() -> None:
    """They are all made before the first one is tried, and the loop's thread waits for the GIL meanwhile."""
    counts = []
    for epochs in (1 << 9, 1 << 16):
        fields = parse_job({"epochs": epochs, "world_size": 4, "ranks": [0], "start_epoch": 3}).model_dump()
        own = built_in(fields["sampler"])
        assert own is not None
        reads, asked = own.fields, list[str]()

        def reads_of(sampler: str, asked: list[str] = asked, reads: Collection[str] = reads) -> Collection[str]:
            asked.append(sampler)
            return reads

        singles = list(variants(fields, reads))
        found = list(pairs(fields, singles, reads_of, lambda: None))
        assert max(both.rarity for both in found) <= LARGEST_PRODUCT
        counts.append((len(asked), len(found)))
    assert len(singles) > 60_000
    assert counts[0] == counts[1]
    assert len(asked) < 200


def test_a_wrong_seed_of_a_resumed_run_is_found_before_many_epochs_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for pairs is short, and drawing an epoch takes most of it: pairs that differ in where they begin share
    an order."""
    drawn, shuffle = list[int](), PythonGenerator.shuffle

    def counted(generator: PythonGenerator, x: Any) -> None:
        drawn.append(len(x))
        shuffle(generator, x)

    registered = parse_job({"sampler": "python-random", "seed": 42, "epochs": 9, "batch_size": BATCH})
    true = build_order(registered.model_copy(update={"seed": 5}), FILES).rank_stream(2, 0).tolist()
    streams = JobStreams(registered, np.arange(FILES), build_order(registered, FILES))
    opens = [Open(entry, 1000, SHELL, Cell(0, -1), False, -1, -1) for entry in true[:24]]
    monkeypatch.setattr(PythonGenerator, "shuffle", counted)
    monkeypatch.setattr("mlfs.explain.screen.LONGEST_FOR_PAIRS_S", 60.0)  # as many on a slow machine as on a fast one
    found = find_correction(registered, streams, opens, [0], FILES)
    assert found is not None
    assert (found.spec.seed, found.spec.start_epoch) == (5, 2)
    assert len(drawn) <= 1200


class Drawn(NamedTuple):
    """What is true, what was registered, and the workers of each rank."""

    true: dict[str, Any]
    registered: dict[str, Any]
    workers: int


def draw(sampler: str, number: int) -> Drawn:
    """A job that shuffles, and a registration of it in which two fields are wrong."""
    rng, options = random.Random(f"{sampler} {number}"), FIELDS[sampler]
    while True:
        base = {"sampler": sampler, "epochs": MANY, "batch_size": BATCH, **GIVEN.get(sampler, {})}
        true = base | {field: rng.choice(values) for field, values in options.items()}
        wrong = FIRST_DRAWN.get(sampler) if not number else None
        wrong = wrong or rng.sample(list(options), 2)
        registered = true | {
            field: rng.choice([value for value in options[field] if value != true[field]]) for field in wrong
        }
        drawn = Drawn(_given(true), _given(registered), 0 if "num_workers" in base else rng.choice((0, 2)))
        try:
            orders = [build_order(parse_job(fields), FILES) for fields in drawn[:2]]
        except JobError:
            continue
        if true.get("shuffle", True) and all(orders):
            return drawn


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def epochs_of(drawn: Drawn) -> range:
    """Those that are read."""
    first = drawn.true.get("start_epoch", 0)
    return range(first, first + EPOCHS)


def reads_of(order: list[int], rank: int, epoch: int, workers: int) -> Iterator[tuple[int, int, int]]:
    """(entry, process, parent) of a rank's epoch: its workers take batches in turn."""
    main = 1000 * (rank + 1)
    for at, entry in enumerate(order):
        if workers:
            yield entry, main + 1 + workers * epoch + at // BATCH % workers, main
        else:
            yield entry, main, SHELL


async def read_all(jobs: FakeJobs, drawn: Drawn) -> list[int]:
    """All epochs; returns how many reads of each were not predicted."""
    streams, missed = build_streams(parse_job(drawn.true), jobs.manifest), []
    for epoch in epochs_of(drawn):
        ranks = [
            reads_of(streams.epoch_ids(epoch, rank).tolist(), rank, epoch, drawn.workers)
            for rank in range(streams.spec.world_size)
        ]
        missed.append(0)
        for reads in zip(*ranks, strict=True):
            for read in reads:
                before = {id(job): job.score.agreed for job in jobs.running.values()}
                await jobs.read(*read)
                agreed = (job.score.agreed > before.get(id(job), job.score.agreed) for job in jobs.running.values())
                missed[-1] += not any(agreed)
    return missed


def says_right(flags: str, drawn: Drawn, jobs: FakeJobs) -> bool:
    """Whether `mlfs register` with these flags registers the order that was read."""
    parser = argparse.ArgumentParser()
    register.add_flags(parser.add_subparsers().add_parser("register"))
    fields = register.job_fields(parser.parse_args(["register", "MOUNT", *shlex.split(flags)]), {})
    said, true = (build_streams(parse_job(of), jobs.manifest) for of in (fields, drawn.true))
    later = said.spec.start_epoch - true.spec.start_epoch if "--start-epoch" in flags else 0
    return all(
        said.epoch_ids(epoch + later, rank).tolist()[:-BATCH] == true.epoch_ids(epoch, rank).tolist()[:-BATCH]
        for epoch in epochs_of(drawn)
        for rank in range(true.spec.world_size)
    )


def said_in_the_end(jobs: FakeJobs, explainer: Explainer) -> str:
    """The flags that `status` says."""
    instead = explainer.statistics().cases["train"].instead
    return jobs.running["train"].statistics().findings.flags if instead is None else instead.flags


@pytest.mark.parametrize(("sampler", "number"), CASES)
@pytest.mark.promise("wrong")
def test_two_mistakes_are_never_worse_than_no_registration(
    tmp_path: Path, sampler: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    monkeypatch.setattr("mlfs.explain.words.FAR", 1 << 14)
    drawn, images = draw(sampler, number), make_classes(tmp_path / "images", FILES, 3, lambda index: b"x")
    missed: dict[bool, list[int]] = {}

    async def body(registered: bool) -> None:
        named = explaining(tmp_path, infer=True, images=images, name_of=lambda _: "python", infer_s=0.02)
        async with named as (jobs, explainer):
            if registered:
                await jobs.register(name="train", **drawn.registered)
            missed[registered] = await read_all(jobs, drawn)
            if registered and missed[True][-1] <= FILES // 10:
                assert says_right(said_in_the_end(jobs, explainer), drawn, jobs), drawn

    for registered in (False, True):
        simulate(lambda registered=registered: body(registered))
    assert all(wrong <= none + SPENT for none, wrong in zip(missed[False], missed[True], strict=True)), (drawn, missed)
