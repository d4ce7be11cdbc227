"""`mlfs refresh`: after drawn changes of the source the mount shows what the source has, under readers and jobs."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import LyingSource, SlowSource
from support.trees import make_tree

from mountd.misses import BURST, EVERY_S

Shown = dict[str, tuple[object, ...]]
NAMES = ["a", "b", "c", "ab", "index.npy", "z\udcff"]


def shown(root: Path) -> Shown:
    """What a walk of a tree finds: kinds, sizes, rights, times, bytes, targets; each also by its name alone."""
    found: Shown = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            told: tuple[object, ...] = (status.st_mode, status.st_uid, status.st_mtime_ns, status.st_nlink)
            if stat.S_ISREG(status.st_mode):
                told += (status.st_size, Path(path).read_bytes())
            elif stat.S_ISLNK(status.st_mode):
                told += (os.readlink(path),)
            found[os.path.relpath(path, root)] = told
    return found


def change(root: Path, draw: random.Random) -> None:
    """One change of the source."""
    paths = sorted([root, *(Path(at, name) for at, inside, files in os.walk(root) for name in inside + files)])
    at = draw.choice(paths)
    directory = at if at.is_dir() and not at.is_symlink() else at.parent
    path = directory / draw.choice(NAMES)
    kind = draw.choice(["file", "file", "bytes", "directory", "link", "gone", "gone", "rename", "chmod"])
    if kind in ("gone", "directory", "link") and os.path.lexists(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if kind == "file" and not path.is_dir():
        (root / "incoming").write_bytes(draw.randbytes(draw.choice([0, 3, 5000, 20_000])))
        os.rename(root / "incoming", path)
    elif kind == "bytes" and at.is_file() and not at.is_symlink():
        at.write_bytes(draw.randbytes(draw.choice([1, 100, 9000])))
    elif kind == "directory":
        path.mkdir()
        for number in range(draw.randrange(4)):
            (path / f"{number}").write_bytes(draw.randbytes(number))
    elif kind == "link":
        path.symlink_to(draw.choice(NAMES))
    elif kind == "chmod" and at.is_file() and not at.is_symlink():
        at.chmod(draw.choice([0o644, 0o600, 0o755]))
    elif kind == "rename":
        other = root / draw.choice(NAMES)
        if at != root and not os.path.lexists(other) and not other.is_relative_to(at):
            at.rename(other)


class Reader:
    """Reads all the while what it finds in a mount, and what never changes: that must have its bytes all the time."""

    def __init__(self, root: Path, fixed: dict[str, bytes]) -> None:
        self._root, self._fixed = root, fixed
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, content in self._fixed.items():
                if (self._root / name).read_bytes() != content:
                    self.wrong.append(name)
            try:
                for path in self._root.rglob("*"):
                    if path.is_file() and not path.is_symlink():
                        path.read_bytes()
            except OSError:
                pass  # it went, or changed, while it was read
            self.rounds += 1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tree(
        tmp_path / "source",
        {f"fixed/{n:03d}.jpg": 2000 + n for n in range(60)} | {f"moving/{n}.jpg": 10 + n for n in range(20)},
    )


@pytest.fixture
def mount(source: Path, tmp_path: Path) -> Iterator[MlfsMount]:
    (tmp_path / "mnt").mkdir()
    with MlfsMount(source, mountpoint=tmp_path / "mnt") as mount:
        yield mount


def rest_of(file: FileIO) -> bytes | str:
    try:
        return file.read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return "stale"


def refresh(mount: MlfsMount, *path: str) -> str:
    return mount.run("refresh", str(mount.path), *path).stdout


def refresh_without_command(mount: MlfsMount, path: str) -> None:
    number = mount.control({"op": "refresh", "path": path})["run"]

    def told() -> dict[str, object]:
        told: dict[str, object] = mount.status()["refresh"]
        return told

    wait_until(lambda: told()["run"] == number and told()["state"] != "running")
    assert told()["state"] == "done"


@pytest.mark.promise("view-refreshed")
@pytest.mark.promise("refresh-jobs")
def test_drawn_changes_under_a_reader_and_jobs(mount: MlfsMount, source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with MlfsMount(source, "--ram", "0", mountpoint=tmp_path / "other", state=mount.state) as other:
        names = {path: told[0] for path, told in shown(other.path).items()}
        _changes_under_a_reader_and_jobs(mount, source)
        assert {path: os.lstat(other.path / path).st_mode for path in names} == names, "another mount is not refreshed"
        refresh(other, "moving")
        assert shown(other.path) == shown(source)
    mount.unmount()
    mount.mount()
    assert "saved index" in mount.status()["manifest"]["how"]
    assert shown(mount.path) == shown(source)


def _changes_under_a_reader_and_jobs(mount: MlfsMount, source: Path) -> None:
    draw = random.Random(28)
    fixed = {f"fixed/{n:03d}.jpg": (source / f"fixed/{n:03d}.jpg").read_bytes() for n in range(60)}
    for name, epochs in (("fixed", 1000), ("moving", 10)):
        mount.register(name=name, root=name, layout="sorted", sampler="sequential", epochs=epochs)
    assert shown(mount.path) == shown(source)
    numbers = {path: os.lstat(mount.path / path).st_ino for path in shown(source)}
    with Reader(mount.path, fixed) as reader:
        for turn in range(12):
            for _ in range(draw.randrange(1, 8)):
                change(source / "moving", draw)
            for name in NAMES:  # the kernel learns that some of these are not there
                (mount.path / "moving" / name).exists()
            if turn == 5:
                refresh(mount, str(mount.path / "moving"))
            else:
                refresh_without_command(mount, ["", "moving"][turn % 2])
            now = shown(source)
            assert shown(mount.path) == now, f"after turn {turn}"
            for path in NAMES:
                assert os.path.lexists(mount.path / "moving" / path) == os.path.lexists(source / "moving" / path)
            for path in fixed:
                assert os.lstat(mount.path / path).st_ino == numbers[path]
        rounds = reader.rounds
        wait_until(lambda: reader.rounds > rounds)
    assert not reader.wrong
    (source / "moving" / "one more.jpg").write_bytes(b"12345")
    said = refresh(mount)
    assert "1 has come" in said
    assert "job moving: registered over 20 samples" in said
    assert "job fixed" not in said
    status = mount.status()
    (outdated,) = status["refresh"]["outdated"]
    listed = len([path for path in (source / "moving").rglob("*") if path.is_file()])
    assert (outdated["name"], outdated["samples"]) == ("moving", 20)
    assert outdated["now"] <= listed
    assert any("job moving: registered over 20 samples" in message for message in status["messages"])
    mount.register(name="moving", root="moving", layout="sorted", sampler="sequential", epochs=10)
    assert mount.status()["refresh"]["outdated"] == []


@pytest.mark.promise("view-refreshed")
def test_what_is_open_when_it_goes_or_is_replaced(mount: MlfsMount, source: Path) -> None:
    gone, replaced, listed = "moving/3.jpg", "moving/4.jpg", mount.path / "moving"
    before = {name: (source / name).read_bytes() for name in (gone, replaced)}
    with (
        open(mount.path / gone, "rb", buffering=0) as of_gone,
        open(mount.path / replaced, "rb", buffering=0) as of_replaced,
        os.scandir(listed) as listing,
    ):
        assert of_gone.read(4) == before[gone][:4]
        seen = [next(listing).name]
        (source / gone).unlink()
        (source / "moving/new").write_bytes(b"new")
        (source / "moving/incoming").write_bytes(b"x" * 50)
        os.rename(source / "moving/incoming", source / replaced)
        refresh(mount)
        assert not (mount.path / gone).exists()
        assert (mount.path / replaced).read_bytes() == b"x" * 50
        assert (mount.path / "moving/new").read_bytes() == b"new"
        assert rest_of(of_gone) in (before[gone][4:], "stale")
        assert rest_of(of_replaced) in (before[replaced], b"x" * 50, "stale"), "parts of two contents"
        seen += [entry.name for entry in listing]
    always = {path.name for path in (source / "moving").iterdir()} - {"new"}
    assert always <= set(seen)
    assert len(seen) == len(set(seen))
    (source / gone).write_bytes(b"it is back")
    assert not (mount.path / gone).exists()
    refresh(mount)
    assert (mount.path / gone).read_bytes() == b"it is back"


@pytest.mark.promise("told-added")
@pytest.mark.wall_clock
def test_names_that_were_added_are_noticed_and_told(mount: MlfsMount, source: Path) -> None:
    assert not (mount.path / "index.npy").exists()
    (source / "index.npy").write_bytes(b"1")
    (source / "moving/deep").mkdir()
    (source / "moving/deep/x").write_bytes(b"1")

    def added() -> int:
        for name in ("index.npy", "moving/deep", "nowhere", "moving/nowhere"):
            assert not (mount.path / name).exists()
        count: int = mount.status()["refresh"]["added_since_scan"]
        return count

    wait_until(lambda: added() == 2)
    status = mount.status()
    assert set(status["refresh"]["first_added"]) == {"index.npy", "moving/deep"}
    (told,) = [message for message in status["messages"] if message.startswith("added since the scan: ")]
    assert "index.npy" in told
    assert f"`mlfs refresh {mount.path}`" in told
    log = next((mount.state / "cache").glob("mlfs/log/*.log")).read_text()
    assert f"added since the scan: index.npy (mlfs refresh {mount.path})" in log
    began, before = time.monotonic(), mount.status()["refresh"]["looks"]
    for number in range(2000):  # as an import of Python asks: nobody waits for the source
        assert not (mount.path / "moving" / f"not-{number}.py").exists()
    looks = mount.status()["refresh"]["looks"] - before
    assert looks <= BURST + (time.monotonic() - began) / EVERY_S + 1
    refresh(mount)
    assert (mount.path / "index.npy").read_bytes() == b"1"
    assert (mount.path / "moving/deep/x").read_bytes() == b"1"
    assert mount.status()["refresh"]["added_since_scan"] == 0


def test_a_refresh_shows_how_far_it_is_and_can_be_ended(tmp_path: Path) -> None:
    backing = make_tree(tmp_path / "backing", {f"{n:03d}": n for n in range(400)})
    (tmp_path / "mnt").mkdir()
    with SlowSource(backing) as slow, MlfsMount(slow.path, mountpoint=tmp_path / "mnt") as mount:
        (backing / "new").write_bytes(b"new")
        slow.control(look_latency_s=0.1)
        command = [sys.executable, "-m", "mlfs.cli.main", "refresh", str(mount.path)]
        with subprocess.Popen(command, env=mount.env, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("mlfs: scan: ")
            first = mount.status()["refresh"]
            wait_until(lambda: mount.status()["refresh"]["entries"] > first["entries"])
            assert first["state"] == "running"
            again = mount.run("refresh", str(mount.path), check=False)
            assert (again.returncode, "under way" in again.stderr) == (7, True)
            assert (mount.path / "007").read_bytes() == (backing / "007").read_bytes()
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
        assert (process.returncode, "interrupted" in said) == (130, True)
        assert mount.status()["refresh"]["state"] == "stopped"
        slow.control(look_latency_s=0)
        assert not (mount.path / "new").exists()
        assert "1 has come" in refresh(mount)
        assert (mount.path / "new").read_bytes() == b"new"
        slow.control(look_latency_s=0.1)
        mount.control({"op": "refresh"})  # and the mount is ended meanwhile


def test_times_that_are_made_up_are_no_change(tmp_path: Path) -> None:
    backing = make_tree(tmp_path / "backing", {f"d/{n}": 3000 + n for n in range(20)} | {"unread/x": 5})
    (tmp_path / "mnt").mkdir()
    with LyingSource(backing) as source:
        source.lie("", ctime="now", directories="now")
        source.lie("unread", listed=errno.EIO)
        with MlfsMount(source.path, mountpoint=tmp_path / "mnt") as mount, open(mount.path / "d/5", "rb") as held:
            assert held.read(10) == (backing / "d/5").read_bytes()[:10]
            assert any("unread" in message for message in mount.status()["messages"])
            source.truth("unread")
            (backing / "d/new").write_bytes(b"new")
            (backing / "d/7").write_bytes(b"another size")
            said = refresh(mount)
            assert "2 have come, 1 has changed" in said
            assert shown(mount.path).keys() == shown(backing).keys()
            assert not any("unread" in message for message in mount.status()["messages"])
            for path in backing.glob("d/*"):
                assert (mount.path / "d" / path.name).read_bytes() == path.read_bytes()
            assert held.read() == (backing / "d/5").read_bytes()[10:]
            assert "nothing has changed" in refresh(mount, "d")
            (backing / "d").chmod(0o711)
            assert "1 has changed" in refresh(mount)
            assert stat.S_IMODE(os.stat(mount.path / "d").st_mode) == 0o711
