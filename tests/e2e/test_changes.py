"""Files that change at the source: bytes and attributes always belong together, and new content is found."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, make_tree

SIZES = {"small": 150_001, "large": 9_000_001}  # large: above what a demand read fetches whole
HEAD = 64 << 10
COPIES = 40
Change = Callable[[Path, bytes], bytes | None]


def replace(path: Path, old: bytes) -> bytes:
    """A new file under the old name, as rsync does."""
    new = content(path.name + " replaced", len(old) + 5000)
    (path.parent / "incoming").write_bytes(new)
    os.rename(path.parent / "incoming", path)
    return new


def swap(path: Path, old: bytes) -> bytes:
    """A new file under the old name, of the same size and mtime."""
    new, mtime_ns = content(path.name + " swapped", len(old)), os.stat(path).st_mtime_ns
    (path.parent / "incoming").write_bytes(new)
    os.utime(path.parent / "incoming", ns=(0, mtime_ns))
    os.rename(path.parent / "incoming", path)
    return new


def rewrite_unseen(path: Path, old: bytes) -> bytes:
    """As long as before, and mtime set back."""
    mtime_ns = os.stat(path).st_mtime_ns
    new = rewrite(path, old)
    os.utime(path, ns=(0, mtime_ns))
    return new


def rewrite(path: Path, old: bytes) -> bytes:
    """As long as before: only mtime tells."""
    new = content(path.name + " rewritten", len(old))
    with open(path, "r+b") as file:
        file.write(new)
    return new


def truncate(path: Path, old: bytes) -> bytes:
    os.truncate(path, len(old) // 2)
    return old[: len(old) // 2]


def grow(path: Path, old: bytes) -> bytes:
    with open(path, "ab") as file:
        file.write(b"more" * 2000)
    return old + b"more" * 2000


def touch(path: Path, old: bytes) -> bytes:
    os.utime(path, ns=(0, time.time_ns() + 5_000_000_000))
    return old


def remove(path: Path, old: bytes) -> None:
    os.unlink(path)


CHANGES: list[Change] = [replace, swap, rewrite, rewrite_unseen, truncate, grow, touch, remove]
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
every_size = pytest.mark.parametrize("size", SIZES)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {f"{size}{n:02d}": length for size, length in SIZES.items() for n in range(COPIES)}
    return make_tree(tmp_path_factory.mktemp("changes") / "source", tree)


@pytest.fixture(scope="module")
def mount(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlfsMount]:
    """Without a RAM class: what the page cache loses must come from the source again."""
    view = tmp_path_factory.mktemp("view")
    with MlfsMount(source, "--ram", "0", "--staging", "64M", mountpoint=view) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def unused() -> dict[str, Iterator[int]]:
    return {size: itertools.count() for size in SIZES}


@pytest.fixture
def name(size: str, unused: dict[str, Iterator[int]]) -> str:
    """A file that no other test has read or changed."""
    return f"{size}{next(unused[size]):02d}"


def read_whole(path: Path) -> tuple[int, int, bytes]:
    """Size and mtime that an open file claims, and its bytes."""
    with open(path, "rb", buffering=0) as file:
        claimed = os.fstat(file.fileno())
        return claimed.st_size, claimed.st_mtime_ns, file.read()


def whole(path: Path, data: bytes) -> tuple[int, int, bytes]:
    return len(data), os.stat(path).st_mtime_ns, data


def unless_stale(read: Callable[[], bytes]) -> bytes | None:
    """What is read; None for ESTALE, all that a handle of the past may answer with."""
    try:
        return read()
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise


def forget_pages(fd: int) -> None:
    """As the kernel does under pressure."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.promise("change-noticed", "change-vanished")
@every_size
@every_change
def test_before_it_is_fetched(source: Path, mount: MlfsMount, size: str, name: str, change: Change) -> None:
    old = content(name, SIZES[size])
    assert os.stat(mount.path / name).st_size == len(old)
    noticed = mount.status()["manifest"]["changed"]
    new = change(source / name, old)
    if new is None:
        with pytest.raises(FileNotFoundError):
            read_whole(mount.path / name)
        return
    assert read_whole(mount.path / name) == whole(source / name, new)
    assert os.stat(mount.path / name).st_size == len(new)
    assert mount.status()["manifest"]["changed"] == noticed + 1


@pytest.mark.promise("change-unnoticed")
@every_size
@every_change
def test_after_it_was_read(source: Path, mount: MlfsMount, size: str, name: str, change: Change) -> None:
    """It may be served as it was, bytes and attributes, as long as it lies in memory; not when that is gone."""
    old = content(name, SIZES[size])
    before = whole(source / name, old)
    assert read_whole(mount.path / name) == before
    new = change(source / name, old)
    if new is None:
        assert size == "large" or read_whole(mount.path / name) == before
        return
    after = whole(source / name, new)
    assert read_whole(mount.path / name) in (before, after)
    for _ in range(3):  # the first may learn of the change in the middle of its reads
        with open(mount.path / name, "rb") as file:
            forget_pages(file.fileno())
            assert unless_stale(file.read) in (None, old, new)
    assert read_whole(mount.path / name) == after


