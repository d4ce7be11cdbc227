"""Commands that are interrupted, daemons that are stopped, and processes that were started in a bare environment."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.fuse import PATIENCE_S, wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import content, make_tree

NAMES = [f"c/{number}.jpg" for number in range(40)]
MLFS = [sys.executable, "-m", "mlfs.cli.main"]
AT_ONCE_S = 8.0  # on a busy machine; without the check each of these commands waits for ten seconds or more


pytestmark = pytest.mark.usefixtures("own_interpreter")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "source", {name: content(name, 4_000) for name in NAMES})


@pytest.fixture
def mount(source: Path) -> Any:
    with MlfsMount(source) as mount:
        yield mount


def begun(mount: MlfsMount, *words: str, say: str) -> subprocess.Popen[str]:
    """A command that has said so on standard error."""
    process = subprocess.Popen([*MLFS, *words], env=mount.env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while say not in (line := process.stderr.readline()):
        assert line, "it ended"
    return process


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """The exit code and the last words of a process that gets a signal."""
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


@pytest.mark.promise("end-called-off", "end-refuses")
@pytest.mark.wall_clock
def test_an_unmount_that_is_interrupted_or_killed_leaves_a_mount_that_works(mount: MlfsMount) -> None:
    job = {"seed": 0, "layout": "sorted", "batch_size": 4}
    with open(mount.path / NAMES[0], "rb"):
        unmount = begun(mount, "unmount", str(mount.path), say="in use")
        assert ended(unmount, signal.SIGINT) == (
            130, f"mlfs: {mount.path} stays mounted, and goes on as before\nmlfs: interrupted\n",
        )  # fmt: skip
        assert mount.status()["state"] == "serving"

        unmount = begun(mount, "unmount", str(mount.path), say="in use")
        time.sleep(1.5)  # it says again that it is at it, and the daemon's patience begins anew
        assert ended(unmount, signal.SIGKILL)[0] == -signal.SIGKILL
        assert mount.status()["state"] == "draining"
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            mount.register(epochs=2, **job)
        refused = mount.run("register", str(mount.path), "--seed", "0", "--epochs", "1", check=False)
        assert refused.returncode == 8
        assert refused.stderr.startswith("mlfs: the mount is being unmounted (wait until it is")
        wait_until(lambda: bool(mount.status()["state"] == "serving"))
        mount.register(epochs=2, **job)
        wait_until(lambda: bool(mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"]))  # it fetches ahead again


@pytest.mark.promise("told-stopped")
@pytest.mark.wall_clock
def test_commands_that_talk_to_a_stopped_daemon_say_so_at_once(mount: MlfsMount, tmp_path: Path) -> None:
    pid, path = mount.pid, str(mount.path)
    os.kill(pid, signal.SIGSTOP)
    try:
        for words in (
            ["status", path], ["register", path, "--seed", "0", "--epochs", "1"], ["unregister", path],
            ["record", path, str(tmp_path / "recorded")], ["unmount", path], ["mount", path], ["peers", path],
        ):  # fmt: skip
            began_s = time.monotonic()
            done = mount.run(*words, check=False)
            assert time.monotonic() - began_s < AT_ONCE_S, words
            assert done.returncode == (4 if words[0] == "mount" else 1)
            assert done.stderr.count("\n") == 1, done.stderr
            assert re.search(rf"process {pid}\)?,?( which)? is stopped \(kill -CONT {pid}, or ", done.stderr)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert mount.run("status", path).returncode == 0


def test_a_mount_made_with_closed_descriptors_in_a_deleted_directory_is_like_any_other(
    source: Path, tmp_path: Path
) -> None:
    mount = MlfsMount(source)
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@" <&- >&- 2>&-'

    def run(*words: str) -> int:
        gone.mkdir(exist_ok=True)
        return subprocess.run(["sh", "-c", script, "sh", gone, *MLFS, *words], env=mount.env, check=False).returncode

    try:
        assert run("mount", str(source), *mount.flags) == 0
        assert (source / NAMES[0]).read_bytes() == content(NAMES[0], 4_000)
        assert mount.is_mounted
        assert run("status", str(source)) == 0
        assert run("mount", "source") == 2  # nobody knows what it would be relative to
        assert run("unmount", str(source)) == 0
        assert not mount.is_mounted
    finally:
        mount.clean_up()


@pytest.mark.promise("end-hangup")
@pytest.mark.wall_clock
def test_a_terminal_that_is_closed_ends_a_recording_with_what_it_has_and_a_mount_that_is_not_ready(
    source: Path, tmp_path: Path
) -> None:
    with SlowSource(source, open_latency="0ms") as slow:
        mount = MlfsMount(slow.path)
        slow.control(hang={"path": "c", "op": "list"})
        process = subprocess.Popen([*MLFS, "mount", str(slow.path), *mount.flags], env=mount.env)
        wait_until(lambda: any("mountd" in words for words in mount.pids().values()))
        wait_until(lambda: slow.counts()["waiting"] > 0)
        process.send_signal(signal.SIGHUP)
        slow.control(release={"path": "c"})
        assert process.wait(PATIENCE_S) == 130
        assert not mount.is_mounted
        wait_until(lambda: not mount.pids())
        mount.clean_up()
        with MlfsMount(slow.path) as again:
            recording = begun(again, "record", str(again.path), str(tmp_path / "recorded"), say="recording")
            for name in NAMES:
                (again.path / name).read_bytes()
            again.settle()
            time.sleep(0.5)  # a recorder writes a moment later
            assert ended(recording, signal.SIGHUP)[0] == 0
            assert (tmp_path / "recorded").read_bytes().count(b".jpg") == len(NAMES)
