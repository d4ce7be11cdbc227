"""Commands that are given the name of a file of the user's: none of them writes over it."""

from __future__ import annotations

import random
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.mounts import MlfsMount

from mlfs.cli import main as cli
from mlfs.errors import ExitCode

NOTES = [b"notes\n", b"[1, 2]\n", b"# Log of something else\n", b"\x89PNG\r\n", random.Random(5).randbytes(5000)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for number in range(3):
        (tmp_path / "source" / f"f{number}").write_bytes(b"x" * 1000)
    return tmp_path / "source"


@pytest.mark.parametrize("flag", ["--index", "--log-file"])
@pytest.mark.parametrize("notes", NOTES)
def test_mount_refuses(source: Path, tmp_path: Path, flag: str, notes: bytes) -> None:
    mine, mountpoint = tmp_path / "mine.txt", tmp_path / "mount"
    mine.write_bytes(notes)
    mountpoint.mkdir()
    words = ["mount", str(source), str(mountpoint), "--ram", "1M", "--staging", "1M"]
    assert cli.main([*words, flag, str(mine)]) == ExitCode.USAGE
    assert mine.read_bytes() == notes


@pytest.mark.parametrize("flag", ["--output", "--plot"])
@pytest.mark.parametrize("notes", NOTES)
def test_calibrate_refuses(source: Path, tmp_path: Path, flag: str, notes: bytes) -> None:
    mine = tmp_path / ("mine.toml" if flag == "--output" else "mine.png")
    mine.write_bytes(notes)
    assert cli.main(["calibrate", str(source), "--seconds", "0.2", flag, str(mine)]) == ExitCode.USAGE
    assert mine.read_bytes() == notes


def test_calibrate_replaces_its_own(source: Path, tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("c.png", "c.svg"):
            words = ["calibrate", str(source), "--seconds", "0.2", "--threads", "1", "--readers", "1"]
            assert cli.main([*words, "--output", str(tmp_path / "c.toml"), "--plot", str(tmp_path / name)]) == 0


def test_record_refuses_and_replaces_its_own(source: Path, tmp_path: Path) -> None:
    with MlfsMount(source) as mount:
        for notes in NOTES:
            mine = tmp_path / "mine.txt"
            mine.write_bytes(notes)
            words = [sys.executable, "-m", "mlfs.cli.main", "record", str(mount.path), str(mine)]
            done = subprocess.run(words, env=mount.env, capture_output=True, text=True, check=False)
            assert done.returncode == ExitCode.USAGE
            assert mine.read_bytes() == notes
        for _ in range(2):
            words = [sys.executable, "-m", "mlfs.cli.main", "record", str(mount.path), str(tmp_path / "opens")]
            process = subprocess.Popen(words, env=mount.env, text=True, stderr=subprocess.PIPE)
            assert process.stderr is not None
            assert "recording" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            process.stderr.close()
        assert stat.S_IMODE((tmp_path / "opens").stat().st_mode) == 0o600


def test_the_log_is_the_users_alone(source: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second mount adds to the log of the first
        with MlfsMount(source, "--log-file", str(tmp_path / "logs" / "log")):
            assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
            assert stat.S_IMODE((tmp_path / "logs" / "log").stat().st_mode) == 0o600
