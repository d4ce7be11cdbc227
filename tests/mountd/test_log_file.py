"""The log of a mount: as JSON for what collects logs, rotated by its size, opened anew for logrotate."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.fuse import happened
from support.mounts import MlfsMount
from support.trees import make_tree

from mlfs.errors import ConfigError
from mountd.log_file import JSON, formatter, open_log

FLAGS = ["--log-format", "json", "--log-size", "4096", "--log-files", "2"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A log of JSON: an object a line."""
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def record(message: str, *values: Any, **more: Any) -> logging.LogRecord:
    fields = {"name": "mlfs.test", "levelname": "INFO", "msg": message, "args": values, "created": 1e9}
    return logging.makeLogRecord(fields | more)


@pytest.mark.parametrize(
    ("message", "values", "named"),
    [
        ("job %s: epoch %d counted anew: %s", ("a\x1bb", 3, "well"), {"job": "a\\x1bb", "epoch": 3}),
        ("the agent of node %d of %d has come", (1, 4), {"node": 1}),
        ("at %d %% of job %s, then of job %s", (50, "first", "second"), {"job": "first"}),
        ("prefetch of %r failed: %s", (b"a\xff\n", OSError("gone")), {"path": "a\\xff\\n"}),
        ("in use by %d (%s): %s", (7, "python", "cwd"), {}),
        ("nothing", (), {}),
    ],
)
def test_a_line_of_json_names_what_it_is_about(message: str, values: Any, named: dict[str, Any]) -> None:
    line = json.loads(formatter(JSON).format(record(message, *values)))
    time = datetime.fromisoformat(line.pop("time"))
    assert time.timestamp() == 1e9
    assert time.tzinfo is not None
    assert line.pop("message").isprintable()
    assert line == {"level": "INFO", "logger": "mlfs.test"} | named


def test_a_line_of_json_holds_the_traceback() -> None:
    try:
        raise ValueError("\x1b[2J\udcff")
    except ValueError as error:
        text = formatter(JSON).format(record("failed", exc_info=(ValueError, error, error.__traceback__)))
    assert text.isascii()
    assert "\n" not in text
    exception = json.loads(text)["exception"].split("\n")
    assert exception[0].startswith("Traceback")
    assert exception[-1] == "ValueError: \\x1b[2J\\xff"


def test_no_older_log_is_written_over_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "log.3").write_text("notes\n")
    os.close(open_log(str(tmp_path / "log"), JSON, older=2))
    with pytest.raises(ConfigError, match=r"log\.3.* is not a log of mlfs"):
        open_log(str(tmp_path / "log"), JSON, older=3)


ASKED = """
import logging, os, signal, sys
from mountd.log_file import log_to
log_to(sys.argv[1] or None, "text", 1 << 20, 1)
logging.info("one")
if sys.argv[1]:
    os.rename(sys.argv[1], sys.argv[1] + ".moved")
os.kill(os.getpid(), signal.SIGUSR1)
logging.info("two")
"""


@pytest.mark.parametrize("name", ["log", ""])
def test_a_signal_before_the_mount_serves_ends_nothing(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name) if name else ""
    done = subprocess.run([sys.executable, "-c", ASKED, path], capture_output=True, text=True, check=True)
    if name:
        assert "one" in (tmp_path / "log.moved").read_text()
        assert "two" not in (tmp_path / "log.moved").read_text()
        assert "two" in (tmp_path / "log").read_text()
    else:
        assert done.stderr.count("\n") == 2


def test_a_mount_logs_json_rotates_it_and_opens_it_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    moved, notes = tmp_path / "moved", tmp_path / "notes"
    source = make_tree(tmp_path / "source", {"a": b"x", "b": b"y"})
    with MlfsMount(source, "--log-file", str(log), *FLAGS) as mount:
        pid = mount.pid
        while not (tmp_path / "log.2").exists():
            mount.register(name="train", epochs=1, layout="sorted")
            mount.control({"op": "unregister", "name": "train"})
        assert sorted(path.name for path in tmp_path.glob("log*")) == ["log", "log.1", "log.2"]
        for path in tmp_path.glob("log*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert path.stat().st_size <= 4096
            for line in lines_of(path):
                assert datetime.fromisoformat(line["time"]).tzinfo is not None
                assert {line["level"], line["logger"].partition(".")[0]} <= {"INFO", "WARNING", "mlfs"}
        assert {line.get("job") for path in tmp_path.glob("log*") for line in lines_of(path)} >= {"train"}

        log.rename(moved)  # as logrotate does
        os.kill(pid, signal.SIGUSR1)
        assert happened(lambda: log.exists() and len(lines_of(log)) == 2)
        assert lines_of(log)[-1]["message"] == "the log was opened anew"
        assert os.path.samefile(f"/proc/{pid}/fd/2", log)  # what the interpreter writes when it dies

        moved.unlink()
        log.rename(moved)
        notes.write_text("notes\n")
        log.symlink_to(notes)
        os.kill(pid, signal.SIGUSR1)
        assert happened(lambda: "it is a symbolic link" in moved.read_text())
        assert notes.read_text() == "notes\n"
    assert any(line["message"].startswith("unmounted") for line in lines_of(moved))
