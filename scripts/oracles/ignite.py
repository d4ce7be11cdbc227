"""ignite: DeterministicEngine, which draws a seed once and seeds torch anew with it in each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "pytorch-ignite"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """A model takes words before the engine runs, and each step takes some."""
    import torch
    from ignite.engine import DeterministicEngine
    from ignite.utils import manual_seed
    from torch.utils.data import DataLoader

    for _ in range(count):
        n, seed, before = draw.randint(2, 90), draw.choice((0, 42, draw.randrange(2**31))), draw.randint(0, 99)
        manual_seed(seed)
        torch.rand(before)
        read: list[list[int]] = [[] for _ in range(EPOCHS)]

        def step(engine: Any, batch: Any, read: list[list[int]] = read) -> None:
            read[engine.state.epoch - 1].extend(batch.tolist())
            torch.rand(1)

        loader = DataLoader(range(n), draw.randint(1, 9), shuffle=True)  # type: ignore[arg-type,var-annotated]
        DeterministicEngine(step).run(loader, max_epochs=EPOCHS)
        job = {"sampler": "composed", "generator": "default", "seeding": "seed+epoch", "seed": seed}
        job |= {"seed_drawn_by": "torch", "seed_below": 10**9, "words_before": before}
        yield Case(job, n, [(epoch, 0, indices) for epoch, indices in enumerate(read)])
