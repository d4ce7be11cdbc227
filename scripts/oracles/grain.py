"""Grain's IndexSampler, and the records that a DataLoader takes from it; a MapDataset that is shuffled."""

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
        if at % 3 == 0:
            yield _of_map(draw, draw.randint(1, 120))


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


def _of_map(draw: random.Random, n: int) -> Case:
    """A rank slices what was shuffled, or shuffles a slice of its own; repeat() goes on to the next epoch's order."""
    import grain.python as grain

    world, seed = draw.randint(1, min(3, n)), draw.choice((0, 42, draw.randrange((1 << 32) - 3)))
    job = {"generator": "grain", "seeding": "seed+epoch", "seed": seed, "world_size": world}
    own = draw.random() < 0.5
    if own:
        job["shard_first"] = True
    reads = []
    for rank in range(world):
        data = grain.MapDataset.source(range(n))
        data = data[rank::world].shuffle(seed=seed) if own else data.shuffle(seed=seed)[rank::world]
        repeated = data.repeat(2)
        reads += [
            (epoch, rank, [int(repeated[epoch * len(data) + at]) for at in range(len(data))]) for epoch in range(2)
        ]
    return Case(job, n, reads)
