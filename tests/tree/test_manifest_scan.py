"""The scan and the manifest against os.walk and os.lstat, and against what a live tree does meanwhile."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from tree_support import make_deep, model, on_disk, trees

from mlfs.errors import ExitCode, SourceError
from mlfs.tree import scan as scan_module
from mlfs.tree import stable_stat
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import ScanStopped, scan

few = settings(max_examples=60, deadline=None)


def attributes(manifest: Manifest, entry: int) -> tuple[int, ...]:
    return (
        manifest.mode_view[entry],
        manifest.uid_view[entry],
        manifest.gid_view[entry],
        manifest.nlink_view[entry],
        manifest.size_view[entry],
        manifest.mtime_ns_view[entry],
        manifest.ctime_ns_view[entry],
        manifest.blocks_view[entry],
    )


def of_stat(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_blocks,
    )


@few
@given(trees)
def test_a_tree_is_what_walk_and_lstat_say(no_tick: None, tree: dict) -> None:
    with on_disk(tree) as (root, fd):
        manifest = scan(fd, workers=2)
        expected = model(root)
        assert sorted(manifest.paths(range(len(manifest)))) == sorted(expected)
        for path, status in expected.items():
            entry = manifest.find(path)
            assert manifest.path(entry) == path
            assert attributes(manifest, entry) == of_stat(status)
            assert manifest.is_dir(entry) == stat.S_ISDIR(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                assert manifest.target(entry) == os.readlink(os.path.join(root, path))
            else:
                with pytest.raises(ValueError, match="not a symbolic link"):
                    manifest.target(entry)
        files = [path for path, status in expected.items() if stat.S_ISREG(status.st_mode)]
        assert sorted(manifest.paths(manifest.files)) == sorted(files)
        assert manifest.n_files == len(files)
        assert manifest.total_bytes == sum(expected[path].st_size for path in files)


@few
@given(trees)
def test_children_are_contiguous_sorted_and_found(no_tick: None, tree: dict) -> None:
    with on_disk(tree) as (root, fd):
        manifest = scan(fd, workers=3)
        seen = [0]
        for entry in range(len(manifest)):
            children = manifest.children(entry)
            seen += children
            names = [manifest.name(child) for child in children]
            is_dir = manifest.is_dir(entry)
            assert names == (sorted(os.listdir(os.path.join(root, manifest.path(entry)))) if is_dir else [])
            by_name = dict(zip(names, children, strict=True))
            others = {b"", b"a", b"aa", b"\xff" * 9, *(name + b"\0" for name in names), *(name[:-1] for name in names)}
            for name in others | set(names):
                assert manifest.lookup(entry, name) == by_name.get(name, -1)
            assert all(manifest.parent_view[child] == entry for child in children)
        assert seen == list(range(len(manifest)))


def test_find_of_what_is_not_there(root: Path, root_fd: int) -> None:
    (root / "a").mkdir()
    (root / "a" / "f").write_bytes(b"x")
    manifest = scan(root_fd)
    assert manifest.find(b"") == 0
    assert manifest.find(b"a/f") == manifest.find(b"/a//f/") > 0
    for path in (b"b", b"a/g", b"a/f/g", b"..", b"a/..", b"."):
        assert manifest.find(path) == -1
    with pytest.raises(IndexError):
        manifest.name(len(manifest))


def test_update_takes_the_new_attributes_over(root: Path, root_fd: int) -> None:
    (root / "f").write_bytes(b"four")
    (root / "g").write_bytes(b"12")
    manifest = scan(root_fd)
    entry = manifest.find(b"f")
    assert manifest.total_bytes == 6
    seen_meanwhile = []

    class Blocks:
        def __setitem__(self, changed: int, _: int) -> None:
            seen_meanwhile.append((manifest.at_update, manifest.generation_view[changed]))

    manifest.blocks = cast(Any, Blocks())
    manifest.update(entry, 10, 5, 6, mode=stat.S_IFREG | 0o600)
    assert (seen_meanwhile, manifest.at_update) == ([(entry, 0)], -1)
    assert (manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]) == (10, 5, 6)
    assert manifest.mode_view[entry] == stat.S_IFREG | 0o600
    assert manifest.total_bytes == 12
    assert manifest.generation_view[entry] == 1
    manifest.generation[entry] = 65_535
    manifest.update(entry, 10, 5, 6)
    assert manifest.generation_view[entry] == 0
    for entry, mode in ((0, None), (manifest.find(b"g"), stat.S_IFDIR)):
        with pytest.raises(ValueError, match="not a regular file"):
            manifest.update(entry, 1, 1, 1, mode=mode)


def test_a_wide_directory(root: Path, root_fd: int, no_tick: None) -> None:
    for number in range(3000):
        os.mknod(root / f"{number}.jpg")
    manifest = scan(root_fd)
    names = sorted(f"{number}.jpg".encode() for number in range(3000))
    assert [manifest.name(entry) for entry in manifest.children(0)] == names
    assert all(manifest.name(manifest.lookup(0, name)) == name for name in names)
    assert manifest.nbytes / len(manifest) < 100
    shuffled = np.random.default_rng(0).permutation(manifest.files)
    assert list(manifest.paths(shuffled)) == [manifest.path(int(entry)) for entry in shuffled]


def test_paths_longer_than_the_kernel_takes(root: Path, root_fd: int, no_tick: None) -> None:
    depth = 45  # of 200 bytes each
    deepest = make_deep(str(root), depth)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=deepest))
    os.close(deepest)
    manifest = scan(root_fd)
    assert len(manifest) == depth + 2
    path = manifest.path(len(manifest) - 1)
    assert len(path) == depth * 201 + 1
    assert manifest.find(path) == len(manifest) - 1
    assert not manifest.problems


def test_times_and_sizes_at_the_edges(root: Path, root_fd: int) -> None:
    big = 5 << 30
    with open(root / "big", "wb") as file:
        file.truncate(big)
    os.utime(root / "big", ns=(-1_500_000_000, -1_500_000_000))
    manifest = scan(root_fd)
    entry = manifest.find(b"big")
    assert manifest.size_view[entry] == manifest.total_bytes == big
    assert manifest.mtime_ns_view[entry] == os.lstat(root / "big").st_mtime_ns < 0


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, int]:
    """Paths whose opening by the scan fails, with the errno: also as root, who may read everything."""
    errors: dict[bytes, int] = {}
    true = scan_module.open_beneath

    def open_or_fail(root_fd: int, path: bytes, flags: int) -> int:
        if path in errors:
            raise OSError(errors[path], os.strerror(errors[path]))
        return true(root_fd, path, flags)

    monkeypatch.setattr(scan_module, "open_beneath", open_or_fail)
    return errors


def test_unreadable_directories_are_empty_and_named(root: Path, root_fd: int, closed: dict[bytes, int]) -> None:
    for number in range(15):
        (root / f"d{number:02}").mkdir()
        (root / f"d{number:02}" / "f").touch()
    closed.update({f"d{number:02}".encode(): 13 for number in range(12)})
    closed[b"d13"] = 2
    manifest = scan(root_fd)
    assert manifest.n_files == 2
    assert [manifest.name(entry)[:1] for entry in manifest.unreadable] == [b"d"] * 12
    assert len(manifest.problems) == 10
    assert manifest.problems[0] == "d00: Permission denied"
    assert manifest.vanished == 1
    assert manifest.is_dir(manifest.find(b"d13"))


def test_an_unreadable_root_is_an_error(root_fd: int, closed: dict[bytes, int]) -> None:
    closed[b""] = 5
    with pytest.raises(SourceError, match="Input/output error") as caught:
        scan(root_fd)
    assert caught.value.exit_code == ExitCode.SOURCE


def test_files_that_vanish_during_the_listing(root: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (root / name).touch()
    true = os.fsencode

    def vanish(name: str) -> bytes:
        if name == "b":
            (root / "b").unlink()
        return true(name)

    monkeypatch.setattr(scan_module.os, "fsencode", vanish)
    manifest = scan(root_fd)
    assert [manifest.name(entry) for entry in manifest.children(0)] == [b"a", b"c"]


def test_stop_ends_the_scan_also_while_the_source_hangs(
    root: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "d").mkdir()
    released, hangs = threading.Event(), threading.Event()
    true = scan_module.open_beneath

    def hang(root_fd: int, path: bytes, flags: int) -> int:
        if path == b"d":
            hangs.set()
            assert released.wait(60)
        return true(root_fd, path, flags)

    monkeypatch.setattr(scan_module, "open_beneath", hang)
    try:
        with pytest.raises(ScanStopped) as caught:
            scan(root_fd, stop=hangs.is_set)
        assert caught.value.exit_code == ExitCode.INTERRUPTED
    finally:
        released.set()


def test_progress_ends_with_the_final_counts(root: Path, root_fd: int) -> None:
    for directory in range(3):
        (root / str(directory)).mkdir()
        for file in range(4):
            (root / str(directory) / str(file)).touch()
    told: list[tuple[int, int]] = []
    scan(root_fd, progress=lambda directories, files: told.append((directories, files)))
    assert told[-1] == (4, 3 + 12)
    assert told == sorted(told)


def test_a_directory_that_has_just_changed_is_listed_a_tick_later(
    root: Path, root_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(stable_stat.time, "sleep", slept.append)
    monkeypatch.setattr(stable_stat, "TICK_NS", 3_600_000_000_000)
    (root / "f").touch()
    assert len(scan(root_fd)) == 2
    assert len(slept) == 2  # twice at most, also where the clocks of source and node differ
    assert all(0 < seconds <= 3600 for seconds in slept)


def test_a_result_that_comes_as_the_wait_for_it_ends_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing may take just as long as the scan waits until it shows its progress: that is no error of the source."""

    class JustTooLate(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            found = super().result()
            if timeout is not None:
                raise TimeoutError
            return found

    monkeypatch.setattr(scan_module, "Future", JustTooLate)
    pool = scan_module.Pool(2, lambda: None)
    try:
        assert list(pool.map(lambda number: 2 * number, range(20))) == [2 * number for number in range(20)]
    finally:
        pool.close()


def test_a_source_that_says_that_it_timed_out_is_heard() -> None:
    def times_out(_: int) -> int:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    pool = scan_module.Pool(2, lambda: None)
    try:
        with pytest.raises(TimeoutError, match=os.strerror(errno.ETIMEDOUT)):
            list(pool.map(times_out, range(3)))
    finally:
        pool.close()
