"""`mlfs mount` with a stand-in for the daemon: it returns when the mount answers, else it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_support import TINY_FS, wait_for

from mlfs.cli import main as cli
from mlfs.cli import progress as shown
from mlfs.errors import ExitCode, MlfsError
from mlfs.launchers import ranks_seen
from mlfs.printable import printable
from mountd import launch, mounts, runtime

SERVING = {"serving": {"pid": 12, "files": 2000, "bytes": 1024, "how": "read from it"}}
SMALL = ["--ram", "1M", "--staging", "1M"]
RUN = f"""import sys
from mlfs.cli import main
from mountd import launch
launch.DAEMON_COMMAND = (sys.executable, {TINY_FS!r})
sys.exit(main.main(sys.argv[1:]))"""


@pytest.fixture
def source(open_dir: Path) -> str:
    """A source directory with a file, under a name that is not text."""
    path = os.path.join(open_dir, os.fsdecode(b"set \xff\n'1"))
    os.mkdir(path)
    Path(path, "a.jpg").write_text("x")
    return path


def environment(behaviour: str = "serve", **more: str) -> dict[str, str]:
    """Without what a launcher of the tests may have set."""
    kept = {name: text for name, text in os.environ.items() if ranks_seen({name: text}) is None}
    return kept | {"TINY_FS": behaviour, "PYTHONPATH": str(Path(__file__).parents[2])} | more


def run_mount(source: str, behaviour: str = "serve", flags: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "mount", source, *SMALL, *flags],
        capture_output=True,
        check=False,
        timeout=120,
        env=environment(behaviour),
    )


def left_behind(source: str) -> list[object]:
    return [x for x in (mounts.mount_at(source), runtime.read(source)) if x is not None]


def test_it_returns_when_the_mount_answers_and_says_what_is_next(source: str) -> None:
    done = run_mount(source)
    assert (done.returncode, done.stderr) == (0, b"")
    record = runtime.read(source)
    assert record is not None
    out = os.fsdecode(done.stdout)
    assert f"mounted {printable(source)} over itself, read-only, served by process {record.pid}\n" in out
    assert "1 files, 4 KiB (scanned 0.1 s)" in out
    assert "RAM 1 MiB" in out
    assert f"log      {printable(runtime.default_log_file(source))}" in out
    assert "mlfs register " in out
    assert os.path.exists(f"{source}/.mlfs/status")
    assert os.getsid(record.pid) == record.pid, "Ctrl-C in the terminal would end the daemon"
    assert "--sampler torch-random --seed 0" in out, "no launcher is seen"
    again = run_mount(source)
    assert (again.returncode, again.stderr) == (0, b"")
    assert f"already mounted: {printable(source)}, served by process {record.pid}" in os.fsdecode(again.stdout)
    other = run_mount(source, flags=("--staging", "2M", "--infer", "off"))
    assert other.returncode == ExitCode.MOUNT_POINT
    assert f"already mounted by mlfs by process {record.pid}, with other settings:".encode() in other.stderr
    assert b"staging 2 MiB, now 1 MiB; infer off, now on (to have these: mlfs upgrade" in other.stderr
    assert other.stderr.count(b"\n") == 1
    assert b"(to have these: mlfs unmount and mount again)" in run_mount(source, flags=("--channel", "silent")).stderr
    assert subprocess.run([sys.executable, "-m", "mlfs.cli.main", "unmount", source], check=True).returncode == 0
    assert left_behind(source) == []
    assert os.listdir(source) == ["a.jpg"]
    assert not os.path.exists(f"/proc/{record.pid}") or not runtime.alive(record)


def test_starts_at_the_same_time_make_one_mount(source: str) -> None:
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, "mount", source, *SMALL], stdout=subprocess.PIPE, env=environment()
        )
        for _ in range(3)
    ]
    said = sorted(command.communicate(timeout=120)[0].split()[0] for command in commands)
    assert [command.returncode for command in commands] == [0, 0, 0]
    assert said == [b"already", b"already", b"mounted"]
    assert sum(entry.mountpoint == source for entry in mounts.mount_table()) == 1
    assert not [name for name in os.listdir(runtime.runtime_dir()) if name.endswith(".lock")]
    assert cli.main(["unmount", source]) == ExitCode.OK


def test_what_a_killed_daemon_left_is_cleaned_up_and_mounted_anew(source: str) -> None:
    run_mount(source)
    record = runtime.read(source)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: runtime.start_ticks(record.pid) is None)
    again = run_mount(source)
    assert again.returncode == 0
    assert b"cleaned up a dead mount" in again.stderr
    assert again.stdout.startswith(b"mounted ")
    assert cli.main(["unmount", source]) == ExitCode.OK


def test_the_daemons_reason_is_the_commands(source: str) -> None:
    done = run_mount(source, "error")
    assert done.returncode == 3
    assert done.stderr == b"mlfs: no luck today (come back)\n"
    assert left_behind(source) == []


def test_a_daemon_that_dies_without_a_word_is_reported_with_its_log(source: str) -> None:
    done = run_mount(source, "die")
    assert done.returncode == ExitCode.FAILURE
    assert b"  | the last words of the daemon\n" in done.stderr
    assert b"the daemon was killed by SIGKILL before it served" in done.stderr
    assert left_behind(source) == []


def test_a_mount_that_does_not_answer_is_taken_back(source: str) -> None:
    done = run_mount(source, "broken")
    assert done.returncode == ExitCode.FAILURE
    assert b"does not answer" in done.stderr
    assert left_behind(source) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_waiting_it_leaves_no_daemon(source: str, number: signal.Signals) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", RUN, "mount", source, *SMALL],
        stderr=subprocess.PIPE,
        env={**os.environ, "TINY_FS": "silent"},
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    wait_for(lambda: bool(children.read_text()))
    (daemon,) = (int(pid) for pid in children.read_text().split())
    # Not before it runs as the stand-in: a child that is still the command itself would not be the daemon yet.
    wait_for(lambda: b"tiny_fs" in Path(f"/proc/{daemon}/cmdline").read_bytes())
    command.send_signal(number)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 130
    assert stderr.endswith(b"mlfs: interrupted\n")  # it may have told that it is starting
    assert b"Traceback" not in stderr
    assert runtime.start_ticks(daemon) is None
    assert left_behind(source) == []


def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    source = str(tmp_path / "set")
    assert cli.main(["mount", source, *SMALL, "--log-file", "/proc/none/log"]) == ExitCode.USAGE
    assert "/proc/none/log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reports", "code", "out", "err"),
    [
        ([{"progress": {"phase": "scan", "dirs": 1, "files": 2}}, SERVING], 0, "2,000 files, 1 KiB (read from it)", ""),
        ([{"error": {"message": "no", "exit_code": 5}}], 5, "", "mlfs: no\n"),
        ([], 1, "", "mlfs: the daemon ended before it served"),
    ],
)
def test_in_the_foreground_it_becomes_the_daemon_and_tells_what_that_reports(
    source: str, tmp_path: Path, reports: list[object], code: int, out: str, err: str
) -> None:
    lines = "".join(json.dumps(report) + "\n" for report in reports)
    daemon = tmp_path / "daemon.py"
    daemon.write_text(
        "import os, sys\nflags = dict(zip(sys.argv[1::2], sys.argv[2::2]))\nprint(os.getpid(), flush=True)\n"
        f"os.write(int(flags['--status-fd']), {lines.encode()!r})\nsys.exit({code})\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", RUN.replace(TINY_FS, str(daemon)), "mount", source, *SMALL, "--foreground"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip
    said, wrong = command.communicate(timeout=60)
    assert command.returncode == code
    assert said.startswith(f"{command.pid}\n")
    assert out in said
    assert wrong.startswith(err)


def test_progress_is_told_only_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(shown, "PROGRESS_AFTER_S", 2.0)
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    with shown.Progress() as progress:
        progress.update({"phase": "scan", "dirs": 10, "files": 20000})
        now[0] += 1.9
        progress.tick()
        assert capsys.readouterr().err == ""
        now[0] += 0.2
        progress.tick()
        assert capsys.readouterr().err == "mlfs: scan: 10 directories, 20,000 files\n"
        now[0] += 1
        progress.update({"phase": "mount"})
        assert capsys.readouterr().err == ""
        now[0] += 5
        progress.tick()
        assert capsys.readouterr().err == "mlfs: mount\n"


def test_odd_error_reports_still_make_an_error() -> None:
    assert launch.reported_error({"message": "m", "exit_code": 77}).exit_code == ExitCode.FAILURE
    assert isinstance(launch.reported_error({}), MlfsError)
