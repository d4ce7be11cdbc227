"""torchvision's reference RASampler, which is in no wheel: $RA_SAMPLER names a copy of its file.

references/classification/sampler.py of pytorch/vision; the version recorded is the release that was looked at.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

VERSION = "references/classification/sampler.py at 775e7604"
DISTRIBUTION = "torchvision"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Sets around the rounding to 256, seeds, repetitions."""
    sampler = _module().RASampler
    for _ in range(count):
        n, world = draw.choice([draw.randint(30, 255), draw.randint(256, 700)]), draw.randint(1, 8)
        seed, repeats, shuffle = draw.choice([0, draw.randrange(2**40)]), draw.choice([3, 1, 2, 4]), draw.random() < 0.8
        reads = []
        for rank in {0, world - 1}:
            ours = sampler(range(n), world, rank, shuffle, seed, repeats)
            for epoch in range(2):
                ours.set_epoch(epoch)
                reads.append((epoch, rank, [int(index) for index in ours]))
        job: dict[str, Any] = {"sampler": "ra-sampler", "world_size": world, "shuffle": shuffle, "seed": seed}
        if repeats != 3:
            job["repeats"] = repeats
        yield Case(job, n, reads)


def _module() -> Any:
    path = os.environ.get("RA_SAMPLER", "")
    spec = importlib.util.spec_from_file_location("ra_sampler", path) if os.path.exists(path) else None
    if spec is None or spec.loader is None:
        raise ImportError("set RA_SAMPLER to a copy of pytorch/vision's references/classification/sampler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
