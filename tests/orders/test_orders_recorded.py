"""Orders recorded from the real libraries (scripts/record_orders.py), and fresh ones, against the samplers here.

The recorded ones are checked in every run, whether the library is installed or not. Marker `oracle`: many more cases
from the library itself, each in a process of its own, as frameworks don't like each other's company. Who asks for them
gets a failure, not a skip, for a library that is not there: it says what to install.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from orders_support import job

from mlfs.orders.order import build_order
from mlfs.orders.split import part_indices

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
SCRIPT = Path(__file__).parents[2] / "scripts" / "record_orders.py"
ORACLES = sorted(
    path.stem for path in (SCRIPT.parent / "oracles").glob("*.py") if path.stem not in ("__init__", "case")
)


class Shards:
    """The files that samples lie in, or the samples that files hold."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def __call__(self, path: bytes) -> int:
        return -1

    def files(self) -> np.ndarray:
        return np.repeat(np.arange(len(self._sizes)), self._sizes)

    def counts(self) -> np.ndarray:
        return np.array(self._sizes)


def check(path: Path) -> int:
    """Compare each case of a file; how many there were."""
    told = json.loads(path.read_text())
    for case in told["cases"]:
        epochs = 1 + max(epoch for epoch, _, _ in case["reads"])
        spec = job(epochs=epochs, **case["job"])
        part = part_indices(spec, case["n_samples"])
        resolve = Shards(case["shards"]) if "shards" in case else None
        order = build_order(spec, case["n_samples"] if part is None else len(part), resolve)
        for epoch, rank, indices in case["reads"]:
            stream = order.rank_stream(epoch, rank)
            read = (stream if part is None else part[stream]).tolist()
            where = f"{told['library']} {told['version']}: {case['job']}, {case['n_samples']} samples, {epoch=} {rank=}"
            assert read == indices, where
            assert len(read) <= order.stream_length(epoch), where
    return len(told["cases"])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_recorded_orders_are_predicted(path: Path) -> None:
    assert check(path) >= 5


def test_each_library_has_a_record() -> None:
    assert [path.stem for path in RECORDED] == ORACLES


@pytest.mark.oracle
@pytest.mark.parametrize("library", ORACLES)
def test_a_library_itself_is_predicted(library: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        command = [sys.executable, SCRIPT, library, "--seed", str(seed), "--cases", "150", "--out", tmp_path]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert check(tmp_path / f"{library}.json") >= 150
