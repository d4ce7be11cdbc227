"""jax.random's permutations, as loops draw them: by keys that are split or folded, or made anew in each epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "jax"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """All draws with all ways to seed; seeds at the ends of what 32 bits hold."""
    for _ in range(count):
        yield _case(draw)


def _case(draw: random.Random) -> Case:
    from jax import random as jax

    n, world, epochs = draw.randint(1, 120), draw.randint(1, 4), 3
    seed = draw.choice((0, 1, 42, draw.randrange(1 << 31), -draw.randrange(1 << 31)))
    seeding = draw.choice(("same", "fold-in", "split", "seed+epoch"))
    kind = draw.choice(("permutation", "shuffle", "sample", "with-replacement"))
    count = n if kind == "shuffle" else draw.randint(1, n)
    job = {
        "sampler": "composed",
        "generator": "jax",
        "seed": seed,
        "draw": kind,
        "seeding": seeding,
        "num_samples": count,
        "world_size": world,
    }
    key: Any = jax.key(seed)
    values: Any = list(range(n))
    reads = []
    for epoch in range(epochs):
        if seeding == "split":
            key, drawing = jax.split(key)
        elif seeding == "fold-in":
            drawing = jax.fold_in(key, epoch)
        else:
            drawing = jax.key(seed + epoch) if seeding == "seed+epoch" else key
        values = _drawn(jax, drawing, kind, n, count, values)
        reads += [(epoch, rank, values[rank::world]) for rank in range(world)]
    return Case(job, n, reads)


def _drawn(jax: Any, key: Any, kind: str, n: int, count: int, before: list[int]) -> list[int]:
    import jax.numpy as jnp

    if kind == "permutation":
        return jax.permutation(key, n).tolist()[:count]
    if kind == "shuffle":
        return jax.permutation(key, jnp.array(before)).tolist()
    return jax.choice(key, n, (count,), replace=kind == "with-replacement").tolist()
