"""detectron2: the training loader, whose stream of samples has no end. From source: it is in no package registry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any
from unittest.mock import patch

from oracles.case import Case

DISTRIBUTION = "detectron2"
VERSION = "0.6"  # that is what main has said since 2021; recorded with 02b5c4e2 of 2026
EPOCHS = 4


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """With a seed of the sampler's own, or with the one that numpy draws after cfg.SEED; some with workers."""
    import numpy as np
    from detectron2.data.common import ToIterableDataset
    from detectron2.data.samplers import TrainingSampler
    from detectron2.utils import comm
    from torch.utils.data import DataLoader

    for number in range(count):
        n, world, batch = draw.randint(2, 100), draw.randint(1, 4), draw.randint(2, 8)
        seed, drawn = draw.choice((0, 42, draw.randrange(2**31))), draw.random() < 0.5
        steps, reads = -(-n // (batch * world)), []
        told = {"get_world_size": lambda world=world: world, "all_gather": lambda one: [one]}
        for rank in range(world):
            np.random.seed(seed)  # of rank 0, whose draw all ranks take
            with patch.multiple(comm, get_rank=lambda rank=rank: rank, **told):
                sampler = TrainingSampler(n, seed=None if drawn else seed)
            rows = ToIterableDataset(list(range(n)), sampler, shard_chunk_size=batch)
            batches = iter(DataLoader(rows, batch, num_workers=2 * (number % 5 == 0), collate_fn=list))
            for epoch in range(EPOCHS):
                reads.append((epoch, rank, [int(index) for rows in islice(batches, steps) for index in rows]))
        job: dict[str, Any] = {"sampler": "composed", "endless": True, "seed": seed}
        job |= {"seed_drawn_by": "numpy-legacy", "seed_below": 2**31} if drawn else {}
        yield Case(job | {"world_size": world, "batch_size": batch}, n, reads)
