"""The POSIX source on real files that are changed, cut, replaced and removed at the worst moment."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest
from faulty import FaultySource
from source_support import Tree, error_of, overwrite

from mlfs.places import known_file, posix
from mlfs.tree import openat, stable_stat


@pytest.mark.parametrize("size", [0, 1, 4096, 110_000, 3 << 20])
def test_a_whole_file(tree: Tree, size: int) -> None:
    data = os.urandom(size)
    path = tree.add("a/b/f", data)
    fetched = tree.source.read_whole(tree.id("a/b/f"))
    status = path.stat()
    assert bytes(fetched.data) == data
    assert fetched[1:5] == (size, status.st_mtime_ns, status.st_ctime_ns, False)
    assert (tree.source.open_count, tree.source.bytes_read) == (1, size)


def test_a_file_may_be_closed_later(tree: Tree) -> None:
    path = tree.add("f", b"abc")

    def held() -> int:
        return [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")].count(str(path))

    entry = tree.id("f")
    assert bytes(tree.source.read_whole(entry).data) == b"abc"
    assert held() == 0
    assert bytes(tree.source.read_whole(entry, close_later=True).data) == b"abc"
    assert bytes(tree.source.read_whole(entry, close_later=True).data) == b"abc"
    assert held() == 2
    tree.source.close_read()
    tree.source.close_read()
    assert held() == 0
    path.unlink()
    assert error_of(tree.source.read_whole, entry, True) == errno.ENOENT
    tree.source.close_read()


def test_more_than_one_read_gives(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(10_001)
    tree.add("f", data)
    monkeypatch.setattr(known_file, "ONE_READ_BYTES", 1000)
    assert bytes(tree.source.read_whole(tree.id("f")).data) == data
    opened = tree.source.open(tree.id("f"))
    assert opened.read(17, 5000) == data[17:5017]
    opened.close()


def test_short_reads_are_gone_on_with(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(10_000)
    tree.add("f", data)
    true = os.pread
    monkeypatch.setattr(posix.os, "pread", lambda fd, size, offset: true(fd, min(size, 100), offset))
    assert bytes(tree.source.read_whole(tree.id("f")).data) == data


@pytest.mark.parametrize("seed", range(20))
def test_an_open_file_tells_written_bytes_from_rights_and_links(tree: Tree, seed: int) -> None:
    """Size and mtime stay as they are: only what was written may give ESTALE, and always does."""
    chance = random.Random(seed)
    path, data = tree.add("f", b"old" * 5000), b"old" * 5000
    (entry,) = tree.manifest.files
    mtime_ns = path.stat().st_mtime_ns
    opened = tree.source.open(entry)
    for _ in range(chance.randrange(1, 5)):
        time.sleep(0.011)  # ctime moves by ticks
        what = chance.choice(["mode", "link", "replace", "write"])
        if what == "mode":
            path.chmod(path.stat().st_mode ^ chance.choice([0o100, 0o040, 0o004]))
        elif what == "link":
            os.link(path, tree.path / f"link{chance.random()}")
        elif what == "replace":
            (tree.path / "new").write_bytes(data.upper())
            os.utime(tree.path / "new", ns=(0, mtime_ns))
            os.rename(tree.path / "new", path)
            with contextlib.closing(tree.source.open(entry)) as again:
                assert again.changed
            break  # what is done to the new file is nothing to the old one
        else:
            with path.open("r+b") as file:
                file.write(data.upper())
            os.utime(path, ns=(0, mtime_ns))
            for _ in range(2):
                with pytest.raises(OSError, match="changed while it was open"):
                    opened.read(0, len(data))
            opened.close()
            return
        assert opened.read(0, len(data)) == data
    assert opened.read(0, len(data)) == data
    opened.close()


def test_a_file_changed_since_the_scan(tree: Tree) -> None:
    path = tree.add("f", b"old")
    entry = tree.id("f")
    path.write_bytes(b"newer")
    fetched = tree.source.read_whole(entry)
    assert (bytes(fetched.data), fetched.size, fetched.changed) == (b"newer", 5, True)
    tree.manifest.update(entry, fetched.size, fetched.mtime_ns, fetched.ctime_ns)
    assert not tree.source.read_whole(entry).changed
    os.utime(path, ns=(1, 1))
    assert tree.source.read_whole(entry).changed
    opened = tree.source.open(entry)
    assert opened.changed
    opened.close()


@pytest.mark.parametrize("new", [b"B" * 1000, b"B" * 5000, b"B" * 10, b""], ids=["same size", "grown", "cut", "empty"])
def test_a_change_during_the_read_gives_the_new_content(
    tree: Tree, during_read: Callable[[Callable[[int], None]], None], new: bytes
) -> None:
    path = tree.add("f", b"A" * 1000)
    entry = tree.id("f")

    def change(number: int) -> None:
        if number == 0:
            overwrite(path, new, 7)

    during_read(change)
    fetched = tree.source.read_whole(entry)
    assert (bytes(fetched.data), fetched.size, fetched.mtime_ns) == (new, len(new), 7)
    assert fetched.changed
    assert tree.source.open_count == 1


def test_a_change_that_hides_its_time_stamp_is_seen(
    tree: Tree, during_read: Callable[[Callable[[int], None]], None]
) -> None:
    """Same size, mtime set back (as rsync does): ctime tells."""
    path = tree.add("f", b"A" * 1000)
    entry = tree.id("f")
    mtime_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(mtime_ns, mtime_ns))
    during_read(lambda number: overwrite(path, b"B" * 1000, mtime_ns) if number == 0 else None)
    assert bytes(tree.source.read_whole(entry).data) == b"B" * 1000


def test_a_file_that_never_holds_still(tree: Tree, during_read: Callable[[Callable[[int], None]], None]) -> None:
    path = tree.add("f", b"A" * 100)
    entry = tree.id("f")
    reads: list[int] = []

    def change(number: int) -> None:
        reads.append(number)
        overwrite(path, b"B" * (101 + number), number)

    during_read(change)
    assert error_of(tree.source.read_whole, entry) == errno.ESTALE
    assert len(reads) == 4
    assert tree.source.bytes_read == 100 + 101 + 102 + 103


def test_replaced_or_removed_during_the_read_the_old_content_is_whole(
    tree: Tree, during_read: Callable[[Callable[[int], None]], None]
) -> None:
    path = tree.add("f", b"A" * 100)
    entry = tree.id("f")
    new = tree.add("new", b"B" * 100)
    during_read(lambda number: os.replace(new, path) if number == 0 else None)
    assert bytes(tree.source.read_whole(entry).data) == b"A" * 100
    during_read(lambda number: path.unlink() if number == 0 else None)
    assert bytes(tree.source.read_whole(entry).data) == b"B" * 100
    assert error_of(tree.source.read_whole, entry) == errno.ENOENT


def test_fewer_bytes_than_the_size_says_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add("f", b"A" * 100)
    monkeypatch.setattr(known_file, "pread_all", lambda fd, offset, size, ends=False: b"A" * (size - 1))
    assert error_of(tree.source.read_whole, tree.id("f")) == errno.EIO
    opened = tree.source.open(tree.id("f"))
    assert error_of(opened.read, 0, 10) == errno.EIO
    opened.close()


def test_a_read_that_fails_counts_as_an_open(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add("f", b"A" * 100)
    entry = tree.id("f")

    def fail(fd: int, offset: int, size: int, ends: bool = False) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(known_file, "pread_all", fail)
    for opens in (1, 2):
        assert error_of(tree.source.read_whole, entry) == errno.EIO
        assert (tree.source.open_count, tree.source.bytes_read) == (opens, 0)
        time.sleep(0.05)  # the second time the file is not fresh any more: one look is enough


def test_gone_and_replaced_by_something_else(tree: Tree) -> None:
    names = ["gone", "directory", "fifo", "socket", "link"]
    for name in names:
        tree.add(name, b"x")
    secret = tree.path.parent / "secret"
    secret.write_bytes(b"secret")
    ids = {name: tree.id(name) for name in names}
    for name in names:
        (tree.path / name).unlink()
    (tree.path / "directory").mkdir()
    os.mkfifo(tree.path / "fifo")
    (tree.path / "link").symlink_to(secret)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{tree.fd}/socket")
        found = {name: error_of(tree.source.read_whole, ids[name]) for name in names}
        opened = {name: error_of(tree.source.open, ids[name]) for name in names}
    assert found == opened
    assert found == {
        "gone": errno.ENOENT,
        "directory": errno.ESTALE,
        "fifo": errno.ESTALE,
        "socket": errno.ENXIO,
        "link": errno.ELOOP,
    }
    assert tree.source.open_count == 0


@pytest.mark.parametrize("way", ["openat2", "walk"])
def test_a_directory_swapped_for_a_symbolic_link(tree: Tree, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(openat, "open_piece", getattr(openat, way))
    tree.add("a/b/f", b"mine")
    outside = tree.path.parent / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    entry = tree.id("a/b/f")
    assert bytes(tree.source.read_whole(entry).data) == b"mine"
    (tree.path / "a/b").rename(tree.path / "a/c")
    (tree.path / "a/b").symlink_to(outside)
    assert error_of(tree.source.read_whole, entry) in (errno.ELOOP, errno.ENOTDIR)


def test_a_write_lease_does_not_fail_the_open(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.add("f", b"x")
    entry = tree.id("f")
    flags_seen: list[int] = []
    true = posix.open_beneath

    def leased(fd: int, path: bytes, flags: int) -> int:
        flags_seen.append(flags & os.O_NONBLOCK)
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EAGAIN, "leased")
        return true(fd, path, flags)

    monkeypatch.setattr(posix, "open_beneath", leased)
    assert bytes(tree.source.read_whole(entry).data) == b"x"
    assert flags_seen == [os.O_NONBLOCK, 0]


# -- the rest


@pytest.mark.parametrize("way", ["openat2", "walk"])
def test_paths_longer_than_the_kernel_takes(tree: Tree, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(openat, "open_piece", getattr(openat, way))
    name = "d" * 200
    at = os.dup(tree.fd)
    for _ in range(45):
        os.mkdir(name, dir_fd=at)
        deeper = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    file = os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=at)
    os.write(file, b"deep")
    os.close(file)
    before = len(os.listdir("/proc/self/fd"))
    entry = tree.id(f"{name}/" * 45 + "f")
    assert bytes(tree.source.read_whole(entry).data) == b"deep"
    assert tree.source.stat(entry).st_size == 4
    os.unlink("f", dir_fd=at)
    os.close(at)
    assert error_of(tree.source.read_whole, entry) == errno.ENOENT
    assert len(os.listdir("/proc/self/fd")) == before  # less `at`, and with the source's own


@pytest.mark.parametrize("way", ["openat2", "walk"])
@pytest.mark.parametrize("length", [3999, 4000, 4001, 4002, 8001])
def test_every_length_around_a_piece(tree: Tree, monkeypatch: pytest.MonkeyPatch, way: str, length: int) -> None:
    pieces: list[bytes] = []
    true = getattr(openat, way)

    def noted(fd: int, path: bytes, flags: int) -> int:
        pieces.append(path)
        return int(true(fd, path, flags))

    monkeypatch.setattr(openat, "open_piece", noted)
    (tree.path / "d").mkdir()
    (tree.path / "dd").mkdir()
    path = b"./" * ((length - 1) // 2) + b"d" * (2 - length % 2)
    os.close(openat.open_beneath(tree.fd, path, os.O_RDONLY))
    assert all(len(piece) <= 4000 for piece in pieces)
    assert b"/".join(pieces) == path
    assert len(path) == length


def test_stat_is_of_now_and_of_the_link_itself(tree: Tree) -> None:
    path = tree.add("f", b"1")
    (tree.path / "link").symlink_to("nowhere")
    entry, link = tree.id("f"), tree.id("link")
    path.write_bytes(b"22")
    assert tree.source.stat(entry) == path.stat()
    assert tree.source.stat(link) == os.lstat(tree.path / "link")
    assert tree.source.stat(0).st_ino == tree.path.stat().st_ino
    path.unlink()
    assert error_of(tree.source.stat, entry) == errno.ENOENT
    assert tree.source.statvfs().f_bsize == os.statvfs(tree.path).f_bsize


def test_any_bytes_in_names(tree: Tree) -> None:
    name = bytes(byte for byte in range(1, 256) if byte != ord("/"))[:255]
    with open(os.path.join(os.fsencode(tree.path), name), "wb") as file:
        file.write(b"x")
    assert bytes(tree.source.read_whole(tree.manifest.find(name)).data) == b"x"


def test_many_threads_count_exactly(tree: Tree) -> None:
    for number in range(20):
        tree.add(str(number), bytes([number]) * 1000)
    source, manifest = tree.source, tree.manifest
    wrong: list[int] = []

    def read_all() -> None:
        for number in range(20):
            if bytes(source.read_whole(manifest.find(b"%d" % number)).data) != bytes([number]) * 1000:
                wrong.append(number)

    threads = [threading.Thread(target=read_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (source.open_count, source.bytes_read) == (160, 160_000)


def test_a_writer_beside_never_gives_a_mix(tree: Tree) -> None:
    """A file rewritten in place, in five writes, over and over: each result is what the file was at one moment."""
    path = tree.add("f", b"\0" * 50_000)
    entry = tree.id("f")
    source, stop = tree.source, threading.Event()
    pauses = random.Random(0)

    def write() -> None:
        fd = os.open(path, os.O_WRONLY)
        version = 0
        while not stop.wait(pauses.random() * 0.06):
            version += 1
            for start in range(0, 50_000, 10_000):
                os.pwrite(fd, bytes([version % 256]) * 10_000, start)
        os.close(fd)

    def borders(data: bytes | bytearray) -> list[int]:
        return [at for at in range(1, 50_000) if data[at] != data[at - 1]]

    writer = threading.Thread(target=write)
    writer.start()
    found, stale = [], 0
    for _ in range(30):
        try:
            found.append(borders(source.read_whole(entry).data))
        except OSError as error:
            stale += error.errno == errno.ESTALE
    stop.set()
    writer.join()
    assert len(found) + stale == 30
    assert found
    # A moment between two of the writes has one border, and none has one inside a write.
    assert all(len(at) <= 1 and all(place % 10_000 == 0 for place in at) for at in found)


def test_a_file_that_has_just_been_written_is_read_a_tick_later(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second write within the tick of the first leaves the same time stamp: it must not go unseen."""
    path = tree.add("f", b"old")
    os.utime(tree.path, ns=(1, 1))
    entry = tree.id("f")
    slept: list[float] = []

    def write_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            path.write_bytes(b"new")

    source = tree.source
    monkeypatch.setattr(stable_stat, "TICK_NS", 3_600_000_000_000)
    monkeypatch.setattr(stable_stat.time, "sleep", write_meanwhile)
    assert bytes(source.read_whole(entry).data) == b"new"
    assert len(slept) == stable_stat.ROUNDS


