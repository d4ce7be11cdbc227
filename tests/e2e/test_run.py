"""`mlfs run`: a command reads a silent mount through an overlay of its own, and all that is promised of reads holds."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from support.forks import NO_MARK
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, image_folder, make_tree

from mlfs.cli import commands, run  # noqa: F401 - a fork has it imported
from mlfs.errors import ExitCode

PR_SET_DUMPABLE = 4
SILENT = ("--channel", "silent", "--allow-other", "--ram", "0")
FILES, SIZE = 30, 110_000
SOMEBODY = 4241
# What is found at each path, in the order of the listings.
LOOK = """
import hashlib, json, os, sys
top, found = sys.argv[1], {}
for directory, directories, names in os.walk(top):
    for name in [*directories, *names]:
        path = os.path.join(directory, name)
        its = os.lstat(path)
        is_file = not os.path.islink(path) and os.path.isfile(path)
        found[os.path.relpath(path, top)] = [
            its.st_mode, its.st_uid, its.st_gid, its.st_size, its.st_mtime_ns, its.st_nlink, its.st_blocks,
            os.readlink(path) if os.path.islink(path) else "",
            hashlib.md5(open(path, "rb").read()).hexdigest() if is_file else "",
            {key: os.getxattr(path, key).hex() for key in os.listxattr(path, follow_symlinks=False)} if is_file else {},
        ]
print(json.dumps(found))
"""
OPEN = """
import sys
for path in 3 * sys.argv[1:]:
    with open(path, "rb") as file:
        file.read()
"""
# Answers each path with the checksum of what is read there, or with an error.
ANSWER = 'while read -r path; do md5sum "$path" 2>&1; done; true'
PARTED = ("a/first", "b/second", "c/third")  # in directories of their own: no neighbour is fetched ahead
STALE, REFUSED, GONE = "Stale file handle", "Permission denied", "No such file or directory"


class Command:
    """COMMAND of `mlfs run` over a mount, by a fork: another user need not be able to reach Python.

    Attributes:
        left: the processes of those that have not been seen to end.
    """

    left: ClassVar[list[int]] = []

    def __init__(self, mount: MlfsMount, *words: str, user: int = 0, here: Path | None = None) -> None:
        (takes, self._asks), (self._hears, says) = os.pipe(), os.pipe()
        self._mount = mount
        self.pid = os.fork()
        self.left.append(self.pid)
        if self.pid == 0:
            try:
                for fd, of in ((takes, 0), (says, 1), (says, 2)):
                    os.dup2(fd, of)
                sys.stdout, sys.stderr = (open(fd, "w", 1, closefd=False) for fd in (1, 2))  # noqa: SIM115
                os.environ.update(mount.env | NO_MARK)  # who kills the mount does not kill what reads it
                if user:
                    for name in ("XDG_RUNTIME_DIR", "MLFS_RUNTIME_DIR"):  # they are root's
                        os.environ.pop(name, None)
                    os.setgroups([])
                    os.setresgid(user, user, user)
                    os.setresuid(user, user, user)
                    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as a process of that user is
                os.chdir(here or "/")
                os._exit(commands.main(["run", str(mount.path), "--", *words]))
            finally:
                os._exit(99)
        os.close(takes)
        os.close(says)
        self._said = os.fdopen(self._hears)

    def open(self, name: str) -> str:
        """The checksum of a file, or why it cannot be read; of the command that answers."""
        os.write(self._asks, f"{self._mount.path / name}\n".encode())
        answer = self._said.readline().strip()
        return answer.rpartition(": ")[2] if ": " in answer else answer.partition(" ")[0].removeprefix("\\")

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it has said."""
        os.close(self._asks)
        with self._said as said:
            words = said.read()
        self.left.remove(self.pid)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), words


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """A command that a test which fails has left would keep its mount."""
    yield
    for pid in Command.left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    Command.left.clear()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def mount() -> Iterator[MlfsMount]:
    place = Path(tempfile.mkdtemp(prefix="mlfs-run-"))
    place.chmod(0o755)  # other users can enter it
    tree = {name: content(name, size) for name, size in image_folder(classes=2, files=FILES, size=SIZE).items()}
    source = make_tree(place / "source", {**tree, "large.bin": content("large", 3_000_001), "open": 5000})
    (source / "linked").hardlink_to(source / "large.bin")
    (source / "link").symlink_to("open")
    os.setxattr(source / "open", "user.note", b"said")
    try:
        with MlfsMount(source, *SILENT, mountpoint=make_tree(place / "a:view, \\1", {})) as mounted:
            assert mounted.status()["channel"]["name"] == "silent"
            yield mounted
    finally:
        shutil.rmtree(place)


