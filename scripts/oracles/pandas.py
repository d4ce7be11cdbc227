"""pandas and scikit-learn: rows that sample(), shuffle() or train_test_split() shuffle, once or in each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "pandas"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """By both libraries in turn; seeded by random_state, or by np.random.seed before the first epoch."""
    for number in range(count):
        n, seed = draw.randint(2, 100), draw.randrange(2**32)
        drawn = draw.choice((n, n, draw.randint(1, n)))
        seeding = draw.choice(("goes-on", "same", "seed+epoch"))
        if seeding == "seed+epoch":
            seed = min(seed, 2**32 - EPOCHS)
        kind = draw.choice(("permutation", "shuffle"))
        if kind == "shuffle":
            drawn = n
        parts = {"draw": kind, "generator": "numpy-legacy", "seeding": seeding, "num_samples": drawn}
        reads = _read(("pandas", "sklearn")[number % 2], n, drawn, seed, seeding, kind)
        yield Case({"sampler": "composed", "seed": seed, **parts}, n, reads)


def _read(library: str, n: int, drawn: int, seed: int, seeding: str, kind: str) -> list[tuple[int, int, list[int]]]:
    import numpy as np
    import pandas
    from sklearn.utils import shuffle

    rows: Any = pandas.DataFrame({"index": range(n)})
    np.random.seed(seed)
    reads = []
    for epoch in range(EPOCHS):
        state = None if seeding == "goes-on" else seed + epoch * (seeding != "same")
        if library == "pandas":
            read = rows.sample(n=drawn, random_state=state)
        else:
            read = shuffle(rows, random_state=state, n_samples=drawn)
        if kind == "shuffle":
            rows = read
        reads.append((epoch, 0, read["index"].tolist()))
    return reads
