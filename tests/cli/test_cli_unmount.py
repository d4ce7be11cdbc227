"""`mlfs unmount`: names who is in the way, waits, forces, cleans up after a crash, and never hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_support import Mounts, wait_for
from support.forks import Running

from mlfs.cli import main as cli
from mlfs.errors import ExitCode, MlfsError
from mlfs.printable import printable
from mountd import mounts, runtime

HOLD = "import sys; f = open(sys.argv[1] + '/data.bin', 'rb'); print(flush=True); sys.stdin.read()"


@pytest.fixture
def place(open_dir: Path) -> str:
    path = os.path.join(open_dir, "odd \n [ü] name")
    os.mkdir(path)
    return path


def hold(path: str) -> subprocess.Popen[bytes]:
    reader = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"\n"
    return reader


def nothing_left(path: str, *servers: Running) -> bool:
    gone = all(runtime.start_ticks(server.pid) is None for server in servers)
    return gone and mounts.mount_at(path) is None and runtime.read(path) is None


def test_it_ends_mount_daemon_and_record(place: str, tiny: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    server = tiny.start(place)
    wait_for(lambda: runtime.read(place) is not None)
    assert cli.main(["unmount", place]) == 0
    assert nothing_left(place, server)
    assert capsys.readouterr().out == printable(f"unmounted {place}") + "\n"
    assert cli.main(["unmount", place]) == ExitCode.NOT_MOUNTED


def test_from_inside_it_does_not_stand_in_its_own_way(place: str, tiny: Mounts) -> None:
    server = tiny.start(place)
    # exec: the shell itself would be in the way, and rightly so. -P: the stand-in cannot be listed for modules.
    script = f'cd "$1" && exec {sys.executable} -P -m mlfs.cli.main unmount . --timeout 1s'
    done = subprocess.run(["/bin/sh", "-c", script, "sh", place], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert nothing_left(place, server)


def test_busy_names_the_reader_and_goes_on_serving(
    place: str, tiny: Mounts, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.start(place)
    reader = hold(place)
    assert cli.main(["unmount", place, "--timeout", "300ms"]) == ExitCode.BUSY
    stderr = capsys.readouterr().err
    assert f"(pid {reader.pid}, open: data.bin); waiting\n" in stderr
    last = stderr.splitlines()[-1]
    assert "still in use after 0.3 s" in last
    assert f"pid {reader.pid}" in last
    assert "--force" in last
    with open(f"{place}/.mlfs/status") as file:
        said = [command["op"] for command in json.load(file)["commands"]]
        assert said == ["drain"] * (len(said) - 1) + ["resume"]  # again and again that it is still at it
    reader.communicate()


def test_it_waits_for_readers(place: str, tiny: Mounts) -> None:
    server = tiny.start(place)
    reader = hold(place)
    started = time.monotonic()
    threading.Timer(0.5, lambda: reader.stdin and reader.stdin.close()).start()
    assert cli.main(["unmount", place, "--timeout", "60s"]) == 0
    assert time.monotonic() - started > 0.4
    assert nothing_left(place, server)
    reader.wait()
    assert reader.stdout is not None
    reader.stdout.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_force_takes_it_away_under_readers_also_from_a_hung_daemon(
    place: str, tiny: Mounts, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.cli.unmount.TERM_TIMEOUT_S", 0.3)
    monkeypatch.setattr("mountd.mounts.probe.__defaults__", (0.3,))
    server = tiny.start(place)
    wait_for(lambda: runtime.read(place) is not None)
    reader = hold(place)
    if stopped:
        server.send_signal(signal.SIGSTOP)
    assert cli.main(["unmount", place, "--force"]) == 0
    assert reader.poll() is None  # it was not waited for
    assert nothing_left(place, server)
    reader.communicate()


def test_a_killed_daemons_mounts_are_cleaned_up(place: str, tiny: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    servers = tiny.start_stacked(place)
    wait_for(lambda: runtime.read(place) is not None)
    for server in servers:
        tiny.kill(server)
    assert cli.main(["unmount", place]) == 0
    assert nothing_left(place, *servers)
    assert "daemon was gone already" in capsys.readouterr().out


def test_a_vanished_mount_takes_its_daemon_along(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    runtime.write(place, place, None, pid=daemon.pid)
    assert cli.main(["unmount", place]) == 0
    assert f"process {daemon.pid}" in capsys.readouterr().out
    assert daemon.wait(60) == -signal.SIGTERM
    assert nothing_left(place)


def test_without_a_record_the_mount_itself_says_who_serves_it(place: str, tiny: Mounts) -> None:
    server = tiny.start(place)
    wait_for(lambda: runtime.read(place) is not None)
    runtime.remove(place)
    assert cli.main(["unmount", place]) == 0
    assert nothing_left(place, server)


def test_a_bad_timeout_changes_nothing(place: str, tiny: Mounts) -> None:
    tiny.start(place)
    assert cli.main(["unmount", place, "--timeout", "soon"]) == ExitCode.USAGE
    assert mounts.mount_at(place) is not None


@pytest.mark.parametrize(("uid", "code"), [(1000, ExitCode.NOT_PERMITTED), (0, ExitCode.OK)])
def test_another_users_mount_is_roots_to_take_away(
    place: str, tiny: Mounts, monkeypatch: pytest.MonkeyPatch, uid: int, code: ExitCode
) -> None:
    def refuse(*_: object) -> None:
        raise MlfsError("only the user who mounted it", "", ExitCode.NOT_PERMITTED)

    server = tiny.start(place)
    wait_for(lambda: runtime.read(place) is not None)
    monkeypatch.setattr("mlfs.cli.client.send", refuse)
    # The real id everywhere but where the command decides: /proc and the runtime directory go by it too.
    monkeypatch.setattr("mlfs.cli.unmount.os", SimpleNamespace(geteuid=lambda: uid, getpid=os.getpid, chdir=os.chdir))
    assert cli.main(["unmount", place]) == code
    assert nothing_left(place, server) == (code == ExitCode.OK)


@pytest.mark.promise("end-all-asks")
@pytest.mark.parametrize(("answer", "code"), [("", ExitCode.FAILURE), ("n\n", ExitCode.FAILURE), ("y\n", ExitCode.OK)])
def test_all_of_all_sessions_are_listed_and_asked_for(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, code: ExitCode
) -> None:
    daemons = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    for daemon, path in zip(daemons, (place, f"{place}2"), strict=True):
        runtime.write(path, path, None, pid=daemon.pid)
    assert cli.main(["unmount", "--all"]) == ExitCode.USAGE  # nobody can be asked
    refusal = capsys.readouterr().err
    assert refusal.count("\n") == 1
    assert "2 mounts" in refusal
    assert "(give --yes, or one MOUNT)" in refusal
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: answer))
    assert cli.main(["unmount", "--all"]) == code
    listed = capsys.readouterr().out
    assert all(f"served by process {daemon.pid}" in listed for daemon in daemons)
    assert [daemon.poll() is None for daemon in daemons] == [code != ExitCode.OK] * 2
    assert cli.main(["unmount", "--all", "--yes"]) == ExitCode.OK
    assert [daemon.wait(30) for daemon in daemons] == [-signal.SIGTERM] * 2
