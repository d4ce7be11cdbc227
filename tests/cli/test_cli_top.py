"""`mlfs top`: what a screen shows, that it fits 80 x 24, and that it lives and ends in a real terminal."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Mounts
from rich.console import Console
from test_cli_status import STATUS

from mlfs.cli import main as cli
from mlfs.cli.top import Moment, render
from mlfs.errors import ExitCode


def screen(now: Moment, before: Moment, columns: int = 80, rows: int = 24) -> list[str]:
    """The lines that are shown."""
    console = Console(width=columns, markup=False, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(render(now, before, columns, rows))
    return capture.get().splitlines()


def later(status: dict[str, Any], **read: int) -> dict[str, Any]:
    """The status after so many more reads by each route, of 1,000 bytes each."""
    after = copy.deepcopy(status)
    for route, reads in read.items():
        tally = after["reads"]["all"].setdefault(route, {"reads": 0, "bytes": 0})
        tally["reads"] += reads
        tally["bytes"] += 1000 * reads
    return after


def line_of(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_rates_are_those_since_the_moment_before() -> None:
    after = later(STATUS, page_cache=300, pfs=100)
    after["stalls"]["total_s"] += 1.0
    after["pfs"]["total_bytes"] += 4 << 20
    after["jobs"][0]["ranks"][0]["position"] += 64
    after["jobs"][0]["ranks"][0]["waited_s"] += 0.5
    lines = screen(Moment(12.0, after), Moment(10.0, STATUS))
    assert "150" in line_of(lines, "page cache")
    assert "75.0 %" in line_of(lines, "page cache")
    assert "25.0 %" in line_of(lines, "source")
    assert "0.50 readers wait on average; the source gives 2 MiB/s" in line_of(lines, "readers wait")
    assert line_of(lines, "rank 2").split() == ["rank", "2", "3/90", "0.25", "17/500", "32", "321", "1.2", "s"]
    assert STATUS["headline"] in lines[1]
    assert "cp (pid 123)" in lines[-1]


def test_the_first_screen_has_no_rates() -> None:
    first = Moment(1.0, STATUS)
    lines = screen(first, first)
    assert "-" in line_of(lines, "page cache")
    assert not [line for line in lines if "readers wait" in line]


def test_a_job_that_began_anew_has_no_negative_rate() -> None:
    after = copy.deepcopy(STATUS)
    after["jobs"][0]["ranks"][0] |= {"epoch": 4, "position": 3}
    line = line_of(screen(Moment(2.0, after), Moment(1.0, STATUS)), "rank 2")
    assert re.search(r"4/90 +0.00 +17/500 +- ", line), line


def test_ranks_with_the_least_ready_come_first() -> None:
    status = copy.deepcopy(STATUS)
    rank = status["jobs"][0]["ranks"][0]
    status["jobs"][0]["ranks"] = [
        rank | {"rank": number, "ahead": {"samples": 100 - number, "bytes": 1, "seconds": 1}} for number in range(8)
    ]
    lines = screen(Moment(2.0, status), Moment(1.0, status), rows=18)
    assert [line.split()[1] for line in lines if line.startswith("rank ")] == ["7", "6", "5", "4"]
    assert "4 more ranks" in "\n".join(lines)


def test_ranks_that_wait_come_before_all_others() -> None:
    status = copy.deepcopy(STATUS)
    rank = status["jobs"][0]["ranks"][0]
    status["jobs"][0]["ranks"] = [rank | {"rank": number, "waited_s": 0.0} for number in range(8)]
    after = copy.deepcopy(status)
    after["jobs"][0]["ranks"][5] |= {"waited_s": 1.5, "ahead": {"samples": 999, "bytes": 1, "seconds": 1}}
    lines = screen(Moment(2.0, after), Moment(1.0, status), columns=40)
    assert next(line.split() for line in lines if line.startswith("rank ")) == ["rank", "5", "3/90", "1.50", "999"]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (40, 24), (200, 60), (64, 24)])
def test_a_full_screen_fits(columns: int, rows: int) -> None:
    status = copy.deepcopy(STATUS)
    rank = status["jobs"][0]["ranks"][0]
    status["jobs"][0]["ranks"] = [rank | {"rank": number} for number in range(16)]
    status["tiers"] = [
        status["tiers"][0] | {"name": f"ssd:/scratch/a long name/of a directory/{number}"} for number in range(9)
    ]
    status["strangers"] *= 9
    before = Moment(1.0, status)
    lines = screen(
        Moment(2.0, later(status, page_cache=10**6, ram=5, ssd=5, lmdb=5, peer=5, pfs=5)), before, columns, rows
    )
    assert len(lines) <= rows
    assert max(len(line) for line in lines) <= columns
    for word in ("rank 0", "waiting", "page cache", "readers wait", "nothing to do", "ready", "full"):
        assert word in "\n".join(lines), word
    assert "\u2026" not in "".join(
        line for line in lines if re.match("rank |page cache|ssd:", line)
    )  # no number is cut


def test_without_a_terminal_it_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "/proc"]) == ExitCode.USAGE
    assert "mlfs status MOUNT --watch" in capsys.readouterr().err


class Terminal:
    """A window of tmux in which a command runs."""

    def __init__(self, socket: Path, command: str, columns: int = 80) -> None:
        self._tmux = [shutil.which("tmux") or "tmux", "-S", str(socket), "-f", "/dev/null"]
        self._run("new-session", "-d", "-x", str(columns), "-y", "24", command)

    def _run(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True, timeout=30).stdout

    def shown(self) -> str:
        return self._run("capture-pane", "-p")

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    def until(self, condition: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + 60
        while not condition(text := self.shown()):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text

    def end(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)


@pytest.mark.parametrize("key", ["q", "C-c"])
def test_in_a_terminal(open_dir: Path, tiny: Mounts, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (open_dir / "m").mkdir()
    (tmp_path / "status").write_text(json.dumps(STATUS))
    monkeypatch.setenv("TINY_STATUS", str(tmp_path / "status"))
    tiny.start(open_dir / "m")
    command = f"{sys.executable} -m mlfs top {open_dir}/m --every 200ms; echo ended with $?; stty -a; sleep 60"
    terminal = Terminal(tmp_path / "tmux", command)
    try:
        text = terminal.until(lambda text: "reads by route" in text)
        assert "waiting" in text
        assert "bytes/s" in text
        terminal.resize(40, 24)
        text = terminal.until(lambda text: "reads by route" in text and "bytes/s" not in text)
        assert "rank 2" in text
        assert "nothing to do" in text
        terminal.press(key)
        text = terminal.until(lambda text: "ended with" in text and "icanon" in text)
        assert "ended with 0" in text
        assert "-icanon" not in text.split()  # the terminal is as it was
        assert "reads by route" not in text
    finally:
        terminal.end()


def test_uneven_ranks_are_told_of() -> None:
    status = copy.deepcopy(STATUS)
    load = status["jobs"][0]["load"]
    load["ranks"]["3"] = load["ranks"]["2"]
    lines = screen(Moment(1.0, status), Moment(1.0, status), columns=100)
    assert "50.0 % of the last reads as predicted; 25.0 % of steps uneven, rank 2 will be late" in "\n".join(lines)
