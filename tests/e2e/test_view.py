"""The view through a real mount is the source, read-only."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mounts import MlfsMount


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with everything odd in it."""
    root = tmp_path_factory.mktemp("source")
    (root / "a").mkdir()
    (root / "a" / "one.jpg").write_bytes(os.urandom(110_000))
    (root / "a" / "empty.jpg").touch()
    (root / "a" / "page.bin").write_bytes(os.urandom(4096))
    (root / "a" / "large.bin").write_bytes(os.urandom(9_000_001))
    os.link(root / "a" / "one.jpg", root / "a" / "hard.jpg")
    os.symlink("one.jpg", root / "a" / "link.jpg")
    os.symlink("/nowhere", root / "broken")
    os.symlink("a", root / "directory-link")
    with open(os.fsencode(root) + b"/\xff\xfe odd \n name", "wb") as odd:
        odd.write(b"odd")
    (root / "empty-directory").mkdir(mode=0o750)
    os.chmod(root / "a" / "page.bin", 0o604)
    os.chown(root / "a" / "page.bin", 1234, 4321)
    os.utime(root / "a" / "page.bin", ns=(1, 1_234_567_890_123_456_789))
    deep = root / "deep"
    for level in range(40):
        deep = deep / f"level{level}"
    deep.mkdir(parents=True)
    (deep / "leaf").write_bytes(b"leaf")
    os.mkfifo(root / "fifo")
    with open(root / "sparse.bin", "wb") as sparse:
        for begin in ((4 << 30) + 12345, (1 << 40) - 11):
            sparse.seek(begin)
            sparse.write(b"beyond four")
    return root


@pytest.fixture(scope="module")
def mounted(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with MlfsMount(tree, mountpoint=tmp_path_factory.mktemp("mount")) as mount:
        yield Path(mount.path)


def walk(root: Path) -> dict[bytes, os.stat_result]:
    found = {}
    for directory, names, files in os.walk(os.fsencode(root)):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, os.fsencode(root))] = os.lstat(path)
    return found


@pytest.mark.promise("view-names")
def test_names_and_attributes_are_the_sources(tree: Path, mounted: Path) -> None:
    expected, seen = walk(tree), walk(mounted)
    assert set(seen) == set(expected)
    fields = ("st_mode", "st_uid", "st_gid", "st_size", "st_blocks", "st_mtime_ns", "st_nlink")
    for path, status in expected.items():
        assert [getattr(seen[path], f) for f in fields] == [getattr(status, f) for f in fields], path


@pytest.mark.promise("view-order")
def test_listings_never_change_their_order(mounted: Path) -> None:
    assert os.listdir(mounted / "a") == os.listdir(mounted / "a") == sorted(os.listdir(mounted / "a"))


@pytest.mark.promise("view-links")
def test_links_lead_where_they_lead_in_the_source(tree: Path, mounted: Path) -> None:
    assert os.readlink(mounted / "a/link.jpg") == "one.jpg"
    assert os.readlink(mounted / "broken") == "/nowhere"
    assert (mounted / "directory-link" / "link.jpg").read_bytes() == (tree / "a/one.jpg").read_bytes()
    assert (mounted / "a/hard.jpg").read_bytes() == (tree / "a/one.jpg").read_bytes()
    assert os.stat(mounted / "a/hard.jpg").st_ino == os.stat(mounted / "a/one.jpg").st_ino


@pytest.mark.promise("view-bytes")
def test_every_regular_file_reads_the_same(tree: Path, mounted: Path) -> None:
    for path, status in walk(tree).items():
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 30:
            for _ in range(2):  # from the source, then from the page cache
                with open(os.path.join(os.fsencode(mounted), path), "rb") as file:
                    data = file.read()
                with open(os.path.join(os.fsencode(tree), path), "rb") as file:
                    assert data == file.read(), path


@pytest.mark.promise("view-bytes")
def test_reads_beyond_four_gigabytes_and_up_to_a_terabyte(mounted: Path) -> None:
    fd = os.open(mounted / "sparse.bin", os.O_RDONLY)
    try:
        assert os.pread(fd, 20, (4 << 30) + 12340) == b"\0" * 5 + b"beyond four" + b"\0" * 4
        assert os.pread(fd, 5000, 0) == b"\0" * 5000
        assert os.pread(fd, 20, (1 << 40) - 16) == b"\0" * 5 + b"beyond four"
        assert os.pread(fd, 100, 1 << 40) == b""
    finally:
        os.close(fd)


