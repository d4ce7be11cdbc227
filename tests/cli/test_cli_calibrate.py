"""`mlfs calibrate` as a command: the file, the picture, and what an interrupt leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import exit_code, wait_for

from mlfs.cli import main as cli
from mlfs.errors import ExitCode
from mlfs.measure import calibration


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "source"
    root.mkdir()
    for index in range(6):
        (root / f"{index}.jpg").write_bytes(os.urandom(3000))
    return root


def test_everything_is_measured_and_found_again(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, plot = tmp_path / "disk", tmp_path / "speeds.png"
    disk.mkdir()
    link = tmp_path / "link"
    link.symlink_to(source)  # the mount finds what was measured whatever the source was called
    words = ["--ssd", str(disk), "--seconds", "1s", "--bytes", "1M", "--readers", "4", "--threads", "2"]
    assert cli.main(["calibrate", str(link), *words, "--plot", str(plot), "--json"]) == ExitCode.OK
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [count for count, _ in found["source"]["read"]] == [1, 2, 4]
    assert found["source"]["mean_sample_bytes"] == 3000
    assert found["ssd"][0]["path"] == str(disk)
    assert found["file"] == str(calibration.default_path(str(source)))
    assert calibration.load(found.pop("file")).model_dump(mode="json").keys() == found.keys()
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(disk) == []
    assert printed.err.count("\n") == 3 + 2 * 2 * 2  # one line a measurement
    assert cli.main(["calibrate", str(source), *words, "--output", str(tmp_path / "c.toml")]) == ExitCode.OK
    assert "readers are enough" in capsys.readouterr().out
    assert calibration.load(tmp_path / "c.toml").source.path == str(source)


# A shell's background job ignores Ctrl-C, and so do its children.
MAIN = """
import signal, sys
from mlfs.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.promise("signals-heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_no_file(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    words = ["calibrate", str(source), "--seconds", "3000s", "--bytes", "1E"]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *words], stderr=subprocess.PIPE)
    index = tmp_path / "cache/mlfs/index"
    wait_for(lambda: index.exists() and any(index.glob("*.idx")), 60)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (ExitCode.INTERRUPTED if number == signal.SIGINT else -number), said
    assert list(index.glob("*.toml*")) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--ssd", "/no/such/place"], ExitCode.CACHE, "/no/such/place"),
        (["--plot", "speeds.gif2"], ExitCode.USAGE, "--plot"),
        (["--readers", "0"], ExitCode.USAGE, "--readers"),
        (["--ssd", "no-such-place"], ExitCode.CACHE, "no-such-place"),
        (["--seconds", "soon"], ExitCode.USAGE, "soon"),
        (["--seconds", "0"], ExitCode.USAGE, "too short"),
        (["--bytes", "0"], ExitCode.USAGE, "too little"),
        (["--plot", "/proc/speeds.png"], ExitCode.USAGE, "/proc"),
        (["--output", "/"], ExitCode.USAGE, "it is not a regular file"),
        (["--output", "/no/such/place/c.toml"], ExitCode.USAGE, "/no/such"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    source: Path, words: list[str], code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "/no/such" in words[1] and words[0] == "--output" and os.access("/", os.W_OK):
        words = ["--output", str(source / "0.jpg" / "c.toml")]
        said = "0.jpg"
    short = ["--bytes", "1K", "--readers", "1", "--threads", "1", "--seconds", "0.1s"]
    assert exit_code(["calibrate", str(source), *short, *words]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("mlfs")
    assert said in last


def test_a_source_that_holds_nothing_is_refused(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["calibrate", str(tmp_path / "empty")]) == ExitCode.SOURCE
    assert cli.main(["calibrate", str(tmp_path / "none")]) == ExitCode.SOURCE
    (tmp_path / "empty/file").touch()
    assert cli.main(["calibrate", str(tmp_path / "empty")]) == ExitCode.SOURCE
