"""The mount is read-only for the kernel, wherever it is seen, and takes commands all the same: by a mount beside it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import FSTYPE, MlfsMount
from support.others import somebody_else
from support.trees import make_tree

from mlfs.errors import ExitCode
from mountd import commands_mount
from mountd.wire import tell_in_parts

FORBIDDING = Path(__file__).parent.parent / "support/forbidding.py"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may enter, on a file system whose mounts spread to other mount namespaces."""
    path = Path(tempfile.mkdtemp(prefix="mlfs-ro-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", path], check=True)
    subprocess.run(["mount", "--make-shared", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)
    path.rmdir()


def table(pid: int | str = "self") -> list[tuple[str, str, str]]:
    """Mounts of mlfs as a process sees them: mount point, root, whether the mount (not its file system) is ro."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return [(line[4], line[3], line[5].split(",")[0]) for line in lines if FSTYPE in line]


def out(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def not_writable(*paths: Path) -> bool:
    """Whether nobody may write, as access(2) says, also to root, and the shell by it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        if not libc.access(os.fsencode(path), os.W_OK) or ctypes.get_errno() != errno.EROFS:
            return False
        if os.access(path, os.W_OK) or not os.access(path, os.R_OK):
            return False
        if subprocess.run(["test", "-w", path], check=False).returncode == 0:
            return False
    return True


def commands_of(tree: Path) -> str:
    """Where the mount for commands is mounted."""
    return os.readlink(tree / ".mlfs/control").removesuffix("/in/control")


def commands_now(tree: Path) -> str:
    """The same while it may come to its end; "" where the data's mount takes commands itself."""
    try:
        return commands_of(tree)
    except OSError:  # it is no link any more, perhaps since a moment ago
        return ""


def refused(attempt: Callable[[], object]) -> None:
    with pytest.raises(PermissionError):
        attempt()


@pytest.mark.promise("read-only-kernel", "control-elsewhere")
def test_the_kernel_knows_the_mount_as_read_only_in_all_namespaces_and_commands_work(place: Path) -> None:
    tree = make_tree(place / "tree", {"a/one": 100, "two": 100})
    state = place / "state"
    state.mkdir()
    # Whose mount namespace was there before the mount, and hears of it.
    other = subprocess.Popen(["unshare", "-m", "--propagation", "slave", "sleep", "600"])
    try:
        wait_until(lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))
        with MlfsMount(tree, "--allow-other", state=state) as mount:
            assert out("findmnt", "-no", "OPTIONS", "-T", tree).split(",")[0] == "ro"
            assert [where for where, _, mode in table(other.pid) if mode == "ro"] == [str(tree)]
            for enter in ([], ["nsenter", "-t", str(other.pid), "-m"]):
                for path in (tree, tree / "a", tree / "two", tree / ".mlfs"):
                    assert subprocess.run([*enter, "test", "-w", path], check=False).returncode == 1
            assert not_writable(tree, tree / "a", tree / "a/one", tree / "two", tree / ".mlfs/status")
            (place / "copy").mkdir()
            subprocess.run(["mount", "--bind", tree, place / "copy"], check=True)
            assert not_writable(place / "copy", place / "copy/two")
            subprocess.run(["umount", place / "copy"], check=True)
            # What commands are given by: a link that leads to a mount of its own, here and in the other namespace.
            control = tree / ".mlfs/control"
            line = json.dumps({"op": "register", "name": "seen", "layout": "sorted", "epochs": 1})
            enter_shell = ["nsenter", "-t", str(other.pid), "-m", "sh", "-c"]
            subprocess.run([*enter_shell, f"echo '{line}' > {control}; cat {control}"], check=True)
            assert [job["name"] for job in mount.status()["jobs"]] == ["seen"]
            assert os.access(control, os.W_OK)
            with pytest.raises(OSError, match="Invalid argument"):
                control.write_text('{"op": "unregister", "name": "nobody"}\n')
            assert "nobody" in control.read_text()
            mount.run("unregister", str(tree), "--name", "seen")

            def somebody_else_looks() -> None:
                assert json.loads(control.read_text())["ok"]
                refused(lambda: control.open("w"))

            somebody_else(somebody_else_looks)
            assert len(json.loads(mount.run("ls", "--json").stdout)) == 1
            # A container that sees the data and not the runtime directory: mlfs gives commands all the same.
            hidden = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {state} && exec "$@"', "sh"]
            fields = ["--sampler", "sequential", "--layout", "sorted", "--epochs", "1", "--batch-size", "1"]
            command = [sys.executable, "-m", "mlfs.cli.main", "register", str(tree), *fields]
            subprocess.run([*hidden, *command], check=True, env=mount.env | {"MLFS_RUNTIME_DIR": ""})
            long = json.dumps({"op": "unregister", "name": "x" * 50_000}).encode() + b"\n"
            with open(tree / ".mlfs/commands/in/control", "rb", buffering=0) as file:
                with pytest.raises(OSError, match="Invalid argument"):
                    tell_in_parts(file.fileno(), long)
                assert "x" * 50_000 in json.loads(file.read())["error"]
                assert [job["name"] for job in mount.status()["jobs"]] == ["train"]
                somebody_else(lambda: refused(lambda: tell_in_parts(file.fileno(), long)))
            assert subprocess.run([*hidden, "sh", "-c", f"echo > {control}"], check=False).returncode
        wait_until(lambda: not table() and not table(other.pid))
        assert not list((state / "run").iterdir())
    finally:
        other.kill()
        other.wait()


