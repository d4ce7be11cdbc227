"""The manual pages: one for each command, as its --help is now, and as `man` can show them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlfs.cli import commands

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import man_pages  # noqa: E402


def test_they_are_as_the_help_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    kept = {path.name: path.read_text() for path in man_pages.FOLDER.iterdir()}
    assert kept == man_pages.pages(), "write them anew: python scripts/man_pages.py"
    names = {"mlfs.1", "mount.mlfs.8"} | {f"mlfs-{name}.1" for name in commands.build_full_parser().commands}
    assert kept.keys() == names


def test_man_shows_them_without_a_complaint() -> None:
    paths = sorted(man_pages.FOLDER.iterdir())
    environment = os.environ | {"MANPAGER": "cat", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    command = ["man", "--warnings", "-l", *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    assert done.stdout.count("\nSYNOPSIS\n") == len(paths)
    assert "\n         mlfs mount --config imagenet.toml\n" in done.stdout
