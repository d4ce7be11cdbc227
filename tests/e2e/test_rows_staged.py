"""A job over rows: an array's rows, read in a sampler's order, are staged ahead of their readers and kept by blocks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

ROWS, ROW_BYTES, EPOCHS = 300, 100_000, 3
TOTAL = ROWS * ROW_BYTES
READER = """
import json, os, random, sys, time
import numpy as np
path, begin, length, order = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
fd = os.open(path, os.O_RDONLY)
sums = []
for row in order:
    data = os.pread(fd, length, begin + row * length)
    sums.append(int(np.frombuffer(data, np.uint8).sum()))
    time.sleep(float(sys.argv[5]))
print(json.dumps(sums))
"""


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows")
    rows = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    np.save(root / "train.npy", rows)
    return root


def begin_of(path: Path) -> int:
    return path.stat().st_size - TOTAL


def orders(seed: int) -> list[list[int]]:
    """What numpy's permutations give, epoch by epoch."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(ROWS).tolist() for _ in range(EPOCHS)]


def read(mount: MlfsMount, order: list[int], pause_s: float = 0.0) -> list[int]:
    """Sums of rows, read by a process of its own."""
    path = mount.path / "train.npy"
    words = [str(path), str(begin_of(path)), str(ROW_BYTES), json.dumps(order), str(pause_s)]
    done = subprocess.run([sys.executable, "-c", READER, *words], check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


def test_rows_are_staged_in_the_order_of_the_sampler_and_the_source_is_read_once(backing: Path, tmp_path: Path) -> None:
    rows = np.load(backing / "train.npy")
    (tmp_path / "mnt").mkdir()
    with (
        SlowSource(backing, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        answer = mount.register(
            name="train", sampler="numpy", seed=5, epochs=EPOCHS, batch_size=4, layout="npy", root="train.npy"
        )
        assert answer["ok"], answer
        assert answer["samples"] == ROWS
        first = orders(5)[0][0]
        assert (
            answer["first_paths"]["0"][0] == f"train.npy\t{begin_of(backing / 'train.npy') + first * ROW_BYTES}\t100000"
        )
        for epoch, order in enumerate(orders(5)):
            wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 50)
            assert read(mount, order, 0.002) == [int(rows[row].sum()) for row in order]
            mount.settle()
            job = mount.status()["jobs"][0]
            assert job["ranks"][0]["position"] in (0, ROWS) or epoch < EPOCHS
            counts = slow.counts()
            print(epoch, counts["bytes"] / TOTAL, job["agreement"], mount.status()["requests"])
            if epoch == 0:
                assert counts["bytes"] <= 1.02 * TOTAL
                slow.control(reset_counts=True)
            else:
                assert counts["bytes"] == 0
        assert job["agreement"] >= 0.98
        assert job["state"] == "finished"
