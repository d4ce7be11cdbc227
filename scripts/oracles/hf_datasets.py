"""HF datasets: Dataset.shuffle, once or again and again, and split_dataset_by_node."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "datasets"
EPOCHS = 4


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """The data set is a column of its own indices; one that is shorter than the world cannot be split."""
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    for _ in range(count):
        n, world, seed = draw.randint(5, 100), draw.randint(1, 5), draw.choice([0, 42, draw.randrange(2**40)])
        reseed, in_place = draw.random() < 0.5, draw.random() < 0.5
        base = Dataset.from_dict({"index": list(range(n))})
        shuffled, reads = base, []
        for epoch in range(EPOCHS):
            shuffled = (shuffled if in_place else base).shuffle(seed=seed + (epoch if reseed else 0))
            for rank in range(world):
                part = split_dataset_by_node(shuffled, rank, world) if world > 1 else shuffled
                reads.append((epoch, rank, [int(index) for index in part["index"]]))
        job = {"sampler": "hf-datasets", "world_size": world, "seed": seed, "reseed": reseed, "in_place": in_place}
        yield Case(job, n, reads)
