"""The data set for demonstrations: made where nothing is, and never in the place of somebody's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_dataset.py"


def make(directory: Path, files: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), str(directory), "--files", str(files), "--kilobytes", "20"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_somebodys_files_are_left_alone(tmp_path: Path) -> None:
    made, photos = tmp_path / "made", tmp_path / "photos"
    made.mkdir()
    assert make(made, 1).returncode == 0
    assert len(list(made.glob("class*/*.jpg"))) == 1
    photos.mkdir()
    (photos / "holiday.jpg").write_bytes(b"precious")
    refused = make(photos, 2)
    assert refused.returncode == 1
    assert "was not made by make_dataset.py" in refused.stderr
    assert [(path.name, path.read_bytes()) for path in photos.iterdir()] == [("holiday.jpg", b"precious")]