@pytest.mark.parametrize(
    ("age_ns", "whole_second", "wait_ns"),
    [
        (19_999_999, False, 1),
        (20_000_000, False, 0),
        (0, False, 20_000_000),
        (-5_000_000, False, 20_000_000),
        (-20_000_000, False, 0),
        (400_000_000, True, 600_000_000),
        (1_000_000_000, True, 0),
    ],
)
def test_how_long_to_wait_for_a_tick(age_ns: int, whole_second: bool, wait_ns: int) -> None:
    stamp = 1_700_000_000_000_000_000 + (0 if whole_second else 1)
    assert stable_stat.wait_ns(stamp, stamp + age_ns) == wait_ns


# -- the faulty source that other tests use


def test_the_faulty_source(tree: Tree) -> None:
    path = tree.add("f", b"abc")
    entry = tree.id("f")
    faulty = FaultySource(tree.source)
    assert faulty.read_whole(entry).data == b"abc"
    faulty.fail(2, after=1)
    results = []
    for _ in range(4):
        try:
            results.append(bytes(faulty.read_whole(entry).data))
        except OSError as error:
            results.append(error.errno)
    assert results == [b"abc", errno.EIO, errno.EIO, b"abc"]
    faulty.before_read = lambda _: overwrite(path, b"ABCD", 3)
    assert bytes(faulty.read_whole(entry).data) == b"ABCD"
    faulty.before_read = None
    opened = faulty.open(entry)
    faulty.fail(1, number=errno.ETIMEDOUT)
    assert error_of(opened.read, 0, 4) == errno.ETIMEDOUT
    assert opened.read(1, 2) == b"BC"
    opened.close()


def test_the_faulty_source_hangs_until_released(tree: Tree) -> None:
    tree.add("f", b"abc")
    tree.add("g", b"other")
    faulty = FaultySource(tree.source)
    faulty.hang({tree.id("f")})
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(bytes(faulty.read_whole(tree.id("f")).data)))
    thread.start()
    assert bytes(faulty.read_whole(tree.id("g")).data) == b"other"
    thread.join(0.1)
    assert thread.is_alive()
    assert (results, faulty.hanging) == ([], 1)
    faulty.release()
    thread.join(5)
    assert (results, faulty.hanging) == ([b"abc"], 0)
