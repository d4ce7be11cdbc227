"""webdataset: files that go through shuffle(bufsize, initial, seed=...) or detshuffle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "webdataset"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """detshuffle adds the epoch to its seed."""
    import webdataset

    for _ in range(count):
        n, size, first, seed = draw.randint(0, 120), draw.randint(1, 60), draw.randint(1, 70), draw.randrange(2**40)
        stage = webdataset.detshuffle(bufsize=size, initial=first, seed=seed)
        reads = [(epoch, 0, list(stage.run(iter(range(n))))) for epoch in range(EPOCHS)]
        job: dict[str, Any] = {"draw": "filling-buffer", "generator": "python", "buffer_size": size, "seed": seed}
        yield Case(job | {"buffer_first": first, "seeding": "seed+epoch"}, n, reads)
