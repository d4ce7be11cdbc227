"""timm's RepeatAugSampler. Its module is loaded alone: the package around it needs torchvision."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Any

from oracles.case import Case

DISTRIBUTION = "timm"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Whole and broken repeats, rounds and ratios."""
    sampler = _module().RepeatAugSampler
    for _ in range(count):
        n, world = draw.choice([draw.randint(1, 60), draw.randint(200, 600)]), draw.randint(1, 8)
        job: dict[str, Any] = {"shuffle": draw.random() < 0.8}
        if draw.random() < 0.6:
            job["repeats"] = draw.choice([1, 2, 4, 1.5, 2.25, 3.1])
        if draw.random() < 0.5:
            job["selected_round"] = draw.choice([0, 7, 32, 256])
        if draw.random() < 0.4:
            job["selected_ratio"] = draw.choice([0, 1, 2, 3.5])
        ranks = [_sampler(sampler, n, world, rank, job) for rank in range(world)]
        reads = []
        for epoch in range(2):
            for rank in {0, world - 1}:
                ranks[rank].set_epoch(epoch)
                reads.append((epoch, rank, [int(index) for index in ranks[rank]]))
        yield Case({"sampler": "timm-repeat-aug", "world_size": world, **job}, n, reads)


def _sampler(kind: Any, n: int, world: int, rank: int, job: dict[str, Any]) -> Any:
    options = {("num_repeats" if field == "repeats" else field): value for field, value in job.items()}
    return kind(range(n), num_replicas=world, rank=rank, **options)


def _module() -> Any:
    try:
        path = distribution("timm").locate_file("timm/data/distributed_sampler.py")
    except ImportError as error:  # PackageNotFoundError is one
        raise ImportError("timm is not installed") from error
    spec = importlib.util.spec_from_file_location("timm_sampler", str(path))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
