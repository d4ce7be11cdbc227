"""How many loaders are found that nobody registers, with the seeds that people choose: the table of docs/clients.md.

    PYTHONPATH=tests python scripts/untold.py [--seeds 42,1337] [--only WORD] [--say | --audit]

In: seeds. Out: a line a seed, and one for each loader that is not found or lost again. No mount, no process: the order
of each loader is mlfs's own, which tests/orders compares with the library, and its reads go through matching and
searching alone, as those of one process a rank or of two workers each. Processes are as far ahead of one another as a
generator draws it, a batch at most. Workers are other ones in each epoch, but for those of a stream without an end, of
which there is one iterator. Searches take no time in it, and try few seeds that nobody would choose.

A loader is found if half of its first epoch comes as predicted, all of the second one but for the reads that choose
among orders that begin alike, and all of the third one. Where the generator is seeded anew in each epoch, nothing is
asked of the second one, as nothing else shows that.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.explaining import BATCH, FILES, SearchHere, explaining, simulate
from support.trees import make_classes

from mlfs.audit.findings import audit
from mlfs.audit.reads import Kin, ReadLog
from mlfs.audit.report import Audit
from mlfs.explain.search_stages import SearchExtent, WordsAsked
from mlfs.follow.evidence import UNTIMED, Read
from mlfs.job import JobSpec, parse_job
from mlfs.launchers import Whose
from mlfs.orders.streams import build_streams
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan

SEEDS = (0, 1, 7, 42, 123, 999, 1337, 2024, 2025, 3407)
EPOCHS = 3
# No process has such a number: nothing is read of its command line.
FIRST_PID, LAUNCHER, PIDS_OF_A_RANK = 1 << 23, 1 << 24, 1000
# The first reads of a process are counted once a further one confirms them.
UNSURE_READS = 2
# The first reads of a second epoch choose among the orders that begin alike.
CHOOSING_READS = 16

TWO: dict[str, Any] = {"world_size": 2}
SPLIT: dict[str, Any] = {"sampler": "torch-random", "split": [480, 120], "part": 0}
LOADERS: dict[str, dict[str, Any]] = {
    "DistributedSampler": {"preset": "lightning"},
    "DistributedSampler, 2 ranks": {"preset": "lightning", **TWO},
    "DataLoader": {"sampler": "torch-random"},
    "DataLoader, persistent workers": {"sampler": "torch-random", "persistent_workers": True},
    "DataLoader(generator=)": {"sampler": "torch-random", "generator": "shared"},
    "RandomSampler(generator=)": {"sampler": "torch-random", "generator": "own"},
    "DataLoader and a validation": {"sampler": "torch-random", "words_between": 2},
    "StatefulDataLoader": {"sampler": "torch-stateful"},
    "Lightning, resumed in an epoch": {"preset": "lightning", "start_epoch": 1, "start_step": 29},
    "accelerate, dispatched": {"preset": "accelerate"},
    "accelerate, 2 ranks": {"preset": "accelerate", "use_seedable_sampler": True, **TWO},
    "HF Trainer": {"preset": "hf-trainer"},
    "HF Trainer, 2 ranks": {"preset": "hf-trainer", **TWO},
    "HF datasets, shuffled once": {"sampler": "hf-datasets"},
    "ra-sampler, 4 ranks": {"sampler": "ra-sampler", "world_size": 4, "seed": 0},
    "mmengine Default": {"preset": "mmengine"},
    "mmengine Default, 2 ranks": {"preset": "mmengine", **TWO},
    "mmengine Infinite": {"preset": "mmengine-infinite"},
    "mmengine Infinite, 2 ranks": {"preset": "mmengine-infinite", **TWO},
    "detectron2": {"preset": "detectron2"},
    "detectron2, 2 ranks": {"preset": "detectron2", **TWO},
    "detectron2 before 2023": {"preset": "detectron2", "worker_dealing": "samples", "num_workers": 2},
    "fastai": {"preset": "fastai"},
    "ignite": {"preset": "ignite-deterministic"},
    "torchdata nodes": {"preset": "torchdata-nodes"},
    "m-per-class": {"preset": "m-per-class"},
    "speechbrain": {"preset": "speechbrain", "seed": 563375142},
    "lhotse": {"preset": "lhotse"},
    "lhotse, 2 ranks": {"preset": "lhotse", **TWO},
    "SPDL": {"preset": "spdl"},
    "pandas": {"preset": "pandas"},
    "polars": {"preset": "polars"},
    "jax fold_in": {"preset": "jax"},
    "jax split": {"generator": "jax", "seeding": "split"},
    "ultralytics": {"preset": "ultralytics", "seed": 6148914691236517204},
    "MONAI CacheDataset": {"sampler": "torch-random", "cached_samples": 300},
    "random_split": {**SPLIT, "split_by": "torch"},
    "train_test_split": {**SPLIT, "split": [120, 480], "part": 1, "split_by": "numpy"},
    "KFold": {"sampler": "torch-random", "split": [120] * 5, "without_part": 0, "split_by": "numpy"}
    | {"split_order": "sorted"},
    "torch seed+epoch": {"seeding": "seed+epoch"},
    "torch.manual_seed(seed+epoch)": {"generator": "default", "seeding": "seed+epoch"},
    "RandomState goes on": {"generator": "numpy-legacy"},
    "RandomState seed+epoch": {"generator": "numpy-legacy", "seeding": "seed+epoch"},
    "default_rng goes on": {"generator": "numpy"},
    "default_rng seed+epoch": {"generator": "numpy", "seeding": "seed+epoch"},
    "default_rng [seed,epoch]": {"generator": "numpy", "seeding": "[seed,epoch]"},
    "random.shuffle goes on": {"generator": "python", "draw": "shuffle"},
    "random.shuffle seed+epoch": {"generator": "python", "draw": "shuffle", "seeding": "seed+epoch"},
    "random.sample": {"generator": "python", "draw": "sample"},
    "webdataset": {"preset": "webdataset", "layout": "sorted", "batch_size": 1, "num_workers": 2},
    "HF streaming": {"preset": "hf-streaming", "batch_size": 1, "num_workers": 2},
    "grain": {"sampler": "grain"},
}


class QuickSearch(SearchHere):
    """One of few seeds that nobody would choose."""

    def extent(self, hints: Sequence[int], again: bool, words: WordsAsked | None) -> SearchExtent:
        return SearchExtent(((0, 128),), 1 << 12, latest=1 << 12, hints=tuple(hints), again=again, words=words)


def files_in(images: Path) -> Manifest:
    """The data set that all loaders read, made in a directory."""
    make_classes(images, FILES, 3, lambda index: b"x")
    fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return scan(fd)
    finally:
        os.close(fd)


def workers_of(fields: dict[str, Any]) -> tuple[int, ...]:
    """With how many workers a rank each loader is shown: none and two, where its order does not hang on them."""
    return (2,) if "num_workers" in fields else (0, 2)


def job_of(fields: dict[str, Any], workers: int) -> JobSpec:
    """The job that a loader is, from its first epoch on."""
    told = {name: value for name, value in fields.items() if name not in ("start_epoch", "start_step")}
    if told.get("sampler") == "torch-stateful":
        told["num_workers"] = workers
    if "split_by" in told:
        told["split_seed"] = told["seed"]
    return parse_job({"epochs": EPOCHS + 1, "batch_size": BATCH} | told)


def reads_of(fields: dict[str, Any], manifest: Manifest, workers: int) -> Iterator[list[tuple[int, int, int]]]:
    """What a loader opens, epoch by epoch: an entry, the process and its parent each."""
    drawn, spec = random.Random(repr(fields)), job_of(fields, workers)
    streams, batch = build_streams(spec, manifest), spec.batch_size
    for number in range(EPOCHS):
        epoch = number + fields.get("start_epoch", 0)
        of_process: dict[tuple[int, int], list[int]] = {}
        for rank in range(spec.world_size):
            ids = streams.epoch_ids(epoch, rank).tolist()
            if not number:
                ids = ids[fields.get("start_step", 0) * spec.batch_size :]
            main = FIRST_PID + PIDS_OF_A_RANK * rank
            for at, entry in enumerate(ids):
                first = 0 if spec.persistent_workers or spec.endless else workers * number
                pid = main + 1 + first + at // batch % workers if workers else main
                if entry >= 0:
                    of_process.setdefault((pid, main if workers else LAUNCHER), []).append(entry)
        reads = list[tuple[int, int, int]]()
        begun = dict.fromkeys(of_process, 0)
        while begun:
            slowest = min(begun.values())
            process = drawn.choice([one for one, at in begun.items() if at < slowest + batch])
            reads.append((of_process[process][begun[process]], *process))
            begun[process] += 1
            if begun[process] == len(of_process[process]):
                del begun[process]
        if spec.cached_samples and not number:  # the script has read those into memory before
            ids = build_streams(parse_job({"epochs": 1, "sampler": "sequential"}), manifest).sample_ids
            reads = [(entry, FIRST_PID, LAUNCHER) for entry in ids[: spec.cached_samples].tolist()] + reads
        yield reads


def agreement(fields: dict[str, Any], workers: int, images: Path) -> list[tuple[int, int]]:
    """Of each epoch how many reads came as some job said, and how many there were."""
    found: list[tuple[int, int]] = []
    world = fields.get("world_size", 0)

    def whose(kin: Sequence[tuple[int, int]]) -> list[Whose]:
        """As torchrun, which several ranks need, and forked workers have it."""
        ranks = [(process - FIRST_PID) // PIDS_OF_A_RANK if world else -1 for process, _ in kin]
        return [Whose(parent, rank, world, parent != LAUNCHER) for (_, parent), rank in zip(kin, ranks, strict=True)]

    async def body() -> None:
        async with explaining(images, infer=True, images=images) as (jobs, _):
            for reads in reads_of(fields, jobs.manifest, workers):
                agreed = 0
                for read in reads:
                    before = {id(job): job.score.agreed for job in jobs.running.values()}
                    await jobs.read(*read)
                    agreed += any(job.score.agreed > before.get(id(job), 1 << 30) for job in jobs.running.values())
                found.append((agreed, len(reads)))

    with patch("mlfs.explain.hypotheses.whose", whose):
        simulate(body)
    return found


def audited(fields: dict[str, Any], workers: int, manifest: Manifest) -> Audit:
    """What the auditor says of a loader's reads, of which it knows the processes, and no seed."""
    log = ReadLog(lambda process, _: Kin(LAUNCHER, (process - FIRST_PID) // PIDS_OF_A_RANK))
    for reads in reads_of(fields, manifest, workers):
        log.add([Read(*read, UNTIMED) for read in reads])
    return audit(log.reads())


def is_found(fields: dict[str, Any], workers: int, shown: list[tuple[int, int]]) -> bool:
    """Whether a loader with this agreement is found, and not lost again."""
    unsure = UNSURE_READS * max(1, workers) * fields.get("world_size", 1)
    is_anew = "epoch" in (job_of(fields, workers).seeding or "")
    shown = shown[1:] if "start_step" in fields else shown  # nothing shows where a run goes on within an epoch
    first, second, *later = (reads - agreed for agreed, reads in shown)
    chosen = is_anew or second <= CHOOSING_READS + unsure
    return 2 * first <= shown[0][1] and chosen and max(later, default=0) <= unsure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="between commas")
    parser.add_argument("--only", default="", help="loaders whose name has this")
    parser.add_argument("--say", action="store_true", help="each loader's agreement")
    parser.add_argument("--audit", action="store_true", help="what the auditor says of each loader's reads, no more")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="untold-") as scratch,
        patch("mlfs.explain.attempt.SeedSearch", QuickSearch),
        patch("mlfs.explain.words.FAR", 1 << 14),
    ):
        manifest = files_in(images := Path(scratch))
        for seed in map(int, args.seeds.split(",")):
            began_s, found, of = time.monotonic(), 0, 0
            for name in (name for name in LOADERS if args.only in name):
                fields = {"seed": seed} | LOADERS[name]
                for workers in workers_of(fields):
                    if args.audit:
                        for said in audited(fields, workers, manifest).findings:
                            print(f"{seed:5} {name}, {workers} workers: {said.kind}: {said.sentence}", flush=True)
                        continue
                    shown = agreement(fields, workers, images)
                    good = is_found(fields, workers, shown)
                    found, of = found + good, of + 1
                    if args.say or not good:
                        epochs = " ".join(f"{count}/{reads}" for count, reads in shown)
                        print(f"{seed:5} {name}, {workers} workers: {epochs}{'' if good else '  <-'}", flush=True)
            if not args.audit:
                print(f"{seed:5} found {found} of {of}, {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
