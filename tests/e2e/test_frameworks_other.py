"""Unmodified scripts of tf.data, Grain and DALI over a mount: what they read is what was predicted.

The libraries are big: each script is a process of its own, and only what CI installs runs in every test run (Grain);
the others have the marker `oracle`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import mounts
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import make_classes

SCRIPTS = Path(__file__).parent / "frameworks"
FILES, CLASSES, EPOCHS, SEED = 800, 4, 3, 20261121
AGREEMENT = 0.999


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Files in class directories; each begins with its own number."""
    return make_classes(
        tmp_path / "images", FILES, CLASSES, lambda index: index.to_bytes(4, "little") + os.urandom(2000 + index)
    )


def run_script(name: str, *words: object) -> list[int]:
    """What a script prints."""
    command = [sys.executable, SCRIPTS / name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def predicted(mount: MlfsMount) -> list[int]:
    """The numbers that the order shown for the job begins with, epoch by epoch."""
    orders = [(mount.path / f".mlfs/order/train/{epoch}/0").read_text().split() for epoch in range(EPOCHS)]
    return [int(Path(path).stem) for order in orders for path in order]


def check(mount: MlfsMount, most_ahead: int = 0) -> None:
    """The opens of the script were known before."""

    def job() -> dict[str, Any]:
        found: dict[str, Any] = mount.status()["jobs"][0]
        return found

    # Where the kernel tells of opens, those of a file by one process within some milliseconds may be one.
    fewest = (0.9 if mounts.CHANNEL == "silent" else 1) * EPOCHS * FILES
    assert wait_until(lambda: job()["observed_opens"] >= fewest, 60), job()
    assert mount.findings() == []
    assert fewest <= job()["observed_opens"] <= EPOCHS * FILES + most_ahead
    assert job()["agreement"] >= AGREEMENT, job()
    assert job()["ranks"][0]["agreement"] >= AGREEMENT, job()


def test_grain(images: Path) -> None:
    with MlfsMount(images) as mount:
        mount.register(sampler="grain", seed=SEED, epochs=EPOCHS, batch_size=8)
        listed = os.listdir(mount.path / "class0")
        assert listed == sorted(listed)  # readdir goes by the bytes of names: timm's layout rests on it
        seen = run_script("grain_script.py", mount.path, SEED, EPOCHS)
        order = predicted(mount)  # worker w takes every second sample from w on, and the workers' batches come in turn
        batches = np.array(order).reshape(-1, 8, 2).transpose(0, 2, 1)
        assert seen == batches.reshape(-1).tolist()
        check(mount)


@pytest.mark.oracle
def test_tf_data(images: Path) -> None:
    with MlfsMount(images) as mount:
        fields = {"layout": "tf-list-files", "pattern": "*/*.jpg", "sampler": "tf-data", "buffer_size": 500}
        mount.register(seed=SEED, epochs=EPOCHS, batch_size=32, **fields)
        assert run_script("tf_data_script.py", mount.path, SEED, EPOCHS) == predicted(mount)
        check(mount)


@pytest.mark.oracle
def test_dali(images: Path) -> None:
    with MlfsMount(images) as mount:
        # The pipeline reads ahead over the end of the last epoch that the script looks at.
        mount.register(layout="dali", sampler="dali", shuffle_after_epoch=True, epochs=EPOCHS + 1, batch_size=16)
        assert run_script("dali_script.py", mount.path, EPOCHS) == predicted(mount)
        check(mount, most_ahead=4 * 16)
