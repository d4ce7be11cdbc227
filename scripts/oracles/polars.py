"""polars: rows that sample() or shuffle() draws, all of them or fewer, by a seed in each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "polars"
EPOCHS = 2


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Samples of few, of many and of hundreds, which rand draws in three ways."""
    import polars

    for number in range(count):
        n = (draw.randint(1, 60), draw.randint(60, 400), draw.randint(20_000, 60_000))[number % 3]
        drawn = draw.choice((draw.randint(1, n), draw.randint(1, min(n, 200)), min(n, 170)))
        seed, shuffle, seeding = draw.randrange(2**63), draw.random() < 0.6, draw.choice(("same", "seed+epoch"))
        rows, reads = polars.int_range(n, eager=True), []
        for epoch in range(EPOCHS):
            mine = seed + epoch * (seeding != "same")
            reads.append((epoch, 0, rows.sample(n=min(drawn, 500), shuffle=shuffle, seed=mine).to_list()))
        job: dict[str, Any] = {"generator": "polars", "seeding": seeding, "num_samples": min(drawn, 500), "seed": seed}
        yield Case(job | {"draw": "sample" if shuffle else "sorted-sample"}, n, reads)
