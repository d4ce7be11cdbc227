"""Grain's IndexSampler, and the records that a DataLoader takes from it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "grain"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Shards that divide and that don't; where many are asked for, some with more samples than 16 bits count."""
    for at in range(count):
        long = count > 100 and at < 3
        yield _case(draw, (65_537, 66_000, 70_001)[at] if long else draw.randint(1, 120))


def _case(draw: random.Random, n: int) -> Case:
    import grain.python as grain

    world, epochs = draw.randint(1, min(5, n)), draw.randint(1, 4)
    job = {
        "sampler": "grain",
        "world_size": world,
        "seed": draw.choice((0, 1, draw.randrange(1 << 32), (1 << 32) - 1)),
        "shuffle": draw.random() < 0.8,
        "drop_last": draw.random() < 0.4,
    }
    reads = []
    for rank in range(world) if n < 1000 else [draw.randrange(world)]:
        shard = grain.ShardOptions(rank, world, drop_remainder=job["drop_last"])
        sampler = grain.IndexSampler(n, shard, shuffle=job["shuffle"], num_epochs=epochs, seed=job["seed"])
        keys = [sampler[index].record_key for index in range(rank, len(sampler), world)]
        size = n // world + (rank < n % world and not job["drop_last"])
        cuts = [size * epoch for epoch in range(epochs)] + [len(keys)]
        reads += [(epoch, rank, keys[cuts[epoch] : cuts[epoch + 1]]) for epoch in range(epochs)]
    return Case(job, n, reads)
