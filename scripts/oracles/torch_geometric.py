"""PyTorch Geometric: DataLoader(shuffle=True) over graphs after seed_everything."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "torch-geometric"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """A validation loader takes two words an epoch."""
    import torch
    from torch_geometric import seed_everything
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    for _ in range(count):
        n, seed, before, validates = (
            draw.randint(1, 80),
            draw.randrange(2**32),
            draw.randint(0, 99),
            draw.random() < 0.5,
        )
        graphs = [Data(num_nodes=1, number=index) for index in range(n)]
        seed_everything(seed)
        torch.rand(before)
        loader, validation = DataLoader(graphs, draw.randint(1, 9), shuffle=True), DataLoader(graphs, 64)
        reads = []
        for epoch in range(EPOCHS):
            reads.append((epoch, 0, [int(index) for batch in loader for index in batch.number]))
            if validates:
                list(validation)
        job = {"sampler": "torch-random", "seed": seed, "words_before": before, "words_between": 2 * validates}
        yield Case(job, n, reads)
