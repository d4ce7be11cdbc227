"""fastai: the training loader of DataLoaders over a random split or none, after set_seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "fastai"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """A validation loader is read after each epoch, by a generator of its own."""
    from fastai.basics import DataLoaders, Datasets, RandomSplitter, set_seed

    for _ in range(count):
        n, seed, split_seed = draw.randint(30, 120), draw.choice((0, 42, draw.randrange(2**31))), draw.choice((None, 7))
        options: dict[str, Any] = {"bs": draw.choice((4, 8)), "num_workers": 0, "drop_last": False}
        set_seed(seed)
        if split_seed is None:
            loaders = DataLoaders.from_dsets(list(range(n)), list(range(9)), **options)
        else:
            splits = RandomSplitter(valid_pct=0.2, seed=split_seed)(range(n))
            loaders = Datasets(list(range(n)), [[_kept]], splits=splits).dataloaders(**options)
        reads = []
        for epoch in range(EPOCHS):
            batches = (batch[0] if isinstance(batch, tuple) else batch for batch in loaders.train)
            reads.append((epoch, 0, [int(index) for batch in batches for index in batch]))
            list(loaders.valid)
        job: dict[str, Any] = {"sampler": "composed", "generator": "python", "draw": "sample", "seed": seed}
        job |= {"seeding": "drawn", "seed_drawn_by": "python", "seed_below": 2**32}
        if split_seed is not None:
            validation = int(0.2 * n)
            job |= {"split": [validation, n - validation], "split_seed": split_seed, "part": 1}
        yield Case(job, n, reads)


def _kept(index: int) -> int:
    return index
