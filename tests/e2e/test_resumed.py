"""Trainings that end in the middle of an epoch and go on, as torch, torchdata, accelerate and mlfs' own sampler do it:
the mount follows them with the registration that it has, and the auditor says nothing of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.mounts import MlfsMount
from support.trees import make_classes

FILES, STEPS = 1200, 20
SCRIPT = Path(__file__).parent / "frameworks" / "resume_script.py"
TORCH = {"sampler": "torch-distributed"}
ACCELERATE = {"preset": "accelerate", "use_seedable_sampler": True}
# How it goes on, the ranks before and after, what is registered, samples of epoch 1 that the second run reads,
# epochs in all: on a busy machine half an epoch of so few files is read before another number of ranks is found.
WAYS: dict[str, tuple[int, int, dict[str, Any], int, int]] = {
    "epoch": (2, 2, TORCH, FILES, 3),  # set_epoch(1), from the beginning of the epoch
    "stateful": (2, 2, TORCH, FILES - STEPS * 24, 3),
    "accelerate": (1, 1, ACCELERATE, FILES - STEPS * 24, 3),
    "elastic": (2, 3, TORCH, FILES - STEPS * 24, 4),
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small files in class directories."""
    return make_classes(tmp_path / "images", FILES, 3, lambda index: index.to_bytes(4, "big") * 500)


class Script:
    """A training in several processes.

    Args:
        how, state, epochs: see the script. seed: the sampler's.
    """

    def __init__(self, how: str, world: int, mount: MlfsMount, state: Path, epochs: int, seed: int = 2024) -> None:
        words = [sys.executable, str(SCRIPT), how, str(mount.path), str(state), str(STEPS), str(epochs)]
        told = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "SEED": str(seed)}
        own = [os.environ | told | {"RANK": str(rank)} for rank in range(world)]
        self.ranks = [subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) for env in own]

    def read(self) -> dict[int, list[int]]:
        """The samples that all ranks have read, by epoch, once they have ended."""
        read: dict[int, list[int]] = {}
        for rank in self.ranks:
            out, _ = rank.communicate(timeout=240)
            assert rank.returncode == 0, out
            for epoch, samples in json.loads(out.splitlines()[-1]).items():
                read.setdefault(int(epoch), []).extend(samples)
        return read


@pytest.mark.parametrize("how", WAYS)
def test_a_run_that_goes_on_is_followed(how: str, images: Path, tmp_path: Path) -> None:
    before, after, fields, rest, epochs = WAYS[how]
    state = tmp_path / "state"
    job = {"seed": 2024, "epochs": epochs, "batch_size": 24 // before, "world_size": before} | fields
    with MlfsMount(images) as mount:
        mount.register(**job)
        first = Script(how, before, mount, state, epochs).read()
        mount.settle()
        state.touch()
        second = Script(how, after, mount, state, epochs).read()
        mount.settle()
        [status] = mount.status()["jobs"]
        findings = mount.findings()
    assert len(first[1]) == STEPS * 24
    assert len(second[1]) == rest
    assert sorted(second[2]) == list(range(FILES))
    if rest < FILES:
        assert sorted(first[1] + second[1]) == list(range(FILES))
    assert status["agreement_by_epoch"][str(epochs - 1)]["agreement"] >= 0.95, status
    assert ["world size is 3, not 2" in found for found in status["found_out"]] == [True] * (before != after)
    assert findings == []


def test_a_sweep_reads_the_source_once(images: Path, tmp_path: Path) -> None:
    """Runs with other seeds, one after another and at once, that nobody has registered."""
    begins = tmp_path / "begins"
    begins.touch()
    begins.with_suffix(".0").write_text(json.dumps({"epoch": 0}))
    with MlfsMount(images, "--ram", "64M", infer=True) as mount:
        for seeds in ((1,), (2, 3)):
            runs = [Script("epoch", 1, mount, begins, 2, seed) for seed in seeds]
            assert all(sorted(epoch) == list(range(FILES)) for run in runs for epoch in run.read().values())
            mount.settle()
            assert mount.status()["fetches"]["pfs"]["count"] == FILES
