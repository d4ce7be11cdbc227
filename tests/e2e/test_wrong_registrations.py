"""Scripts that do otherwise than was registered, over a real mount: found out, said in plain words, and followed."""

from __future__ import annotations

import os
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


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small ImageFolder."""
    return make_classes(tmp_path / "images", FILES, CLASSES, lambda _: os.urandom(3_000))


def job_of(mount: MlfsMount) -> dict[str, Any]:
    """The only job's status."""
    job: dict[str, Any] = mount.status()["jobs"][0]
    return job


def follows_again(job: dict[str, Any]) -> bool:
    """Whether an epoch was predicted from its first open to its last."""
    whole = FILES // (2 if job["spec"].get("ranks") == [1] else 1)
    return any(
        counts["agreement"] == 1.0 and counts["observed_opens"] == whole
        for counts in job["agreement_by_epoch"].values()
    )


@pytest.mark.promise("variant")
@pytest.mark.parametrize(
    ("script", "registered", "words"),
    [
        (
            Script(seed=5, set_epoch=False),
            {"seed": 5},
            "this job does not call set_epoch: every epoch reads the same order",
        ),
        (Script(seed=42, workers=3), {"seed": 7}, "this job's seed is 42, not 7"),
        (Script(seed=3, ranks=2), {"seed": 3, "world_size": 4}, "this job's world size is 2, not 4"),
        (
            Script(seed=3, world=2, first_rank=1, persistent=True),
            {"seed": 3, "world_size": 2, "ranks": [0]},
            "this mount is read by rank 1, not by rank 0",
        ),
        (
            Script(seed=9, first_epoch=6),
            {"seed": 9},
            "this job was resumed elsewhere: it began with epoch 6, not 0",
        ),
    ],
)
def test_what_the_script_does_otherwise_is_found_out(
    images: Path, script: Script, registered: dict[str, Any], words: str
) -> None:
    with MlfsMount(images) as mount:
        mount.register(epochs=MOST_EPOCHS, batch_size=16, **registered)
        with looping(mount.path, script):
            assert wait_until(lambda: bool(job_of(mount)["found_out"]), LIMIT_S), mount.status()
            assert wait_until(lambda: follows_again(job_of(mount)), LIMIT_S), mount.status()
        job = job_of(mount)
        assert job["found_out"] == [words]
        assert any(
            words in message and f"{job['way_out']} would have said so: mlfs register {mount.path} " in message
            for message in mount.status()["messages"]
        )
        assert job["counted_anew"] > 0
        assert mount.status()["reads"]["all"]["page_cache"]["reads"] > 0
