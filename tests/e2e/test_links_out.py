"""Links that lead out of the source are counted and told, with what to mount; alone they are why a mount is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import make_tree


@pytest.mark.promise("told-links")
def test_links_that_lead_out_are_told_and_what_they_lead_to_can_be_mounted(tmp_path: Path) -> None:
    store = make_tree(tmp_path / "store", {f"images/{n}.jpg": 100 + n for n in range(8)})
    farm = tmp_path / "farm"
    (farm / "train").mkdir(parents=True)
    for n in range(8):
        (farm / "train" / f"{n}.jpg").symlink_to(store / f"images/{n}.jpg")
    refused = MlfsMount(farm)
    said = refused.run("mount", str(farm), check=False)
    refused.clean_up()
    assert said.returncode == 3
    assert said.stderr.count("\n") == 1
    assert f"holds no files of its own: 8 of 8 symbolic links lead out of {farm}, to {store / 'images'}" in said.stderr
    assert f"mlfs mount {store / 'images'}" in said.stderr
    assert f"or mlfs mount {tmp_path}, which has both" in said.stderr
    (farm / "labels").write_bytes(b"labels")
    with MlfsMount(farm) as mount:
        (message,) = [message for message in mount.status()["messages"] if "symbolic links" in message]
        assert message.startswith(
            f"8 of 8 symbolic links lead out of {farm}, to {store / 'images'} (first: train/0.jpg)"
        )
        assert f"mlfs mount {store / 'images'}" in message
        with MlfsMount(store / "images") as behind:
            assert os.path.samefile(farm / "train/3.jpg", behind.path / "3.jpg")
            assert (farm / "train/3.jpg").read_bytes() == (farm / "train/3.jpg").resolve().read_bytes()
            wait_until(lambda: behind.status()["opens"] > 0)
