"""An overlay above a mount keeps its daemon serving, however its layers are named: relative ones name no place.

Where the names tell enough, the mount stays; where they don't, its file system does, which the kernel says.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, make_tree

from mlfs.errors import ExitCode

LAYERS = ("a", "b")


def overlay(place: Path, layers: list[str], begun_in: Path) -> Path:
    """Directories of the mount, one above the other, as a shell names them that stands in `begun_in`."""
    merged = place / "merged"
    merged.mkdir(exist_ok=True)
    command = ["mount", "-t", "overlay", "none", "-o", "lowerdir=" + ":".join(layers), merged]
    subprocess.run(command, cwd=begun_in, check=True)
    return merged


@pytest.mark.promise("end-held-elsewhere")
def test_overlays_whose_layers_have_relative_names(tmp_path: Path) -> None:
    draw = random.Random(28)
    files = [f"{layer}/{layer}{number}" for layer in LAYERS for number in range(4)]
    view = tmp_path / "some" / "view"
    view.mkdir(parents=True)
    with MlfsMount(make_tree(tmp_path / "source", dict.fromkeys(files, 3000)), mountpoint=view) as mount:

        def unmount() -> str:
            done = mount.run("unmount", str(view), "--timeout", "200ms", check=False)
            assert done.returncode == ExitCode.BUSY, done
            name = draw.choice(files)
            assert (merged / name.partition("/")[2]).read_bytes() == content(name, 3000)
            return done.stderr

        for begun_in in (view.parent, tmp_path, tmp_path / "source"):
            layers = [os.path.relpath(view / layer, begun_in) for layer in draw.sample(LAYERS, 2)]
            if begun_in.name == "source":  # nobody can tell what a name means that goes up
                layers[1] = str(view / os.path.basename(layers[1]))
            merged = overlay(tmp_path, layers, begun_in)
            said = unmount()
            assert f"{merged} (an overlay of it)" in said
            assert mount.is_mounted
            subprocess.run(["umount", merged], check=True)
        merged = overlay(tmp_path, list(LAYERS), view)  # names that say nothing of the mount
        assert "not mounted any more, and something goes on using its file system" in unmount()
        assert not mount.is_mounted
        unmount()  # a second time
        subprocess.run(["umount", merged], check=True)
        wait_until(lambda: not mount.pids())
