"""polars: all rows as sample() shuffles them, by a seed in each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator

from oracles.case import Case

DISTRIBUTION = "polars"
EPOCHS = 2


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Few rows, and more than one number of 32 bits draws partners for."""
    import polars

    for number in range(count):
        n = (draw.randint(1, 60), draw.randint(60, 400))[number % 2]
        seed, seeding = draw.randrange(2**63), draw.choice(("same", "seed+epoch"))
        rows, reads = polars.int_range(n, eager=True), []
        for epoch in range(EPOCHS):
            mine = seed + epoch * (seeding != "same")
            reads.append((epoch, 0, rows.sample(fraction=1, shuffle=True, seed=mine).to_list()))
        yield Case({"generator": "polars", "seeding": seeding, "draw": "permutation", "seed": seed}, n, reads)