@pytest.mark.promise("end-elsewhere")
def test_a_mount_is_not_busy_while_mlfs_itself_lists_a_directory_of_it(place: Path) -> None:
    tree = make_tree(place / "tree", {f"many/{number:05}": 0 for number in range(15_000)})
    mount = MlfsMount(tree, state=place / "state")
    with mount:
        for number in range(8):  # of which it wants the other files, too
            (tree / f"many/{number:05}").stat()
        subprocess.run(["umount", tree], check=True)
        wait_until(lambda: not mount.pids())


@pytest.mark.promise("control-elsewhere", "end-elsewhere", "end-clean")
def test_the_mount_for_commands_goes_when_the_data_goes_however_it_goes(place: Path) -> None:
    tree = make_tree(place / "tree", {"a/one": 100})
    mount = MlfsMount(tree, state=place / "state")

    def nothing_is_left() -> bool:
        return not table() and not mount.pids() and not list((place / "state/run").iterdir())

    for how in (["umount"], ["umount", "-l"]):  # by fusermount3: tests/e2e/test_lifecycle.py
        with mount:
            assert {where for where, _, _ in table()} == {str(tree), commands_of(tree)}
            with open(tree / "a/one" if "-l" in how else "/dev/null", "rb") as held:
                subprocess.run([*how, tree], check=True)
                wait_until(lambda: not table())
                assert len(held.read()) == (100 if "-l" in how else 0)  # an open file outlives a lazy unmount
            wait_until(nothing_is_left)
    with mount:
        # Somebody takes the mount for commands away: it comes back.
        subprocess.run(["umount", commands_of(tree)], check=True)
        wait_until(lambda: commands_of(tree) in {where for where, _, _ in table()})
        mount.control({"op": "resume"})
        os.kill(mount.pid, signal.SIGTERM)
        wait_until(nothing_is_left)
    with mount:
        commands = commands_of(tree)
        mount.kill()
        assert len(table()) == 2
        subprocess.run(["umount", tree], check=True)
        assert [where for where, _, _ in table()] == [commands]
        assert mount.run("unmount", str(tree), check=False).returncode == ExitCode.NOT_MOUNTED
        assert not table()
    with mount:
        control = tree / ".mlfs/control"
        for _ in range(commands_mount.MOST_TIMES):  # and again: at last the data's mount takes commands itself
            commands = commands_of(tree)
            subprocess.run(["umount", commands], check=True)
            wait_until(lambda gone=commands: commands_now(tree) != gone)
            wait_until(lambda: commands_now(tree) in {"", *(where for where, _, _ in table())})
        assert not control.is_symlink()
        mount.kill()
        mount.run("unmount", str(tree))
        (note,) = (place / "state/run").iterdir()  # it tells the next mount of the death
        assert note.suffix == ".life"
    with mount:
        commands = commands_of(tree)
        mount.kill()
        subprocess.run(["umount", tree], check=True)
        other = make_tree(place / "other", {"b": 10})
        with MlfsMount(other) as next_mount:  # the next mount on this machine, whose records lie elsewhere
            assert {where for where, _, _ in table()} & {commands} == set()
            assert next_mount.is_mounted
    shutil.rmtree(place / "state")


@pytest.mark.promise("control-given-up", "control-refusal")
@pytest.mark.parametrize(
    ("call", "number"),
    [(commands_mount.FSPICK, errno.ENOSYS), (commands_mount.MOVE_MOUNT, errno.EPERM)],
)
def test_where_the_kernel_refuses_that_the_mount_is_writable_for_commands_and_says_so(
    place: Path, call: int, number: int
) -> None:
    tree = make_tree(place / "tree", {"a/one": 100})
    mount = MlfsMount(tree, state=place / "state")
    mount.within = [sys.executable, str(FORBIDDING), str(number), str(call)]
    with mount:
        assert "the mount is rw for the kernel, since commands go through it" in mount.said
        assert os.strerror(number) in mount.said
        assert [mode for _, _, mode in table()] == ["rw"]
        assert not (tree / ".mlfs/control").is_symlink()
        assert mount.control({"op": "resume"})["ok"]
        with pytest.raises(OSError, match="Read-only file system"):
            (tree / "new").write_text("")


@pytest.mark.promise("end-own")
def test_a_read_only_source_below_a_mount_that_has_just_gone_is_not_made_writable(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = place / "source"
    source.mkdir()
    monkeypatch.setenv("MLFS_RUNTIME_DIR", str(place / "run"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", source], check=True)
    commands = commands_mount.CommandsMount(str(source), False)
    commands.make("0:1")  # as when the mount over the source went between two looks at the table of mounts
    commands.leave("0:1")
    line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {source} " in line)
    assert [line.split()[5].split(",")[0], line.split()[-1].split(",")[0]] == ["ro", "ro"]
    assert not commands.directory
    subprocess.run(["umount", source], check=True)
