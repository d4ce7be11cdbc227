"""A job proves itself while it runs: agreement by job, epoch and rank, and the loader's shape, told by opens alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.looping import Script, looping
from support.mounts import MlfsMount
from support.trees import make_classes

FILES, CLASSES, RANKS = 240, 4, 2
LIMIT_S = 120.0


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small ImageFolder."""
    return make_classes(tmp_path / "images", FILES, CLASSES, lambda _: os.urandom(3_000))


def job_of(mount: MlfsMount) -> dict[str, Any]:
    """The only job's status."""
    job: dict[str, Any] = mount.status()["jobs"][0]
    return job


@pytest.mark.promise("told-agreement")
def test_each_epoch_and_rank_tells_its_agreement(images: Path, tmp_path: Path) -> None:
    """In the status, in the metrics, and in a line of the log at each epoch's end."""
    log = tmp_path / "mount.log"
    with MlfsMount(images, "--log-file", str(log)) as mount:
        mount.register(name="proof", seed=11, epochs=3, batch_size=8, world_size=RANKS)
        with looping(mount.path, Script(seed=11, ranks=RANKS, workers=2, batch_size=8, epochs=3)):
            pass
        assert wait_until(lambda: job_of(mount)["state"] == "finished")
        mount.settle()
        counts = {"agreed_opens": FILES, "observed_opens": FILES, "late_opens": 0}
        told = {"agreement": 1.0, **counts, "ranks": {"0": 1.0, "1": 1.0}}
        assert job_of(mount)["agreement_by_epoch"] == {str(epoch): told for epoch in range(3)}
        assert [rank["agreement"] for rank in job_of(mount)["ranks"]] == [1.0, 1.0]
        metrics = (mount.path / ".mlfs/metrics").read_text()
        own = f'job="proof",mountpoint="{mount.path}"'
        assert f"mlfs_agreement{{{own}}} 1.0" in metrics
        for rank in range(RANKS):
            assert f'mlfs_epoch_agreement{{{own},rank="{rank}"}} 1.0' in metrics
        mount.control({"op": "unregister", "name": "proof"})
        # A rank that begins much later has the line said again, opens that are digested later are counted anew.
        line = r"proof: epoch (\d+) (?:ended, agreement (.*), \d+ bytes from the PFS|counted anew: agreement (.*))\n"
        lines = {epoch: ended or anew for epoch, ended, anew in re.findall(line, log.read_text())}
        counted = f"1.0 ({FILES} of {FILES} opens; rank 0 1.0, rank 1 1.0)"
        assert lines == {str(epoch): counted for epoch in range(3)}


@pytest.mark.parametrize(("workers", "prefetch"), [(3, 2), (2, 4)])
@pytest.mark.wall_clock
def test_the_loader_is_learned_from_its_opens(images: Path, workers: int, prefetch: int) -> None:
    """Neither batch size nor workers nor prefetch factor are registered. The loop is slower than loading."""
    script = Script(seed=5, workers=workers, batch_size=8, prefetch=prefetch, slow=True, persistent=True)
    with MlfsMount(images) as mount:
        mount.register(seed=5, epochs=200)
        loader = job_of(mount)["loader"]
        assert {loader[name]["from"] for name in ("batch_size", "num_workers", "prefetch_depth")} == {"unknown"}
        with looping(mount.path, script):
            assert wait_until(lambda: job_of(mount)["loader"]["prefetch_depth"]["value"] is not None, LIMIT_S)
        loader = job_of(mount)["loader"]
        assert loader["batch_size"] == {"value": 8, "from": "learned"}
        assert loader["num_workers"] == {"value": workers, "from": "learned"}
        told = {"value": prefetch, "from": "learned", "at_least": prefetch, "at_most": prefetch}
        assert loader["prefetch_depth"] == told
        shown = mount.run("status", str(mount.path)).stdout
        assert f"loader: batch size 8 (learned), workers {workers} (learned), prefetch depth {prefetch}" in shown
        assert job_of(mount)["agreement"] == 1.0
