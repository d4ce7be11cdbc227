"""`mlfs unmount` finds who reads through another mount of the same file system: namespaces, bind mounts, overlays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import Mounts

from mlfs.cli import main as cli
from mlfs.errors import ExitCode
from mountd import holders, mounts

MS_REC, MS_BIND, MS_SHARED = 0x4000, 0x1000, 1 << 20  # linux/mount.h
MNT_DETACH = 2
WAITS = "echo; read -r _"
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, data)]
    assert libc.mount(words[0], words[1], words[2], flags, words[3]) == 0, os.strerror(ctypes.get_errno())


@contextlib.contextmanager
def mounted(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> Iterator[str]:
    """Something is mounted at a directory or file, which is made, while the context lasts."""
    mount(source, target, kind, flags, data)
    try:
        yield os.path.basename(target)
    finally:
        libc.umount2(os.fsencode(target), MNT_DETACH)


@contextlib.contextmanager
def in_namespace(propagation: str, script: str = "true") -> Iterator[str]:
    """A process with a mount namespace of its own, as a container has it, runs while the context lasts."""
    command = ["unshare", "--mount", "--propagation", propagation, "sh", "-c", f"{script} && {WAITS}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield f"pid {process.pid}"
    finally:
        process.communicate()


def refused(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What unmounting says, which is to fail."""
    assert cli.main(["unmount", path, "--timeout", "200ms"]) == ExitCode.BUSY
    assert mounts.mount_at(path) is not None
    with open(f"{path}/data.bin", "rb") as file:
        assert file.read(4)  # it goes on serving
    return capsys.readouterr().err


@pytest.mark.promise("end-held-elsewhere")
def test_other_mounts_of_the_file_system_are_named_and_keep_it(
    open_dir: Path, tiny: Mounts, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("shared", "bind", "merged"):
        (open_dir / name).mkdir()
    (open_dir / "file").touch()
    place = f"{open_dir}/shared/with space"
    with mounted(f"{open_dir}/shared", f"{open_dir}/shared", flags=MS_BIND):
        mount("none", f"{open_dir}/shared", flags=MS_SHARED)
        os.mkdir(place)
        layers = f"lowerdir={place}:{open_dir}/bind"
        with mounted("none", f"{open_dir}/merged", "overlay", data=layers):  # of what lies below the mount
            server = tiny.start(place)
            entry = mounts.mount_at(place)
            assert entry is not None
            with in_namespace("slave"):  # it hears of the end: its mount goes with ours
                assert holders.other_mounts(entry) == []
            with in_namespace("private") as pid:
                assert pid in refused(place, capsys)
            with in_namespace("slave", f"mount --bind '{place}' '{open_dir}/bind'") as pid:
                said = refused(place, capsys)
                assert pid in said
                assert f"{open_dir}/bind" in said
            with mounted(place, f"{open_dir}/bind", flags=MS_BIND):
                assert f"{open_dir}/bind (a bind mount of it)" in refused(place, capsys)
            with mounted(f"{place}/data.bin", f"{open_dir}/file", flags=MS_BIND):
                assert f"{open_dir}/file (a bind mount of it)" in refused(place, capsys)
            with mounted(f"{place}/.mlfs/control", f"{open_dir}/file", flags=MS_BIND):  # mlfs itself does that
                assert holders.other_mounts(entry) == []
        with mounted("none", f"{open_dir}/merged", "overlay", data=layers):
            assert f"{open_dir}/merged (an overlay of it)" in refused(place, capsys)
        with in_namespace("slave", f"exec 3<'{place}/data.bin'") as pid:  # the kernel says that it is busy, not by whom
            assert f"({pid}, open: data.bin)" in refused(place, capsys)
        with in_namespace("slave"):
            assert cli.main(["unmount", place]) == 0
        assert server.wait(30) == 0


@pytest.mark.promise("end-held-elsewhere")
def test_force_does_not_wait_for_other_mounts(open_dir: Path, tiny: Mounts) -> None:
    place = f"{open_dir}/m"
    os.mkdir(place)
    tiny.start(place)
    with in_namespace("private"):
        assert cli.main(["unmount", place, "--force"]) == 0
        assert mounts.mount_at(place) is None
