"""mmengine: the samplers of its runners by epochs (DefaultSampler) and by iterations (InfiniteSampler)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

from oracles.case import Case

DISTRIBUTION = "mmengine"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Every other one by iterations; a runner gives its `randomness.seed` to both samplers."""
    import mmengine.dataset.sampler as samplers

    for number in range(count):
        n, world, seed = draw.randint(1, 100), draw.randint(1, 5), draw.choice((0, 42, draw.randrange(1 << 31)))
        shuffle, reads, endless = draw.random() < 0.9, [], bool(number % 2)
        if endless:
            job, options = {"sampler": "composed", "endless": True, "batch_size": draw.randint(1, 8)}, {}
        else:
            options = {"round_up": draw.random() < 0.5}
            job = _by_epochs(shuffle, options["round_up"])
        for rank in range(world):
            with patch.object(samplers, "get_dist_info", lambda told=(rank, world): told):
                kind = samplers.InfiniteSampler if endless else samplers.DefaultSampler
                sampler = kind(range(n), shuffle=shuffle or endless, seed=seed, **options)
            indices: Iterator[int] = iter(sampler)
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                length = -(-n // (world * job["batch_size"])) * job["batch_size"] if endless else None
                reads.append((epoch, rank, list(islice(indices, length)) if endless else list(sampler)))
        yield Case({"seed": seed, "world_size": world, **job}, n, reads)


def _by_epochs(shuffle: bool, round_up: bool) -> dict[str, Any]:
    if round_up:
        return {"sampler": "torch-distributed", "shuffle": shuffle}
    if not shuffle:
        return {"sampler": "composed", "draw": "none"}
    return {"sampler": "composed", "seeding": "seed+epoch"}