@pytest.mark.promise("view-bytes")
@pytest.mark.parametrize("name", ["one.jpg", "large.bin", "page.bin"])
def test_every_way_to_read(tree: Path, mounted: Path, name: str, tmp_path: Path) -> None:
    expected = (tree / "a" / name).read_bytes()
    fd = os.open(mounted / "a" / name, os.O_RDONLY)
    try:
        for offset, size in (
            (0, 10),
            (1, 4095),
            (4095, 2),
            (len(expected) - 3, 100),
            (len(expected), 10),
            (77, 1 << 20),
        ):
            assert os.pread(fd, size, offset) == expected[offset : offset + size]
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == expected
        with open(tmp_path / "copy", "wb") as copy:
            sent = 0
            while sent < len(expected):
                sent += os.sendfile(copy.fileno(), fd, sent, len(expected) - sent)
        assert (tmp_path / "copy").read_bytes() == expected
    finally:
        os.close(fd)
    direct = os.open(mounted / "a" / name, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 1 << 20)
        got = b""
        while (count := os.preadv(direct, [buffer], len(got))) > 0:
            got += buffer[:count]
            if count % 512:
                break
        assert got == expected
    finally:
        os.close(direct)


@pytest.mark.promise("view-bytes")
def test_many_readers_of_one_file(tree: Path, mounted: Path) -> None:
    expected = (tree / "a/large.bin").read_bytes()
    wrong = []

    def reader() -> None:
        if (mounted / "a/large.bin").read_bytes() != expected:
            wrong.append(1)

    threads = [threading.Thread(target=reader) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def refusals(mounted: Path) -> Iterator[tuple[str, object]]:
    file, new = mounted / "a/one.jpg", mounted / "a/new"
    yield "write", lambda: os.open(file, os.O_WRONLY)
    yield "append", lambda: os.open(file, os.O_RDWR | os.O_APPEND)
    yield "truncate", lambda: os.truncate(file, 0)
    yield "create", lambda: os.open(new, os.O_CREAT | os.O_WRONLY)
    yield "mkdir", lambda: os.mkdir(new)
    yield "rename", lambda: os.rename(file, new)
    yield "unlink", lambda: os.unlink(file)
    yield "rmdir", lambda: os.rmdir(mounted / "empty-directory")
    yield "symlink", lambda: os.symlink("x", new)
    yield "link", lambda: os.link(file, new)
    yield "chmod", lambda: os.chmod(file, 0o777)
    yield "chown", lambda: os.chown(file, 0, 0)
    yield "utime", lambda: os.utime(file)
    yield "mknod", lambda: os.mknod(new)
    yield "setxattr", lambda: os.setxattr(file, "user.x", b"1")


@pytest.mark.promise("view-read-only")
def test_whatever_writes_is_refused_as_read_only(tree: Path, mounted: Path) -> None:
    before = (tree / "a/one.jpg").read_bytes()
    for name, attempt in refusals(mounted):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is checked below
            attempt()  # type: ignore[operator]
        assert caught.value.errno == errno.EROFS, name
    assert (tree / "a/one.jpg").read_bytes() == before


@pytest.mark.promise("view-control")
def test_the_control_directory_is_there_and_in_no_listing(mounted: Path) -> None:
    assert ".mlfs" not in os.listdir(mounted)
    assert all(b".mlfs" not in path for path in walk(mounted))
    assert sorted(os.listdir(mounted / ".mlfs")) == ["audit", "control", "jobs", "metrics", "order", "status"]
    assert b"mlfs_reads_total" in (mounted / ".mlfs/metrics").read_bytes()


def test_df_and_statvfs_answer(tree: Path, mounted: Path) -> None:
    assert os.statvfs(mounted).f_blocks == os.statvfs(tree).f_blocks
    assert str(mounted) in subprocess.run(["df", mounted], capture_output=True, text=True, check=True).stdout


def test_missing_names(mounted: Path) -> None:
    for name in ("nothing", "a/nothing", ".mlfs/nothing", "a/one.jpg/x"):
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            os.stat(mounted / name)
