"""What cannot come to a good end is refused before it begins, and a full disk is said before anything is mounted."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import exit_code

from mlfs.cli import client
from mlfs.config import load_config
from mlfs.errors import ConfigError
from mountd.preflight import full_disks


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which a megabyte fits, and which is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        with contextlib.suppress(OSError), open(disk / "all", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that would be asked: whoever gets that far has not checked first."""

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("it has begun")

    monkeypatch.setattr(client, "require_mount", lambda path: path)
    monkeypatch.setattr(client, "send", asked)
    monkeypatch.setattr(client, "read_status", asked)


@pytest.mark.parametrize("command", ["record", "report"])
@pytest.mark.parametrize("out", ["", "there/", "missing/x", "x" * 300, "."])
@pytest.mark.usefixtures("nobody_asked")
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_recorded(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert exit_code([command, "/data", out]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.usefixtures("nobody_asked")
def test_an_empty_path_is_no_path_to_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["warmup", "/data", ""]) == 2
    assert capsys.readouterr().err == "mlfs: a PATH is empty (leave it out for all of the mount)\n"


def test_calibrate_tries_its_disks_first_and_makes_no_directory(
    full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it measures")

    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(b"a")
    monkeypatch.setattr("mlfs.cli.calibrate.measure", measured)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert exit_code(["calibrate", str(source), "--ssd", str(full_disk)]) == 10
    assert "No space left on device" in capsys.readouterr().err
    for words in (["--output", str(tmp_path / "new/c.toml")], ["--plot", str(tmp_path / "new/c.png")]):
        assert exit_code(["calibrate", str(source), *words]) == 2
        assert "No such file or directory" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["disk", "source"]


def test_a_full_disk_for_log_report_or_copies_is_said(full_disk: Path, tmp_path: Path) -> None:
    names = {"ssd": [f"{full_disk}/a:1G"], "lmdb": [f"{full_disk}/b:1G"], "report": str(full_disk)}
    flags = {"source": str(tmp_path), "log-file": f"{full_disk}/log", **names}
    said = full_disks(load_config(flags, limit_bytes=1 << 34))
    assert [line.split()[3] for line in said] == ["log", "--ssd", "--lmdb", "--report"]
    assert all("is full (0 B free)" in line for line in said)
    assert full_disks(load_config({"source": str(tmp_path), "log-file": f"{tmp_path}/log"}, limit_bytes=1 << 34)) == []
    with pytest.raises(ConfigError):
        load_config({"source": ""}, limit_bytes=1 << 34)
