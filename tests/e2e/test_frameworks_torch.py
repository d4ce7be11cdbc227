"""Unmodified training scripts of frameworks on torch (tests/e2e/frameworks) over a mount: two ranks, several workers.

What is proved: the job as a user registers it predicts nearly every open, and the script sees the source's bytes in the
order in which it would have read them there.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from support import scripts
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import make_classes

from mlfs.job import parse_job
from mlfs.orders.order import build_order

FILES, CLASSES, EPOCHS, RANKS = 243, 3, 3, 2  # neither divides by the ranks' batches: each pads in its own way
SCRIPTS = Path(__file__).parent / "frameworks"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(RANKS)]
JOBS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "train_accelerate.py": (TORCHRUN, {"preset": "accelerate", "use_seedable_sampler": True}),
    "train_lightning.py": ([], {"preset": "lightning"}),
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small ImageFolder."""
    return make_classes(
        tmp_path / "images", FILES, CLASSES, lambda index: index.to_bytes(4, "big") + os.urandom(20_000 + 97 * index)
    )


@pytest.mark.parametrize("script", JOBS)
def test_a_script_is_predicted_and_gets_the_sources_bytes(script: str, images: Path, tmp_path: Path) -> None:
    launcher, fields = JOBS[script]
    job = {"seed": 2024, "epochs": EPOCHS, "batch_size": 8, "world_size": RANKS} | fields
    paths = sorted(images.glob("*/*"))
    checksums = [zlib.crc32(path.read_bytes()) for path in paths]
    with MlfsMount(images) as mount:
        mount.register(**job)
        run([*launcher, str(SCRIPTS / script), str(images), str(tmp_path)])
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished")
        assert mount.findings() == []
        status = mount.status()["jobs"][0]
    order = build_order(parse_job(job), FILES)
    for rank in range(RANKS):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        expected = [[checksums[index] for index in order.rank_stream(epoch, rank)] for epoch in range(EPOCHS)]
        assert seen == expected
    assert status["agreement"] >= 0.999, status


def run(words: list[str]) -> None:
    """Run a script as its user would; its output is shown if it fails."""
    # Whatever the machine is called and connected to: the ranks talk over the loopback device.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    scripts.run([sys.executable, *words], env=environment)
