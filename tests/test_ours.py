"""Files and directories that only we can have written: somebody else's, links, FIFOs and the user's own files."""

from __future__ import annotations

import os
import random
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.others import somebody_else

from mlfs.ours import NotOursError, open_ours, open_to_append, private_directory, write_ours

MAGIC = b"mlfs kind\n"


def is_kind(beginning: bytes) -> bool:
    return beginning.startswith(MAGIC)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp: anybody may make things in it."""
    with tempfile.TemporaryDirectory(prefix="mlfs-ours-") as path:
        Path(path).chmod(0o1777)
        yield Path(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o377, 0o777])
def test_a_directory_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        os.close(private_directory(str(tmp_path / "a/b/c")))
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_directory_above_may_be_made_by_another_mount_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def late(path: str, mode: int, *, dir_fd: int | None = None) -> None:
        try:
            make(path, mode, dir_fd=dir_fd)
        except FileNotFoundError:
            (tmp_path / "a").mkdir(mode=0o700)
            raise

    monkeypatch.setattr(os, "mkdir", late)
    os.close(private_directory(str(tmp_path / "a/b")))
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "nowhere").symlink_to("nothing")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        private_directory(str(tmp_path / "nowhere/b"))


def test_a_directory_in_which_none_can_be_made_is_an_error() -> None:
    for path in ("/proc/none", "/proc/none/below"):
        with pytest.raises(FileNotFoundError):
            private_directory(path)


def test_a_directory_that_somebody_prepared_is_refused(shared: Path) -> None:
    somebody_else(lambda: (shared / "theirs").mkdir(mode=0o777))
    (shared / "real").mkdir(mode=0o700)
    somebody_else(lambda: (shared / "link").symlink_to("real"))
    (shared / "group").mkdir()
    (shared / "group").chmod(0o770)
    (shared / "all").mkdir()
    (shared / "all").chmod(0o1777)
    for name in ("theirs", "link", "group", "all"):
        with pytest.raises(NotOursError) as caught:
            private_directory(str(shared / name))
        assert caught.value.way_out
    os.close(private_directory(str(shared / "real")))


def things(shared: Path) -> list[Path]:
    """What must be neither read nor written over."""
    (shared / "mine").write_bytes(MAGIC)
    (shared / "link").symlink_to("mine")
    os.mkfifo(shared / "fifo")
    (shared / "dir").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(shared / "socket"))
    server.close()
    return [shared / name for name in ("link", "fifo", "dir", "socket")]


def test_only_our_own_regular_files_are_opened(shared: Path) -> None:
    (shared / "writable").write_bytes(MAGIC)
    (shared / "writable").chmod(0o666)
    somebody_else(lambda: (shared / "theirs").write_bytes(MAGIC))
    not_files = [*things(shared), Path("/dev/zero")]
    for path in [*not_files, shared / "writable", shared / "theirs"]:
        with pytest.raises(NotOursError):
            open_ours(str(path))
    for path in [*not_files, shared / "theirs"]:
        with pytest.raises(NotOursError):
            open_to_append(str(path), "a log", lambda _: True)
    os.close(open_ours(str(shared / "mine")))


def test_no_file_of_a_users_is_written_over(shared: Path) -> None:
    chance = random.Random(3)
    theirs = {f"notes{number}": chance.randbytes(chance.randrange(1, 9000)) for number in range(20)}
    theirs["nearly"] = MAGIC[:-1]
    for name, data in theirs.items():
        (shared / name).write_bytes(data)
    for path in [*things(shared), *(shared / name for name in theirs)]:
        with pytest.raises(NotOursError):
            write_ours(str(path), lambda file: None, "ours", is_kind)
    assert {name: (shared / name).read_bytes() for name in theirs} == theirs
    (shared / "empty").touch()
    for name in ("mine", "empty", "new"):
        write_ours(str(shared / name), lambda file: file.write(MAGIC + b"more") and None, "ours", is_kind)
        assert (shared / name).read_bytes() == MAGIC + b"more"
        assert stat.S_IMODE((shared / name).stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_what_was_there(shared: Path) -> None:
    (shared / "mine").write_bytes(MAGIC)

    def fails(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_ours(str(shared / "mine"), fails, "ours", is_kind)
    assert os.listdir(shared) == ["mine"]


def test_a_log_is_closed_to_others_and_has_one_name(shared: Path) -> None:
    (shared / "log").write_bytes(MAGIC)
    (shared / "log").chmod(0o644)
    os.close(open_to_append(str(shared / "log"), "a log", is_kind))
    assert stat.S_IMODE((shared / "log").stat().st_mode) == 0o600
    (shared / "second").hardlink_to(shared / "log")
    with pytest.raises(NotOursError, match="second name"):
        open_to_append(str(shared / "log"), "a log", is_kind)
