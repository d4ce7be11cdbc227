"""Promises of docs/semantics.md that need a mount of their own to be seen."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, image_folder, make_tree

pytestmark = pytest.mark.page_counts

FILES = image_folder(classes=2, files=150, size=10_000)
READER = """
import errno, sys

def read(path):
    with open(path, "rb") as file:
        return file.read()

for path in sys.stdin.read().split("\\n"):
    try:
        read(path)
    except OSError as error:
        if error.errno != errno.ESTALE:  # a change was noticed while it was open, if the kernel took pages back
            raise
        read(path)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "source", FILES)


def script(mount: MlfsMount, names: Sequence[str]) -> None:
    """A training script that reads these files, one after the other, and ends."""
    paths = "\n".join(str(mount.path / name) for name in names)
    done = subprocess.run([sys.executable, "-c", READER], input=paths, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def predicted(mount: MlfsMount, epoch: int) -> list[str]:
    return (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines()


@pytest.mark.promise("view-control", "view-added")
def test_an_entry_of_the_controls_name_is_hidden_and_a_new_file_waits_for_the_next_mount(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {"a/one": 100, ".mlfs/secret": 100})
    view, state = tmp_path / "view", tmp_path / "state"
    view.mkdir()
    with MlfsMount(source, mountpoint=view, state=state) as mount:
        assert not (mount.path / ".mlfs/secret").exists()
        assert (mount.path / ".mlfs/status").exists()
        assert os.listdir(mount.path) == ["a"]
        make_tree(source, {"a/two": 200, "b/three": 300})
        assert not (mount.path / "a/two").exists()
        assert (os.listdir(mount.path), os.listdir(mount.path / "a")) == (["a"], ["one"])
    with MlfsMount(source, mountpoint=view, state=state) as mount:
        assert (mount.path / "a/two").read_bytes() == content("a/two", 200)
        assert (mount.path / "b/three").read_bytes() == content("b/three", 300)


@pytest.mark.promise("window")
def test_what_is_fetched_ahead_stays_within_the_window(source: Path) -> None:
    with MlfsMount(source, "--ram", "0", "--staging", "1M") as mount:
        mount.register(seed=1, epochs=2, batch_size=8)

        def used() -> int:
            staging = mount.status()["staging"]
            assert staging["used_bytes"] <= staging["capacity_bytes"]
            return int(staging["used_bytes"])

        wait_until(lambda: used() > 900_000)
        for epoch in range(2):
            for name in predicted(mount, epoch):
                assert (mount.path / name).read_bytes() == content(name, FILES[name])
            mount.settle()
            used()


@pytest.mark.promise("change-budget")
def test_the_ram_class_keeps_its_budget_when_files_grow(source: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    view.mkdir()
    with MlfsMount(source, "--ram", "1M", "--staging", "1M", mountpoint=view) as mount:
        mount.register(seed=1, epochs=3, batch_size=8)
        for epoch in range(3):
            script(mount, predicted(mount, epoch))
            mount.settle()
            ram = mount.status()["tiers"][0]
            assert 0 < ram["used_bytes"] <= ram["capacity_bytes"]
            if epoch == 0:
                for name in FILES:
                    with open(source / name, "ab") as file:
                        file.write(bytes(20_000))
        assert mount.status()["manifest"]["changed"] > 0


@pytest.mark.promise("restart")
def test_a_script_that_is_started_again_is_followed_from_its_first_epoch(source: Path) -> None:
    with MlfsMount(source) as mount:
        mount.register(seed=1, epochs=2, batch_size=8)
        first, second = predicted(mount, 0), predicted(mount, 1)
        script(mount, [*first, *second[:100]])
        mount.settle()
        assert mount.status()["jobs"][0]["ranks"][0]["epoch"] == 1
        script(mount, first[:100])
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["epoch"] == 0)
        script(mount, [*first, *second])
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished")


@pytest.mark.promise("drift-stops", "drift-back")
def test_reads_in_another_order_end_the_prediction_and_those_as_registered_bring_it_back(source: Path) -> None:
    with MlfsMount(source, "--ram", "0", "--staging", "1M") as mount:
        mount.register(seed=1, epochs=4, batch_size=8)
        other = list(FILES)
        random.Random(5).shuffle(other)
        script(mount, other)
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "prediction failing")
        mount.settle()
        fetched = mount.status()["fetches"]["pfs"]["count"]
        script(mount, other[:40])
        mount.settle()
        assert mount.status()["fetches"]["pfs"]["count"] <= fetched + 40  # what was opened, and nothing ahead
        script(mount, [*predicted(mount, 0), *predicted(mount, 1)])
        wait_until(lambda: mount.status()["jobs"][0]["agreement_recent"] > 0.5)
        assert mount.status()["jobs"][0]["state"] != "prediction failing"
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] > 0)


RAISES = """
from pathlib import Path

import numpy as np

class Raises:
    def __init__(self, spec, n_samples, resolve):
        self.n = n_samples
    def stream_length(self, epoch):
        return self.n
    def rank_stream(self, epoch, rank):
        return np.arange(self.n) if epoch == 0 and not Path(__file__).with_name("fails").exists() else 1 / 0
"""


@pytest.mark.promise("follow-fault")
def test_an_order_of_another_package_that_raises_costs_the_prediction_only(source: Path, tmp_path: Path) -> None:
    info = tmp_path / "site/raises-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raises\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlfs.orders]\nraises = raises:Raises\n")
    (tmp_path / "site/raises.py").write_text(RAISES)
    mount = MlfsMount(source)
    mount.extra_env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    with mount:
        mount.register(sampler="raises", epochs=3, batch_size=8)
        for _ in range(2):
            for name in FILES:
                assert (mount.path / name).read_bytes() == content(name, FILES[name])
        assert mount.status()["state"] == "serving"
        (tmp_path / "site/fails").touch()
        os.kill(mount.pid, signal.SIGKILL)  # the job fails in the next server as it is registered again
        logs = mount.state / "cache/mlfs/log"
        wait_until(lambda: any("job train does not go on" in log.read_text() for log in logs.iterdir()))
        for name in FILES:
            assert (mount.path / name).read_bytes() == content(name, FILES[name])
        mount.register(seed=1, epochs=1, batch_size=8)
        script(mount, predicted(mount, 0))
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished")
        assert [one["restarts"] for one in mount.status()["processes"] if one["name"] == "server"] == [1]
