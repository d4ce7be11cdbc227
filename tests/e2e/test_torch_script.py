"""An unmodified torch script over a mount: RandomSampler, a validation loader on one generator, several workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import plain_script, scripts
from support.fuse import wait_until
from support.mounts import MlfsMount

TRAIN, VALIDATION, EPOCHS, SEED = 200, 24, 3, 20261121


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training and validation images, four classes each."""
    for part, count in (("train", TRAIN), ("val", VALIDATION)):
        for index in range(count):
            path = tmp_path / "data" / part / f"class{index % 4}" / f"{part}{index:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(index.to_bytes(4, "big") * 2000)
    return tmp_path / "data"


def run_script(directory: Path, kind: str, workers: int) -> list[list[str]]:
    """The names that the script prints: training, validation, training, ..."""
    words = [str(directory), str(SEED), str(EPOCHS), str(workers), kind]
    done = scripts.run([sys.executable, plain_script.__file__, *words])
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["default", "persistent"])
def test_a_plain_script_reads_in_the_registered_order(data: Path, kind: str) -> None:
    with MlfsMount(data) as mount:
        common = {"epochs": EPOCHS, "batch_size": 8}
        fields = {"sampler": "torch-random", "seed": SEED, "generator": "shared" if kind == "shared" else "default"}
        if kind != "shared":
            plain_script.make_model(SEED)
            fields |= {"words_before": plain_script.words_drawn(SEED)}
            fields |= {"words_between": 2}  # the validation loader's base seed
        if kind == "persistent":
            fields |= {"persistent_workers": True}
        answer = mount.register(name="train", root="train", num_workers=3, **fields, **common)
        mount.register(name="val", root="val", sampler="sequential", num_workers=1, **common)
        seen = run_script(mount.path, kind, 3)
        for epoch in range(EPOCHS):
            order = (mount.path / f".mlfs/order/train/{epoch}/0").read_text().split()
            assert [Path(path).name for path in order] == seen[2 * epoch]
        assert [Path(path).name for path in answer["first_paths"]["0"]] == seen[0][:5]
        wait_until(lambda: all(job["state"] == "finished" for job in mount.status()["jobs"]))
        assert mount.findings() == []
        for job in mount.status()["jobs"]:
            assert job["agreement"] >= 0.999, job
            assert job["ranks"][0]["epoch"] == EPOCHS - 1
