"""Paddle's DistributedBatchSampler."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "paddlepaddle"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Sizes that divide and that don't; the epoch counts on by itself."""
    from paddle.io import Dataset, DistributedBatchSampler

    class Numbers(Dataset):  # type: ignore[misc]
        """A data set of a given length."""

        def __init__(self, length: int) -> None:
            self.length = length

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, index: int) -> int:
            return index

    for _ in range(count):
        n, world, batch = draw.randint(1, 150), draw.randint(1, 6), draw.randint(1, 9)
        shuffle, drop_last = draw.random() < 0.8, draw.random() < 0.4
        reads = []
        for rank in range(world):
            sampler = DistributedBatchSampler(Numbers(n), batch, world, rank, shuffle, drop_last)
            for epoch in range(3):
                reads.append((epoch, rank, [int(index) for batch in sampler for index in batch]))
        job = {
            "sampler": "paddle",
            "world_size": world,
            "batch_size": batch,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        yield Case(job, n, reads)
