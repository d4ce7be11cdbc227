"""lhotse: SimpleCutSampler over cuts in memory, batches of so many cuts from a list that Python shuffles."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "lhotse"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Batches are dealt to ranks in turn."""
    from lhotse import CutSet
    from lhotse.dataset import SimpleCutSampler
    from lhotse.testing.dummies import dummy_cut

    for _ in range(count):
        n, world, batch = draw.randint(1, 100), draw.randint(1, 4), draw.randint(1, 9)
        seed = draw.choice((0, 42, draw.randrange(1 << 31)))
        drop = draw.random() < 0.5 if world == 1 else True
        cuts = CutSet.from_cuts(dummy_cut(index) for index in range(n))
        reads = []
        for rank in range(world):
            sampler = SimpleCutSampler(
                cuts, max_cuts=batch, shuffle=True, seed=seed, drop_last=drop, world_size=world, rank=rank
            )
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                read = [int(cut.id.rsplit("-", 1)[1]) for cuts_of_batch in sampler for cut in cuts_of_batch]
                reads.append((epoch, rank, read))
        parts = {"generator": "python", "seeding": "seed+epoch", "dealing": "batches", "drop_last": drop}
        job = {"sampler": "composed", "seed": seed, "batch_size": batch, "world_size": world, **parts}
        yield Case(job, n, reads)
