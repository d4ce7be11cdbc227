"""`mlfs ls`: every mount has its line, whatever state it is in, and one that hangs keeps nobody waiting."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from cli_support import Mounts

from mlfs.cli import main as cli
from mlfs.errors import ExitCode


def below(directory: Path, told: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    """The mounts of this test, by name: others run at the same time."""
    return {
        os.path.basename(str(one["mountpoint"])): one
        for one in told
        if os.path.dirname(str(one["mountpoint"])) == str(directory)
    }


def test_each_mount_has_a_line(tiny: Mounts, open_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processes = {}
    for name in ("served", "dead", "hangs"):
        (open_dir / name).mkdir()
        processes[name] = tiny.start(open_dir / name)
    tiny.kill(processes["dead"])
    processes["hangs"].send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        assert cli.main(["ls", "--json"]) == ExitCode.OK
        took_s = time.monotonic() - began_s
        told = below(open_dir, json.loads(capsys.readouterr().out))
        assert {name: one["state"] for name, one in told.items() if name != "served"} == {
            "dead": "dead",
            "hangs": "hangs",
        }
        assert "mlfs unmount" in str(told["dead"]["headline"])
        assert took_s < 8
        assert cli.main(["status"]) == ExitCode.OK  # without a mount it says the same
        said = capsys.readouterr().out
        assert all(str(open_dir / name) in said.replace("\n", "") for name in told)
    finally:
        processes["hangs"].send_signal(signal.SIGCONT)


def test_no_mount_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("mountd.interface.mount_table", list)
    assert cli.main(["ls"]) == ExitCode.OK
    assert capsys.readouterr().out == "nothing is mounted here: mlfs mount SOURCE\n"
    assert cli.main(["ls", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == []
