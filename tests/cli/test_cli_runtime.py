"""Records of running mounts: believed only while their very process lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import as_nobody

from mlfs.errors import MlfsError
from mountd import runtime

ODD = os.fsdecode(b"/data/\xff set\n[1]")


def test_a_record_is_read_as_it_was_written_and_removed() -> None:
    written = runtime.write(ODD, "/src", "/log")
    assert runtime.read(ODD) == written
    assert written.pid == os.getpid()
    assert runtime.alive(written)
    assert runtime.read("/data") is None
    assert os.listdir(runtime.runtime_dir()) == [runtime.mount_name(ODD) + ".json"]
    runtime.remove(ODD, pid=1)
    assert runtime.read(ODD) is not None, "the record of another process was removed"
    runtime.remove(ODD)
    runtime.remove(ODD)
    assert runtime.read(ODD) is None


def test_names_of_mounts_are_file_names_and_differ() -> None:
    names = {runtime.mount_name(path) for path in ("/a/b", "/a-b", "/a/b/", ODD, "/", "/" + "x" * 5000, "/..")}
    assert len(names) == 7
    for name in names:
        assert len(name) < 100
        assert name.isascii()
        assert "/" not in name
        assert not name.startswith(".")


def test_stale_records_go_and_those_of_the_living_stay() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    gone = runtime.write("/gone", "/src", None, pid=process.pid)
    runtime.write("/here", "/src", None)
    assert runtime.stale() == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not runtime.alive(gone), "a zombie serves nothing"
    process.wait()
    assert [record.mountpoint for record in runtime.stale()] == ["/gone"]
    assert [record.mountpoint for record in runtime.records()] == ["/here"]


def test_a_reused_pid_is_not_the_daemon() -> None:
    record = runtime.write("/here", "/src", None)
    path = os.path.join(runtime.runtime_dir(), runtime.mount_name("/here") + ".json")
    with open(path, "w") as file:
        json.dump({**record.__dict__, "pid_start_ticks": record.pid_start_ticks - 1}, file)
    reused = runtime.read("/here")
    assert reused is not None
    assert not runtime.alive(reused)
    # Signal 0 would do no harm, but it must not even be tried on somebody else's process.
    assert runtime.send_signal(reused, 0) is False
    assert runtime.send_signal(record, 0) is True
    assert [r.mountpoint for r in runtime.stale()] == ["/here"]


def test_signals_reach_the_process_of_the_record() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record = runtime.write("/x", "/src", None, pid=process.pid)
    assert runtime.send_signal(record, signal.SIGTERM)
    assert process.wait(5) == -signal.SIGTERM
    assert runtime.send_signal(record, signal.SIGTERM) is False


def test_a_damaged_record_counts_as_none() -> None:
    for text in ("", "[1]", "{", '{"pid": 3}'):
        path = Path(runtime.runtime_dir(), runtime.mount_name("/bad") + ".json")
        path.write_text(text)
        assert runtime.read("/bad") is None
    assert runtime.records() == []


def test_a_runtime_directory_of_somebody_else_is_refused(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (open_dir / "real").mkdir()
    (open_dir / "link").symlink_to("real")
    monkeypatch.setenv("MLFS_RUNTIME_DIR", str(open_dir / "link"))
    with pytest.raises(MlfsError, match="no directory of yours"):
        runtime.runtime_dir()
    if os.geteuid() == 0:
        monkeypatch.setenv("MLFS_RUNTIME_DIR", str(open_dir / "real"))
        with pytest.raises(MlfsError, match="no directory of yours"):
            as_nobody(runtime.runtime_dir)


def test_the_log_lies_in_the_cache_directory(tmp_path: Path) -> None:
    path = Path(runtime.default_log_file("/data/set"))
    assert path.parent == tmp_path / "cache" / "mlfs" / "log"
    assert path.parent.is_dir()
    assert path.name.startswith("data-set-")
