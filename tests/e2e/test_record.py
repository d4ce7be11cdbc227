"""A loader whose order nobody can compute: one run is recorded, the next one is served by the record."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import mounts
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import image_folder, make_tree

FILES = 400
WAIT_S = 120


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "images", image_folder(4, FILES // 4))


def read_all(directory: str, epochs: int) -> None:
    """An order of its own: Python's generator, seeded with words."""
    paths = sorted(str(path) for path in Path(directory).glob("*/*"))
    for epoch in range(epochs):
        for path in random.Random(f"epoch {epoch} of my own").sample(paths, len(paths)):
            with open(path, "rb") as file:
                file.read()


def run_script(mount: MlfsMount, epochs: int = 2) -> None:
    process = mp.get_context("fork").Process(target=read_all, args=(str(mount.path), epochs))
    process.start()
    process.join(WAIT_S)
    assert process.exitcode == 0


def recording(mount: MlfsMount, out: Path) -> subprocess.Popen[str]:
    """`mlfs record`, once it records."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mlfs.cli.main", "record", str(mount.path), str(out)],
        env=mount.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert "recording" in process.stderr.readline()
    return process


def test_what_was_recorded_is_what_the_next_run_is_served_by(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.opens"
    with MlfsMount(images) as mount:
        process = recording(mount, out)
        run_script(mount)
        assert not out.exists()  # half a record is none
        assert wait_until(lambda: mount.status()["under_way"]["opens_and_releases"] == 0, WAIT_S)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, stderr
        recorded = int(stdout.partition(": ")[2].split()[0])
        # There two opens by one process within some milliseconds may be one: the last ones of an epoch and the first.
        assert recorded == 2 * FILES or (
            mounts.CHANNEL == "silent" and recorded > 0.97 * 2 * FILES and "twice" in stdout
        )
        assert sorted(os.listdir(tmp_path)) == ["images", "run.opens"]
    with MlfsMount(images) as mount:
        said = mount.run("replay", str(out), str(mount.path)).stdout
        assert "registered job replay" in said
        run_script(mount)
        assert wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished", WAIT_S), mount.status()
        (job,) = mount.status()["jobs"]
        assert job["agreement"] == 1.0 or recorded < 2 * FILES
        assert job["observed_opens"] == 2 * FILES or mounts.CHANNEL == "silent"
        assert not job["inferred"]


def test_a_record_ends_with_its_mount_and_nonsense_is_refused(images: Path, tmp_path: Path) -> None:
    out, bad = tmp_path / "run.opens", tmp_path / "bad.opens"
    with MlfsMount(images) as mount:
        process = recording(mount, out)
        mount.unmount()
        _, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, stderr
        assert out.exists()
        bad.write_text("not a record\n")
        for record, word in ((out, "no opens"), (bad, "line 1"), (tmp_path / "none", "cannot be read")):
            result = mount.run("replay", str(record), check=False)
            assert result.returncode == 2
            assert word in result.stderr
            assert result.stderr.count("\n") == 1
        assert sorted(os.listdir(tmp_path)) == ["bad.opens", "images", "run.opens"]


def test_a_record_of_nothing_leaves_the_one_that_was_there(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.opens"
    with MlfsMount(images) as mount:
        for opens in (1, 0):
            process = recording(mount, out)
            if opens:  # another server goes on with it
                assert process.stderr is not None
                os.kill(mount.pid, signal.SIGKILL)
                assert "another server" in process.stderr.readline()
            for path in sorted(mount.path.glob("*/*"))[:opens]:
                path.read_bytes()
            assert wait_until(lambda: mount.status()["under_way"]["opens_and_releases"] == 0, WAIT_S)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=WAIT_S)
            assert process.returncode == (0 if opens else 1), stderr
        assert "nothing was opened" in stderr
        assert len(out.read_text().splitlines()) == 2
        assert sorted(os.listdir(tmp_path)) == ["images", "run.opens"]
