"""Registered compositions that are read unusually: streams without an end, samples in turn, samples in memory."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.explaining import explaining, simulate

from mlfs.orders.layouts.layout import NOTHING

EPOCHS, MAIN = 5, 1000


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        ({"endless": True, "batch_size": 8}, 2),  # 75 steps an epoch: the second one begins with the other worker
        ({"endless": True, "batch_size": 16}, 4),
        ({"endless": True, "batch_size": 7, "world_size": 2}, 2),
        ({"endless": True, "batch_size": 8, "worker_dealing": "samples", "num_workers": 3}, 3),
        ({"draw": "permutation", "batch_size": 8, "cached_samples": 250, "num_workers": 2}, 2),
    ],
)
def test_reads_are_predicted(tmp_path: Path, fields: dict[str, Any], workers: int) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            job = await jobs.register(name="train", seed=42, epochs=EPOCHS, **fields)
            batch = job.spec.batch_size
            by_rank, reads = [], 0
            for rank in range(job.spec.world_size):
                read = np.concatenate([job.streams.epoch_ids(epoch, rank) for epoch in range(EPOCHS)])
                read = np.append(read, np.full(-len(read) % (batch * workers), NOTHING))
                # The workers live on, take batches in turn, and read one sample each before the next one.
                turns = read.reshape(-1, workers, batch).transpose(0, 2, 1).reshape(-1, workers)
                main = MAIN * (rank + 1)
                by_rank.append(
                    [(entry, main + 1 + at, main) for turn in turns.tolist() for at, entry in enumerate(turn)]
                )
            for together in zip_longest(*by_rank):
                for entry, worker, parent in filter(None, together):
                    if entry != NOTHING:
                        await jobs.read(entry, worker, parent)
                        reads += 1
            assert list(jobs.running.values()) == [job]
            # A batch with holes says less of where an epoch begins: a read there may come before that is known.
            missed = EPOCHS - 1 if "cached_samples" in fields else 0
            assert reads - missed <= job.score.agreed <= reads

    simulate(body)
