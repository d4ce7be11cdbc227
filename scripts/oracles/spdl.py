"""SPDL: the distributed sampler, shuffled anew in each epoch by its number, as embed_shuffle does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "spdl"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Without weights; a last round that is not full is left out, or dealt."""
    import spdl.source
    from spdl.source.utils import embed_shuffle

    for _ in range(count):
        world = draw.randint(1, 5)
        n, seed, drop = draw.randint(world, 100), draw.choice((None, 0, 42)), draw.random() < 0.5
        drawn = draw.choice((n, n, draw.randint(world, n)))
        reads = []
        for rank in range(world):
            sampler: Any = spdl.source.DistributedRandomSampler(
                n, rank=rank, world_size=world, num_draws=drawn, ddp_drop_last_distributed_round=drop
            )
            shuffled = embed_shuffle(sampler)
            for epoch in range(EPOCHS):
                if seed is not None:
                    sampler.shuffle(seed + epoch)
                reads.append((epoch, rank, [int(index) for index in (shuffled if seed is None else sampler)]))
        count_of_all = drawn // world * world if drop else drawn
        parts = {"draw": "sample", "generator": "numpy", "num_samples": count_of_all}
        seeding = {"seeding": "seed+epoch", "seed": seed or 0}
        yield Case({"sampler": "composed", "world_size": world, **parts, **seeding}, n, reads)
