"""torchdata's StatefulDataLoader with workers, which nobody registered: of two permutations the second one is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.explaining import FILES, explaining, order_of, simulate
from test_going_on import FIRST_OF_WORKERS, both, read_epoch, validate

from mlfs.explain.usual import POPULAR_SEEDS


@pytest.mark.parametrize(("generator", "persistent"), [("default", False), ("shared", True), ("own", False)])
def test_a_stateful_loader_with_workers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generator: str, persistent: bool
) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    draw = random.Random(f"stateful {generator} {persistent}")
    workers, seed = draw.choice((2, 3)), draw.choice(POPULAR_SEEDS[:16])
    true = {"sampler": "torch-stateful", "root": "train", "generator": generator, "seed": seed, "num_workers": workers}
    true |= {"persistent_workers": True} if persistent else {}

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=both(tmp_path / "data")) as (jobs, _):
            for epoch in range(3):
                order = list(order_of(jobs.manifest, epoch, **true))
                predicted = await read_epoch(jobs, order, workers, 10 if persistent else 100 * epoch + 10)
                await validate(jobs, 0, 0)
                assert predicted >= FILES - (FIRST_OF_WORKERS if epoch > 1 else 60 if epoch else 120), epoch
            spec = jobs.running["inferred"].spec
            assert (spec.sampler, spec.generator, spec.seed) == ("torch-stateful", generator, seed)
            assert bool(spec.persistent_workers) == persistent

    simulate(body)
