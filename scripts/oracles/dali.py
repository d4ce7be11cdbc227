"""DALI's readers.file, in a pipeline on the CPU. What it opens is seen by the labels, with a buffer of one sample."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "nvidia-dali-cuda120"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Shards that divide and that don't; where many are asked for, one case with more samples than 16 bits count."""
    yield from (_case(draw, draw.randint(1, 60)) for _ in range(count - 1))
    yield _case(draw, draw.randint(66_000, 70_000) if count > 100 else draw.randint(300, 600))


def _case(draw: random.Random, n: int) -> Case:
    job: dict[str, Any] = {"sampler": "dali", "world_size": draw.randint(1, min(4, n))}
    kind = draw.choice(("", "shuffle", "shuffle_after_epoch", "shuffle_after_epoch"))
    if kind:
        job[kind] = True
    if kind != "shuffle_after_epoch" and draw.random() < 0.4:
        job["stick_to_shard"] = True
    seed = draw.choice((None, draw.randint(0, 1 << 40)))  # it must not matter
    ranks = range(job["world_size"]) if n < 1000 else [draw.randrange(job["world_size"])]
    reads = []
    for rank in ranks:
        labels = _labels(n, job, rank, seed)
        for epoch in range(3):
            shard = rank if job.get("stick_to_shard") or kind == "shuffle_after_epoch" else rank + epoch
            shard %= job["world_size"]
            size = n * (shard + 1) // job["world_size"] - n * shard // job["world_size"]
            reads.append((epoch, rank, [next(labels) for _ in range(size)]))
    return Case(job, n, reads)


def _labels(n: int, job: dict[str, Any], rank: int, seed: int | None) -> Iterator[int]:
    """The labels that one reader hands out, without end."""
    from nvidia.dali import fn, pipeline_def

    words = {
        "random_shuffle": job.get("shuffle", False),
        "shuffle_after_epoch": job.get("shuffle_after_epoch", False),
        "stick_to_shard": job.get("stick_to_shard", False),
    }
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()

        @pipeline_def(batch_size=1 if n < 1000 else 256, num_threads=1, device_id=None)
        def pipeline():
            files = [file.name] * n
            return fn.readers.file(
                files=files, labels=list(range(n)), initial_fill=1, num_shards=job["world_size"], shard_id=rank,
                **({} if seed is None else {"seed": seed}), **words,
            )[1]  # fmt: skip

        built = pipeline()
        built.build()
        while True:
            (labels,) = built.run()
            yield from (int(label) for label in labels.as_array().reshape(-1))
