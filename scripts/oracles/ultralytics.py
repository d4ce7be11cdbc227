"""Ultralytics: the loader that build_dataloader makes on one process, whose only iterator goes on over all epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "ultralytics"
EPOCHS = 3
# What the library adds to a generator's seed, and the rank of a single process.
BUILT_IN = 6148914691236517205 - 1


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Seeds of the trainer (0 by default), and with other words drawn from the default generator."""
    import torch
    from ultralytics.data.build import build_dataloader
    from ultralytics.utils.torch_utils import init_seeds

    for _ in range(count):
        n, batch, seed = draw.randint(2, 100), draw.randint(1, 9), draw.choice((0, 0, 42))
        init_seeds(seed, deterministic=False)
        torch.rand(draw.randint(0, 99))
        loader = build_dataloader(range(n), batch, 0, shuffle=True, rank=-1)
        reads = [(epoch, 0, [int(index) for rows in loader for index in rows]) for epoch in range(EPOCHS)]
        job = {"sampler": "torch-random", "generator": "shared", "persistent_workers": True, "seed": BUILT_IN + seed}
        yield Case(job, n, reads)