@pytest.mark.promise("run-same")
def test_a_command_finds_what_others_find_and_its_reads_are_counted(mount: MlfsMount) -> None:
    look = [sys.executable, "-c", LOOK, str(mount.path)]
    there = subprocess.run(look, stdout=subprocess.PIPE, check=True, text=True).stdout
    mount.settle()
    before = mount.status()
    code, here = Command(mount, *look).ends()
    assert (code, here) == (0, there)
    assert json.loads(here)["link"][7] == "open"
    mount.settle()
    after = mount.status()
    assert after["opens"] - before["opens"] == 2 * FILES + 3
    # By open(), with its IOCTL. A look-up of the overlay sends one request, which asks for an ACL.
    images = sorted(map(str, mount.path.glob("class*/*.jpg")))
    assert Command(mount, sys.executable, "-c", OPEN, *images).ends() == (0, "")
    mount.settle()
    now = mount.status()
    assert len(images) <= now["opens"] - after["opens"] <= 3 * len(images)  # within some milliseconds two may be one
    assert now["requests"]["other"] - after["requests"]["other"] < 2 * len(images)
    script = "pwd; echo no > open; mlfs status .; setpriv --reuid 1 true; exit 3"
    code, said = Command(mount, "sh", "-c", script, here=mount.path).ends()
    assert code == 3, said
    for words in (str(mount.path), "Read-only file system", "serving reads", "setresuid failed"):
        assert words in said
    code, said = Command(mount, "sh", "-c", f"mlfs unmount --timeout 100ms '{mount.path}'").ends()
    assert code == ExitCode.BUSY, said
    waiting = Command(mount, "sh", "-c", ANSWER)
    assert waiting.open("open") == md5(content("open", 5000))
    done = mount.run("unmount", str(mount.path), "--timeout", "100ms", check=False)
    assert done.returncode == ExitCode.BUSY
    assert f"an overlay of it at {mount.path}" in done.stderr
    assert waiting.ends() == (0, "")


@pytest.mark.promise("run-changes", "run-rights")
@pytest.mark.parametrize("user", [0, SOMEBODY])
def test_what_the_mount_notices_is_seen_by_the_command(mount: MlfsMount, user: int) -> None:
    reader = Command(mount, "sh", "-c", ANSWER, user=user)
    changed, held, vanished = (mount.source / f"class00/img_0000{number}.jpg" for number in (1, 2, 3 + (user > 0)))

    def noticed(path: Path, change: Callable[[Path], object]) -> None:
        """COMMAND has read the file, and somebody else's READ notices the change."""
        name = path.relative_to(mount.source)
        assert len(reader.open(str(name))) == 32
        changes = mount.path / ".mlfs/changes"
        before = changes.read_text()
        change(path)

        def is_noticed() -> bool:
            with suppress(OSError), open(mount.path / name, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read()
            return changes.read_text() != before or not path.exists()

        wait_until(is_noticed)

    def gives(path: Path, *answers: str) -> None:
        """The last of the answers comes, and before it none but the others."""
        name = str(path.relative_to(mount.source))
        wait_until(lambda: said.append(reader.open(name)) or said[-1] == answers[-1])
        assert set(said) <= set(answers), said
        said.clear()

    said: list[str] = []
    old, new = md5(changed.read_bytes()), content(f"new for {user}", 2 * SIZE)
    noticed(changed, lambda path: path.write_bytes(new))
    gives(changed, STALE, md5(new))
    noticed(changed, lambda path: path.chmod(0o600))
    gives(changed, STALE, REFUSED if user else md5(new))
    changed.chmod(0o644)
    assert old not in said
    mount.run("refresh", str(mount.path))
    gives(changed, STALE, REFUSED, md5(new))
    noticed(vanished, Path.unlink)
    gives(vanished, STALE, GONE)
    (mount.source / f"added{user}").write_bytes(new)
    assert reader.open(f"added{user}") == GONE
    mount.run("refresh", str(mount.path))
    gives(mount.source / f"added{user}", GONE, md5(new))
    # What somebody has open cannot be dropped, and is asked for again later.
    other = Command(mount, "sh", "-c", f"exec 3< '{mount.path}/{held.relative_to(mount.source)}'; echo; cat", user=user)
    os.read(other._hears, 1)
    noticed(held, lambda path: path.write_bytes(new))
    assert other.ends()[0] == 0
    gives(held, STALE, md5(new))
    assert reader.ends()[0] == 0


@pytest.mark.promise("run-outlived")
def test_a_command_reads_on_where_the_server_is_killed_and_nothing_is_left_where_all_are(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", dict.fromkeys(PARTED, 200_000))
    wanted = {name: md5(content(name, 200_000)) for name in PARTED}
    with MlfsMount(source, *SILENT) as mount:
        first, second, third = PARTED
        reader = Command(mount, "sh", "-c", ANSWER)
        assert reader.open(first) == wanted[first]
        os.kill(mount.pid, signal.SIGKILL)
        assert reader.open(second) == wanted[second]
        wait_until(lambda: mount.status()["opens"] == 2)
        mount.kill()
        assert reader.open(third) == "Transport endpoint is not connected"
        assert reader.ends()[0] == 0
        mount.run("mount", str(source), *mount.flags)  # it cleans up
        assert md5((mount.path / third).read_bytes()) == wanted[third]


def test_the_open_channel_has_no_overlay(tmp_path: Path) -> None:
    with MlfsMount(make_tree(tmp_path / "source", {"a": 100}), "--channel", "open") as mount:
        code, said = Command(mount, "true").ends()
        assert code == ExitCode.USAGE
        assert said.startswith("mlfs: the mount is on the open channel")
