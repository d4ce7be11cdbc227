"""tf.data: list_files, shard and shuffle, in eager passes over one data set; interleave over TFRecord files."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "tensorflow-cpu"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Buffers smaller and larger than the data set, seeds of all kinds, lists of files and of numbers."""
    for _ in range(count):
        n, world = draw.randint(1, 80), draw.choice((1, 1, 2, 3))
        job: dict[str, Any] = {"sampler": "tf-data", "world_size": world}
        job["buffer_size"] = draw.choice((1, 2, 7, n, n + 1, draw.randint(1, 100)))
        seed = draw.choice((0, 1, -3, draw.randrange(1 << 31), draw.randrange(1 << 62)))
        if draw.random() < 0.4:
            job["global_seed"] = draw.choice((0, 42, draw.randrange(1 << 31)))
            if draw.random() < 0.6:
                job["op_seed"] = seed
        else:
            job["seed"] = seed
        job |= {
            field: value
            for field, value in (("reshuffle_each_iteration", False), ("shard_first", False), ("shuffle", False))
            if draw.random() < 0.25
        }
        if draw.random() < 0.3 and ("global_seed" not in job or "op_seed" in job):
            job["list_seed"] = draw.randrange(1 << 31)
        interleave: dict[str, Any] | None = None
        if draw.random() < 0.4:
            cycle = draw.randint(1, 8)
            calls = draw.choice((None, 1, cycle))
            interleave = {"cycle_length": cycle, "block_length": draw.randint(1, 3), "num_parallel_calls": calls}
        yield Case(job, n, _reads(n, job, interleave))


def _reads(n: int, job: dict[str, Any], interleave: dict[str, Any] | None) -> list[tuple[int, int, list[int]]]:
    """What each pass reads. Args: interleave: its arguments: a file is read where its first record comes."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    import tensorflow as tf
    from tensorflow.python.eager import context

    reads = []
    with tempfile.TemporaryDirectory() as root:
        for index in range(n):
            with tf.io.TFRecordWriter(f"{root}/{index:04d}") as file:
                for _ in range(1 + index % 3):
                    file.write(f"{index:04d}")
        for rank in range(job["world_size"]):
            context.context()._set_global_seed(None)
            if "global_seed" in job:
                tf.random.set_seed(job["global_seed"])
            names = tf.data.Dataset.range(n)
            if interleave:
                names = tf.data.Dataset.list_files(f"{root}/*", shuffle=False)
            if "list_seed" in job:
                names = tf.data.Dataset.list_files(f"{root}/*", seed=job["list_seed"])
            shuffled = _pipeline(names, job, rank)
            if interleave:
                shuffled = shuffled.interleave(tf.data.TFRecordDataset, **interleave)
            for epoch in range(3):
                values = shuffled.as_numpy_iterator()
                read = [int(os.path.basename(value)) if isinstance(value, bytes) else int(value) for value in values]
                reads.append((epoch, rank, list(dict.fromkeys(read))))
    return reads


def _pipeline(names: Any, job: dict[str, Any], rank: int) -> Any:
    if job.get("shard_first", True):
        names = names.shard(job["world_size"], rank)
    if job.get("shuffle", True):
        seed = job.get("op_seed") if "global_seed" in job else job["seed"]
        again = job.get("reshuffle_each_iteration", True)
        names = names.shuffle(job["buffer_size"], seed=seed, reshuffle_each_iteration=again)
    return names if job.get("shard_first", True) else names.shard(job["world_size"], rank)
