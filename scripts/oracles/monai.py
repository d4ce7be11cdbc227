"""MONAI: its DataLoader without workers seeds torch's generator anew when it is made; weights; cached samples."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "monai"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """A model is made before the loader or after it."""
    import torch
    from monai.data import DataLoader, Dataset
    from monai.utils import set_determinism

    for _ in range(count):
        n, seed, before, after = draw.randint(1, 100), draw.randrange(2**32), draw.randint(0, 99), draw.randint(0, 99)
        validates = draw.random() < 0.5
        set_determinism(seed)
        torch.rand(before)
        loader = DataLoader(Dataset(list(range(n))), batch_size=draw.randint(1, 9), shuffle=True)
        validation = DataLoader(Dataset(list(range(9))), batch_size=4)
        torch.rand(after)
        reads = []
        for epoch in range(EPOCHS):
            reads.append((epoch, 0, [int(index) for rows in loader for index in rows]))
            if validates:
                list(validation)
        job: dict[str, Any] = {"sampler": "torch-random", "seed": seed, "words_before": after}
        yield Case(job | {"words_between": 2 * validates}, n, reads)
