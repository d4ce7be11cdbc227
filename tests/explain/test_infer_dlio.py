"""DLIO's TensorFlow loader: a list of files that is shuffled again each epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.explaining import explaining, simulate


def test_a_list_of_files_that_is_shuffled_anew_each_epoch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dlio_benchmark/utils/config.py, reconfigure: np.random.seed(123 + epoch), np.random.shuffle(file_list)."""
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            files = jobs.manifest.files.tolist()
            for epoch in (1, 2, 3):
                np.random.seed(123 + epoch)
                np.random.shuffle(files)
                for entry in files:
                    await jobs.read(entry, 7)
            (job,) = jobs.running.values()
            assert (job.spec.sampler, job.spec.seed) == ("numpy", 124)
            assert job.spec.reseed
            assert job.spec.in_place
            assert job.score.agreed >= job.score.observed - 40  # those that chose, at the second epoch's start
            assert job.score.observed > 1000

    simulate(body)
