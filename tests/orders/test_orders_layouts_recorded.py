"""Listings recorded from the real libraries (scripts/record_layouts.py), and fresh ones, against the layouts here.

The recorded ones are checked in every run, whether the library is installed or not. Marker `oracle`: many more trees
from the library itself, each library in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from orders_support import entries_of, job, make_file, manifest_of

from mlfs.orders.layouts import samples
from mlfs.tree.source_files import SourceFiles

RECORDED = sorted((Path(__file__).parent / "recorded_layouts").glob("*.json"))
SCRIPT = Path(__file__).parents[2] / "scripts" / "record_layouts.py"
LIBRARIES = ["dali", "hf-imagefolder", "keras", "tf-list-files", "timm"]


def make(root: str, tree: dict[str, str | None]) -> None:
    """The tree on disk, as the script made it."""
    for path, what in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if what is None:
            make_file(root, path)
        elif what == "|":
            os.mkfifo(full)
        else:
            os.symlink(what, full)


def check(path: Path) -> int:
    """Compare each tree of a file; how many there were."""
    told = json.loads(path.read_text())
    for case in told["cases"]:
        with tempfile.TemporaryDirectory() as root:
            make(root, case["tree"])
            manifest = manifest_of(root)
            expected = entries_of(manifest, root, [os.path.join(root, name) for name in case["listed"]])
            source = os.fsencode(root)
            found = samples(job(layout=path.stem), manifest, source, SourceFiles(source)).tolist()
            shown = [os.fsdecode(manifest.path(entry)) if entry >= 0 else None for entry in found]
            assert found == expected, f"{told['library']} {told['version']}: {case['listed']}\nfound {shown}"
    return len(told["cases"])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_recorded_listings_are_ours(path: Path) -> None:
    assert check(path) >= 20


def test_each_layout_has_a_record() -> None:
    assert [path.stem for path in RECORDED] == LIBRARIES


@pytest.mark.oracle
@pytest.mark.parametrize("layout", LIBRARIES)
def test_a_library_itself_lists_what_we_do(layout: str, tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, layout, "--seed", str(os.getpid()), "--cases", "150", "--out", tmp_path]
    subprocess.run(command, check=True)
    assert check(tmp_path / f"{layout}.json") == 150