@pytest.mark.promise("change-whole", "change-stale", "change-vanished")
@every_size
@every_change
def test_while_a_handle_is_open(source: Path, mount: MlfsMount, size: str, name: str, change: Change) -> None:
    old = content(name, SIZES[size])
    fd = os.open(mount.path / name, os.O_RDONLY)
    try:
        assert os.pread(fd, HEAD, 0) == old[:HEAD]
        new = change(source / name, old)
        only_old(fd, old)
        if new is not None and size == "large":
            assert read_whole(mount.path / name) == whole(source / name, new)  # noticed by this open
        forget_pages(fd)
        only_old(fd, old)
    finally:
        os.close(fd)
    if new is not None:
        assert read_whole(mount.path / name) == whole(source / name, new)
    elif size == "small":
        with pytest.raises(FileNotFoundError):
            read_whole(mount.path / name)


def only_old(fd: int, old: bytes) -> None:
    """What the handle delivers is its own content, or nothing more."""
    for offset in range(0, len(old), HEAD):
        data = unless_stale(functools.partial(os.pread, fd, HEAD, offset))
        # Past a new end the kernel gives nothing: attributes belong to the file, not to the handle.
        assert data is None or data == old[offset : offset + len(data)]


@pytest.mark.promise("change-whole")
def test_a_writer_that_never_rests_shows_no_mix(
    source: Path, mount: MlfsMount, unused: dict[str, Iterator[int]]
) -> None:
    """Each version is one byte all over, of a length of its own."""
    name = f"small{next(unused['small']):02d}"
    seen = set()
    for version in range(1, 40):
        (source / "incoming").write_bytes(bytes([version]) * (50_000 + version * 1000))
        os.rename(source / "incoming", source / name)
        with open(mount.path / name, "rb", buffering=0) as file:
            claimed = os.fstat(file.fileno()).st_size
            data = unless_stale(file.read)
            forget_pages(file.fileno())
        if data is None:
            continue
        assert len(set(data)) == 1
        assert len(data) == claimed == 50_000 + data[0] * 1000
        seen.add(data[0])
    assert len(seen) > 1


@pytest.mark.promise("change-whole")
@every_size
def test_files_that_take_turns_under_one_name_show_no_mix(source: Path, mount: MlfsMount, size: str, name: str) -> None:
    """All of one size and mtime; pages are taken from the kernel at drawn places, between reads of drawn lengths."""
    chance, length = random.Random(size), SIZES[size]
    mtime_ns, old = os.stat(source / name).st_mtime_ns, (source / name).read_bytes()
    seen = set()
    for version in range(1, 30 if size == "small" else 6):
        (source / "incoming").write_bytes(bytes([version]) * length)
        os.utime(source / "incoming", ns=(0, mtime_ns))
        with open(mount.path / name, "rb", buffering=0) as file:
            data = unless_stale(functools.partial(file.read, chance.randrange(1, length)))
            os.rename(source / "incoming", source / name)
            start = chance.randrange(length)
            os.posix_fadvise(file.fileno(), start, chance.randrange(length), os.POSIX_FADV_DONTNEED)
            rest = unless_stale(file.read)
        if data is not None and rest is not None:
            assert data + rest == old or len(set(data + rest)) == 1
            assert len(data + rest) == length
        again = unless_stale((mount.path / name).read_bytes)
        assert again is None or again == old or len(set(again)) == 1
        seen.add(again[0] if again else 0)
    assert len(seen) > 1


@pytest.mark.promise("change-copies", "view-added")
def test_between_two_mounts_with_copies_on_disk_and_a_saved_index(tmp_path: Path) -> None:
    names = ["same", *(change.__name__ for change in CHANGES)]
    source = make_tree(tmp_path / "source", {f"c/{name}": 50_000 for name in names})
    flags = ("--ram", "0", "--staging", "1M", "--ssd", f"{tmp_path}/ssd:50M")
    old = {name: content(f"c/{name}", 50_000) for name in names}
    state = tmp_path / "state"
    with MlfsMount(source, *flags, state=state) as mount:
        assert {name: (mount.path / "c" / name).read_bytes() for name in names} == old
        wait_until(lambda: mount.status()["tiers"][1]["samples"] == len(names))
    expected = dict(old)
    for change in (
        rewrite,
        rewrite_unseen,
        truncate,
        grow,
        touch,
    ):  # no directory changes: the saved list of files is used again
        expected[change.__name__] = change(source / "c" / change.__name__, old[change.__name__]) or b""
    with MlfsMount(source, *flags, state=state) as mount:
        status = mount.status()
        assert "saved index" in status["manifest"]["how"]
        wait_until(lambda: mount.status()["tiers"][1]["samples"] == len(names))
        assert {name: read_whole(mount.path / "c" / name)[::2] for name in names} == sized(expected)
        status = mount.status()
        assert status["manifest"]["changed"] == 5
        assert status["reads"]["all"]["ssd"]["reads"] == len(names) - 5
        wait_until(lambda: mount.status()["tiers"][1]["samples"] == len(names))
    expected["replace"] = replace(source / "c/replace", old["replace"])
    remove(source / "c/remove", old["remove"])
    del expected["remove"]
    with MlfsMount(source, *flags, state=state) as mount:
        assert "scanned" in mount.status()["manifest"]["how"]
        assert {name: read_whole(mount.path / "c" / name)[::2] for name in expected} == sized(expected)
        assert sorted(os.listdir(mount.path / "c")) == sorted(expected)


def sized(contents: dict[str, bytes]) -> dict[str, tuple[int, bytes]]:
    return {name: (len(data), data) for name, data in contents.items()}
