"""MosaicML's StreamingDataset: one stream that is read once, by its own partition and shuffles."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import distribution
from types import ModuleType

import numpy as np

from oracles.case import Case

DISTRIBUTION = "mosaicml-streaming"
EPOCHS = 2


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """As `generate_work_random_batching` puts them together."""
    for name in ("streaming", "streaming.base"):  # the packages themselves import clients of all clouds
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(distribution(DISTRIBUTION).locate_file(name.replace(".", "/")))]
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    warnings.simplefilter("ignore")
    for _ in range(count):
        shards = [draw.randint(3, 30) for _ in range(draw.randint(2, 8))]
        nodes, ranks, workers, batch = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 5)
        algorithm = draw.choice(("py1e", "py1s", "py2s", "py1br", "naive"))
        canonical, n = draw.choice((nodes, 2 * nodes, 1)), sum(shards)
        block, seed, shuffle = draw.choice((8, 20, 1 << 18)), draw.choice((9176, 0, 42)), draw.random() < 0.9
        reads: list[tuple[int, int, list[int]]] = []
        for epoch in range(EPOCHS):
            ids = get_partitions("relaxed", n, canonical, nodes, ranks, workers, batch)
            if shuffle:
                shuffled = get_shuffle(algorithm, np.array(shards), canonical, seed, epoch, block)
                ids = np.where(ids != -1, shuffled[ids], -1)
            for rank in range(nodes * ranks):
                of_rank = ids[rank // ranks, rank % ranks].transpose(1, 0, 2).ravel()  # workers take batches in turns
                reads.append((epoch, rank, of_rank[of_rank != -1].tolist()))
        job = {
            "sampler": "mosaicml", "world_size": nodes * ranks, "physical_nodes": nodes, "canonical_nodes": canonical,
            "shuffle_algo": algorithm, "block_size": block, "seed": seed, "shuffle": shuffle,
        }  # fmt: skip
        yield Case(job, n, reads, shards)
