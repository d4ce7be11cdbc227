"""Lightning's DistributedSampler, as its Trainer makes it for several devices and sets its epoch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oracles.case import Case

DISTRIBUTION = "lightning"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """With and without seed_everything, which leaves the seed in PL_GLOBAL_SEED."""
    from lightning.fabric.utilities.data import _set_sampler_epoch
    from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler
    from torch.utils.data import DataLoader

    for _ in range(count):
        n, world, shuffle = draw.randint(1, 120), draw.randint(2, 6), draw.random() < 0.8
        job: dict[str, Any] = {"preset": "lightning", "world_size": world, "shuffle": shuffle}
        os.environ.pop("PL_GLOBAL_SEED", None)
        if draw.random() < 0.7:
            job["seed"] = draw.randrange(2**32)
            os.environ["PL_GLOBAL_SEED"] = str(job["seed"])
        loader = DataLoader(range(n), shuffle=shuffle)
        reads = []
        for rank in range(world):
            sampler = _get_distributed_sampler(loader, shuffle, overfit_batches=0, num_replicas=world, rank=rank)
            for epoch in range(3):
                _set_sampler_epoch(SimpleNamespace(sampler=sampler), epoch)
                reads.append((epoch, rank, [int(index) for index in sampler]))
        yield Case(job, n, reads)
