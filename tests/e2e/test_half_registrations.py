"""Scripts that draw from the generator that shuffles, registered without a word of it, over a real mount."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import drawing_script, scripts
from support.fuse import wait_until
from support.mounts import MlfsMount

pytestmark = pytest.mark.page_counts

TRAIN, VALIDATION, EPOCHS = 300, 24, 3
WAIT_S = 120.0
RESNET18_WORDS = 22_300_000
SMALL_MODEL_WORDS = 2_300_000  # still further than the million words that are looked through first


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training and validation images, four classes each."""
    for part, count in (("train", TRAIN), ("val", VALIDATION)):
        for index in range(count):
            path = tmp_path / "data" / part / f"class{index % 4}" / f"{part}{index:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(index.to_bytes(4, "big") * 200)
    return tmp_path / "data"


@contextmanager
def running(directory: Path, seed: int, workers: int, words: int, kind: str) -> Iterator[scripts.Popen]:
    """The script, until it ends."""
    told = [str(value) for value in (directory, seed, EPOCHS, workers, words, kind)]
    command = [sys.executable, drawing_script.__file__, *told]
    with scripts.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as script:
        try:
            yield script
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)  # a worker that has just begun does not notice its parent's end


def epoch_of(mount: MlfsMount, script: scripts.Popen) -> list[str]:
    """Let the script read an epoch, of which it waits in the beginning until mlfs knows its order."""
    assert script.stdin is not None
    assert script.stdout is not None
    assert script.stdout.readline().strip() == drawing_script.WAITS
    mount.settle()  # else what was read before this epoch might be all that is known of
    assert wait_until(lambda: is_known(mount), WAIT_S), mount.status()
    script.stdin.write("go on\n")
    script.stdin.flush()
    return script.stdout.readline().split()


def job_of(mount: MlfsMount) -> dict[str, Any]:
    job: dict[str, Any] = next(job for job in mount.status()["jobs"] if job["name"] == "train")
    return job


def is_known(mount: MlfsMount) -> bool:
    """Whether what was read so far came in the order that the job has by now, but for what shows the loader's shape."""
    job = job_of(mount)
    return bool(job["observed_opens"]) and job["agreement"] > 0.95 and not job["searching"]


@pytest.mark.promise("half")
@pytest.mark.parametrize(("workers", "words"), [(0, SMALL_MODEL_WORDS), (2, RESNET18_WORDS)])
def test_a_model_that_was_made_first_need_not_be_told(data: Path, workers: int, words: int) -> None:
    with MlfsMount(data) as mount:
        mount.register(name="train", root="train", sampler="torch-random", seed=1, epochs=EPOCHS, batch_size=8)
        with running(mount.path, 1, workers, words, "validates") as script:
            for epoch in range(EPOCHS):
                seen = epoch_of(mount, script)
                order = (mount.path / f".mlfs/order/train/{epoch}/0").read_text().split()
                assert [Path(path).name for path in order] == seen
        mount.settle()
        job = job_of(mount)
        assert (job["spec"]["words_before"], job["spec"]["words_between"]) == (words, 2)
        assert job["way_out"] == f"--words-before {words} --words-between 2"
        assert job["agreement"] == 1.0
        assert job["searches"] == 2  # from the third epoch on it is known
        assert {epoch: counts["agreement"] for epoch, counts in job["agreement_by_epoch"].items()} == dict.fromkeys(
            map(str, range(EPOCHS)), 1.0
        )
        (said,) = (text for text in mount.status()["messages"] if text.startswith("job "))  # and what the machine does
        command = said.partition(f"{job['way_out']} would have said so: mlfs register {mount.path} ")[2]
        for flags in ("--sampler torch-random", "--seed 1", "--root train", job["way_out"]):
            assert flags in command


@pytest.mark.promise("half")
def test_an_order_that_nobody_could_tell_is_found_in_each_epoch(data: Path) -> None:
    with MlfsMount(data) as mount:
        mount.register(name="train", root="train", sampler="torch-random", seed=5, epochs=EPOCHS, batch_size=8)
        with running(mount.path, 5, 0, 1000, "augments") as script:
            for epoch in range(EPOCHS):
                seen = epoch_of(mount, script)
                order = (mount.path / f".mlfs/order/train/{epoch}/0").read_text().split()
                assert [Path(path).name for path in order] == seen
        mount.settle()
        job = job_of(mount)
        assert job["agreement"] == 1.0
        assert job["searches"] == EPOCHS
        assert "another number of words" in job["found_out"][-1]
        assert job["way_out"] == "--words-before 1000"
