"""The root of a source whose file system dies: what is taken for the same source again, and what is not."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlfs.places import source_root
from mlfs.places.posix import PosixSource
from mlfs.places.source_statistics import RootState, RootStatistics
from mlfs.tree.scan import scan

FILES = {f"d{number % 3}/{number}": os.urandom(100 + number) for number in range(20)}


class Root:
    """A source at `path` whose file system can die: calls on what was there at the time then fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, data in FILES.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        self.fd = os.open(path, os.O_RDONLY)
        self.manifest = scan(self.fd)
        self.entry = self.manifest.find(b"d1/4")
        self.dead: dict[int, int] = {}
        self.source = PosixSource(self.fd, self.manifest, str(path))

    def die(self, error: int) -> None:
        """What is open of the source fails with this error, the same directory at the path too."""
        self.dead[os.fstat(self.fd).st_ino] = error

    def check(self, fd: int) -> None:
        error = self.dead.get(os.fstat(fd).st_ino)
        if error:
            raise OSError(error, os.strerror(error))

    def move_away(self) -> Path:
        return self.path.rename(self.path.with_name("away"))

    def now(self) -> RootStatistics:
        return self.source.statistics().root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    root = Root(tmp_path / "source")

    def failing(call: Callable[..., int]) -> Callable[..., int]:
        def checked(root_fd: int, *rest: object) -> int:
            root.check(root_fd)
            return call(root_fd, *rest)

        return checked

    statvfs = os.fstatvfs
    monkeypatch.setattr("mlfs.places.posix.open_beneath", failing(source_root.open_beneath))
    monkeypatch.setattr("mlfs.places.source_root.os.fstatvfs", lambda fd: (root.check(fd), statvfs(fd))[1])
    yield root
    root.source.close()
    os.close(root.fd)


@pytest.mark.parametrize("error", sorted(source_root.GONE))
def test_the_same_source_at_its_path_is_gone_on_with(root: Root, error: int) -> None:
    away = root.move_away()
    root.die(error)
    with pytest.raises(OSError, match=os.strerror(error)):
        root.source.read_whole(root.entry)
    assert (root.now().state, root.now().error) == (RootState.GONE, os.strerror(error))
    shutil.copytree(away, root.path)
    assert root.source.read_whole(root.entry).data == FILES["d1/4"]
    assert (root.now().state, root.now().opened_again) == (RootState.THERE, 1)
    (root.path / "d1/4").write_bytes(b"another content")
    assert root.source.read_whole(root.entry).changed


@pytest.mark.parametrize("there", ["nothing in it", "another data set", "fewer than half of the files"])
def test_what_is_not_the_same_source_is_not_taken_for_it(root: Root, there: str) -> None:
    away = root.move_away()
    root.die(errno.ENOTCONN)
    root.path.mkdir()
    for name in list(FILES)[: {"nothing in it": 0, "another data set": 20, "fewer than half of the files": 9}[there]]:
        (root.path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(away / name, root.path / name)
        if there == "another data set":
            (root.path / name).write_bytes(b"the same name")
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            root.source.read_whole(root.entry)
        assert root.now().state is RootState.OTHER
    root.source.look()
    assert root.now().state is RootState.OTHER
    shutil.rmtree(root.path)
    shutil.copytree(away, root.path)
    root.source.look()  # as the daemon does when nobody reads
    assert root.now().state is RootState.THERE
    assert root.source.read_whole(root.entry).data == FILES["d1/4"]


def test_a_file_that_fails_is_not_the_end_of_the_source(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("mlfs.places.posix.open_beneath", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        root.source.read_whole(root.entry)
    assert root.now() == RootStatistics()


def test_a_file_system_that_answers_again_by_itself_is_there(root: Root) -> None:
    root.die(errno.EIO)  # what is at the path fails as well: it is the same directory
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        root.source.read_whole(root.entry)
    assert root.now().state is RootState.GONE
    root.dead.clear()
    root.source.look()
    assert (root.now().state, root.now().opened_again) == (RootState.THERE, 0)


def test_an_open_file_goes_on_by_the_same_content_and_by_no_other(root: Root) -> None:
    with_it = [root.source.open(root.entry) for _ in range(2)]
    away = root.move_away()
    root.die(errno.ENOTCONN)
    shutil.copytree(away, root.path)  # with other change times: it could be another content
    error = OSError(errno.ENOTCONN, "")
    assert root.source.root.is_back(error, 0)
    opened = root.source.open_again(root.entry, error, 0)
    assert opened is not None
    fd, number, _ = opened
    assert root.source.swap(with_it[0], fd, number)
    assert with_it[0].read(0, 500) == FILES["d1/4"]
    with_it[1].close()
    assert not root.source.swap(with_it[1], fd, number)
    with_it[0].close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)
