"""Mounting at a place whose mount is just being unmounted, or whose daemon died."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import make_tree

from mountd import mounts, preflight
from mountd.preflight import ends_abandoned

PIDFD_GETFD = 438


def descriptor_of(mount: MlfsMount) -> int:
    """The descriptor of /dev/fuse that its server has: a dead one keeps it while a thread of it waits for the mount."""
    for number in os.listdir(f"/proc/{mount.pid}/fd"):
        if os.readlink(f"/proc/{mount.pid}/fd/{number}") == "/dev/fuse":
            with open(os.pidfd_open(mount.pid)) as server:
                copied: int = ctypes.CDLL(None).syscall(PIDFD_GETFD, server.fileno(), int(number), 0)
            assert copied >= 0
            return copied
    raise AssertionError("there is none")


@pytest.mark.promise("killed-daemon-said")
@pytest.mark.promise("mount-waits")
def test_after_a_kill_and_behind_an_unmount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mounts.probe
    monkeypatch.setattr(mounts, "probe", lambda path, _=0.0: real(path, 0.5))  # which waits for 5 s
    source = make_tree(tmp_path / "source", {f"{n:02}.jpg": b"x" * n for n in range(1, 40)})
    with MlfsMount(source, state=tmp_path / "state") as mount:
        flags = ["--name", "train", "--seed", "7", "--epochs", "3", "--start-epoch", "1", "--layout", "sorted"]
        mount.run("register", str(mount.path), *flags)
        mount.run("register", str(mount.path), *flags, "--name", "gone")
        mount.run("unregister", str(mount.path), "gone")
        died = mount.pid
        with open(mount.path / "39.jpg", "rb", buffering=0) as held:
            assert held.read() == b"x" * 39
            fuse = descriptor_of(mount)
            mount.kill()
            entry = mounts.mount_at(str(mount.path))
            assert entry is not None
            assert not ends_abandoned(entry)  # no record is known here: it may be anybody's
            monkeypatch.setenv("MLFS_RUNTIME_DIR", mount.env["MLFS_RUNTIME_DIR"])
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(preflight, "machine", lambda: "another")
                assert not ends_abandoned(entry)  # its processes may live where they cannot be seen
            wait_until(lambda: ends_abandoned(entry))  # its processes may not have ended yet
            os.close(fuse)
            assert os.pread(held.fileno(), 100, 0) == b"x" * 39  # it is staged

        again = mount.run("mount", str(source), "--infer", "off")
        said = f"the daemon that served {mount.path} before this one (process {died}) died; what was registered with it"
        told = next(line for line in again.stderr.splitlines() if said in line)
        assert any(said in line for path in (tmp_path / "state/cache").glob("mlfs/log/*") for line in path.open())
        assert told.removeprefix("mlfs: ") in mount.status()["messages"]
        offered = told.split("is lost: ")[1]
        assert set(shlex.split(offered)[3:]) == set(flags)
        mount.run(*shlex.split(offered)[1:])
        assert not any("is lost" in message for message in mount.status()["messages"])

        reader = os.open(source / "01.jpg", os.O_RDONLY)
        command = [sys.executable, "-m", "mlfs.cli.main"]
        epilog = subprocess.Popen(
            [*command, "unmount", str(mount.path), "--timeout", "5m"], env=mount.env, stderr=subprocess.PIPE
        )
        assert epilog.stderr is not None
        assert b"is in use by" in epilog.stderr.readline()
        first, prolog_says = mount.pid, tmp_path / "said"
        with prolog_says.open("wb") as file:
            prolog = subprocess.Popen(
                [*command, "mount", str(source), "--infer", "off"], env=mount.env, stdout=file, stderr=file
            )
        wait_until(lambda: b"is being unmounted: waiting for that" in prolog_says.read_bytes())
        assert prolog.poll() is None
        os.close(reader)
        assert [epilog.wait(60), prolog.wait(60)] == [0, 0]
        epilog.stderr.close()
        assert f"mounted {mount.path} over itself" in prolog_says.read_text()
        assert mount.pid != first
        assert not any("died" in message for message in mount.status()["messages"])
