"""HF datasets: an IterableDataset of one shard that shuffle(seed, buffer_size) has shuffled, in its first epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "datasets"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Examples from a generator, as those of files are."""
    from datasets import IterableDataset

    for _ in range(count):
        n, size, seed = draw.randint(1, 120), draw.randint(1, 150), draw.randrange(2**32)
        rows = IterableDataset.from_generator(_rows, gen_kwargs={"n": n})
        read = [row["index"] for row in rows.shuffle(seed=seed, buffer_size=size)]
        job: dict[str, Any] = {"draw": "buffer", "generator": "numpy", "buffer_size": size, "seeding": "same"}
        yield Case(job | {"seed": seed}, n, [(0, 0, read)])


def _rows(n: int) -> Iterator[dict[str, int]]:
    for index in range(n):
        yield {"index": index}
