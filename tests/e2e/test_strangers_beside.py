"""Readers who are not the job, beside a training loop over a real mount: `cp -r`, `find | xargs cat`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.looping import MOST_EPOCHS, Script, looping
from support.mounts import MlfsMount
from support.trees import make_classes

pytestmark = pytest.mark.page_counts

FILES, CLASSES = 240, 4
LIMIT_S = 120.0
EPOCHS = 3


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small ImageFolder."""
    return make_classes(tmp_path / "images", FILES, CLASSES, lambda _: os.urandom(3_000))


def shell(command: str) -> None:
    """Run it to its end; a stranger's errors are its own."""
    subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def again_and_again(command: str) -> Iterator[None]:
    """The command, over and over, while the context lasts."""
    loop = subprocess.Popen(
        ["bash", "-c", f"while true; do {command} > /dev/null; sleep 0.1; done"], start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(loop.pid, 9)
        loop.wait()


def job_of(mount: MlfsMount) -> dict[str, Any]:
    """The only job's status."""
    (job,) = mount.status()["jobs"]
    return dict(job)


STRANGERS = {
    "cp": "rm -rf {out}; cp -r {mount} {out}",
    "xargs": "find {mount} -name '*.jpg' | xargs -n 20 cat",
    "exec": "find {mount} -name '*.jpg' -exec cat {{}} \\;",
}


@pytest.mark.promise("strangers")
@pytest.mark.parametrize(("stranger", "first"), [("cp", True), ("cp", False), ("xargs", True), ("exec", False)])
def test_a_stranger_beside_a_registered_loop_costs_no_agreement(
    images: Path, tmp_path: Path, stranger: str, first: bool
) -> None:
    with MlfsMount(images) as mount:
        command = STRANGERS[stranger].format(mount=mount.path, out=tmp_path / "out")
        mount.register(epochs=MOST_EPOCHS, batch_size=16, seed=5)
        if first:
            shell(command)
        with looping(mount.path, Script(seed=5, workers=2)) as epochs, again_and_again(command):
            assert wait_until(lambda: epochs.value >= EPOCHS, LIMIT_S), mount.status()
        mount.settle()
        job = job_of(mount)
        assert job["found_out"] == []
        assert job["agreement"] == 1.0, mount.status()
        whole = [of for of in job["agreement_by_epoch"].values() if of["observed_opens"] == FILES]
        assert len(whole) >= EPOCHS - 1
        assert all(of["agreement"] == 1.0 for of in whole)
        told = mount.status()["strangers"]
        assert any("files in directory order" in one["words"] for one in told), told
        if stranger == "cp":
            assert any(one["words"].startswith("cp (pid ") for one in told), told


@pytest.mark.promise("strangers-unregistered")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.wall_clock
def test_an_unregistered_loop_is_found_and_kept_beside_a_stranger(images: Path, tmp_path: Path, first: bool) -> None:
    with MlfsMount(images, "--channel", "auto" if first else "open", infer=True) as mount:  # on either channel
        command = STRANGERS["cp"].format(mount=mount.path, out=tmp_path / "out")

        def followed() -> list[dict[str, Any]]:
            jobs = mount.status()["jobs"]
            shuffled = [job for job in jobs if job["spec"]["sampler"] == "torch-distributed"]
            return [job for job in shuffled if job["observed_opens"] >= FILES and job["agreement_recent"] == 1.0]

        if first:
            shell(command)
        with looping(mount.path, Script(seed=5, workers=2, slow=True)) as epochs:
            if not first:
                assert wait_until(lambda: bool(followed()), LIMIT_S), mount.status()
            with again_and_again(command):
                assert wait_until(lambda: bool(followed()), LIMIT_S), mount.status()
                name, begun = followed()[0]["name"], epochs.value
                assert wait_until(lambda: epochs.value >= begun + 2, LIMIT_S), mount.status()
                assert [job["name"] for job in followed()] == [name]
