"""The saved index: round trip, every kind of damage, and that it is used exactly when no directory has changed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_support import on_disk, trees

from mlfs.tree import index as manifest_index
from mlfs.tree.index import changed_directories, default_index_path, load, manifest_for, save, source_identity
from mlfs.tree.manifest import COLUMNS, Manifest
from mlfs.tree.scan import ScanStopped, scan

few = settings(max_examples=50, deadline=None)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "source.idx"


@pytest.fixture
def tree(root: Path) -> Path:
    """Three directories, six files, one symbolic link."""
    for directory in ("a", "b", "b/c"):
        (root / directory).mkdir()
        for file in ("1", "2"):
            (root / directory / file).write_text(directory)
    (root / "link").symlink_to("a/1")
    return root


def same(left: Manifest, right: Manifest) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in COLUMNS)


@few
@given(tree=trees)
def test_round_trip(no_tick: None, tmp_path: Path, tree: dict) -> None:
    with on_disk(tree) as (_, fd):
        manifest = scan(fd, workers=2)
    save(manifest, tmp_path / "i", "me")
    loaded, reason = load(tmp_path / "i", "me")
    assert loaded is not None, reason
    assert same(manifest, loaded)
    assert list(loaded.paths(range(len(loaded)))) == list(manifest.paths(range(len(manifest))))
    assert loaded.total_bytes == manifest.total_bytes


def test_a_loaded_manifest_can_be_updated(tree: Path, root_fd: int, index: Path) -> None:
    save(scan(root_fd), index, "me")
    loaded, _ = load(index, "me")
    assert loaded is not None
    loaded.update(loaded.find(b"a/1"), 99, 1, 2)
    assert loaded.size_view[loaded.find(b"a/1")] == 99


def test_every_damaged_byte_is_noticed(tree: Path, root_fd: int, index: Path) -> None:
    save(scan(root_fd), index, "me")
    good = index.read_bytes()
    for position in range(len(good)):
        index.write_bytes(good[:position] + bytes([good[position] ^ 0x41]) + good[position + 1 :])
        assert load(index, "me")[0] is None, position


@few
@given(data=st.data())
def test_any_damage_is_noticed(no_tick: None, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "i"
    if not path.exists():
        with on_disk({b"a": {b"f": b"1"}, b"l": ("link", b"a")}) as (_, fd):
            save(scan(fd), tmp_path / "good", "me")
    good = (tmp_path / "good").read_bytes()
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    bad = good[:start] + data.draw(st.binary(max_size=40)) + good[end:]
    path.write_bytes(bad)
    assert (load(path, "me")[0] is None) == (bad != good)


def test_truncated_and_extended(tree: Path, root_fd: int, index: Path) -> None:
    save(scan(root_fd), index, "me")
    good = index.read_bytes()
    for length in (0, 1, 8, 23, 24, 39, 40, 41, len(good) // 2, len(good) - 1):
        index.write_bytes(good[:length])
        assert load(index, "me")[0] is None, length
    index.write_bytes(good + b"\0")
    assert load(index, "me")[0] is None


def test_reasons(tree: Path, root_fd: int, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(index, "me") == (None, "there is no saved index")
    save(scan(root_fd), index, "me")
    assert "another source" in load(index, "you")[1]
    monkeypatch.setattr(manifest_index, "FORMAT_VERSION", manifest_index.FORMAT_VERSION + 1)
    assert "has format version" in load(index, "me")[1]
    index.write_bytes(b"something else that is long enough to be an index")
    assert "not an index" in load(index, "me")[1]
    index.unlink()
    index.mkdir()
    assert "cannot be read" in load(index, "me")[1]


def test_it_is_private_and_alone(tree: Path, root_fd: int, index: Path) -> None:
    save(scan(root_fd), index, "me")
    save(scan(root_fd), index, "me")
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert os.listdir(index.parent) == [index.name]


def test_a_save_that_fails_leaves_the_old_index(
    tree: Path, root_fd: int, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = scan(root_fd)
    save(manifest, index, "me")
    before = index.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest_index.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(manifest, index, "me")
    assert index.read_bytes() == before
    assert os.listdir(index.parent) == [index.name]


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = default_index_path("/data/a")
    assert path.parent == tmp_path / "mlfs" / "index"
    assert path == default_index_path("/data/x/../a/") != default_index_path("/data/b")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert default_index_path("/data/a").parent == tmp_path / "home" / ".cache" / "mlfs" / "index"


# -- when it is used


@pytest.mark.promise("view-index")
def test_the_second_time_it_is_reused(tree: Path, root_fd: int, index: Path) -> None:
    first, report = manifest_for(root_fd, str(tree), index)
    assert (report.how, report.reason, report.warning) == ("scanned", "there is no saved index", "")
    second, report = manifest_for(root_fd, str(tree), index)
    assert (report.how, report.reason) == ("reused", "")
    assert same(first, second)
    assert manifest_for(root_fd, str(tree), index, rescan=True)[1].how == "scanned"


@pytest.mark.promise("view-index")
@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "b/c/new").touch(),
        lambda root: (root / "b/c/1").unlink(),
        lambda root: (root / "a/1").rename(root / "a/3"),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "b/c").rename(root / "b/d"),
        lambda root: (root / "b/c").chmod(0o700),
        lambda root: os.utime(root / "a", (1, 1)),
    ],
    ids=["created", "removed", "renamed", "mkdir", "directory renamed", "chmod", "utime"],
)
def test_a_changed_directory_makes_a_scan(tree: Path, root_fd: int, index: Path, change: object) -> None:
    manifest, _ = manifest_for(root_fd, str(tree), index)
    assert changed_directories(manifest, root_fd) == []
    change(tree)  # type: ignore[operator]
    assert len(changed_directories(manifest, root_fd)) >= 1
    new, report = manifest_for(root_fd, str(tree), index)
    assert report.how == "scanned"
    assert "directories have changed" in report.reason
    assert len(new) == sum(len(d) + len(f) for _, d, f in os.walk(tree)) + 1
    assert manifest_for(root_fd, str(tree), index)[1].how == "reused"


def test_changes_made_at_once_after_the_scan_are_seen(root: Path, root_fd: int, index: Path) -> None:
    """Also within the tick of the file system's clock in which the directory was made."""
    for number in range(10):
        (root / f"before{number}").touch()
        manifest, _ = manifest_for(root_fd, str(root), index)
        (root / f"after{number}").touch()
        assert changed_directories(manifest, root_fd) == [0]


def test_a_directory_swapped_for_a_symbolic_link(tree: Path, root_fd: int) -> None:
    manifest = scan(root_fd)
    os.rename(tree / "b", tree / "elsewhere")
    (tree / "b").symlink_to("elsewhere")
    assert changed_directories(manifest, root_fd)


def test_changes_of_contents_are_not_looked_for(tree: Path, root_fd: int, index: Path) -> None:
    manifest_for(root_fd, str(tree), index)
    (tree / "a/1").write_text("longer than before")
    assert manifest_for(root_fd, str(tree), index)[1].how == "reused"


def test_another_directory_at_the_same_path(tree: Path, root_fd: int, index: Path, tmp_path: Path) -> None:
    manifest_for(root_fd, str(tree), index)
    fd = os.open(tmp_path, os.O_RDONLY)
    assert source_identity(fd, str(tree)) != source_identity(root_fd, str(tree))
    assert "another source" in manifest_for(fd, str(tree), index)[1].reason
    os.close(fd)


def test_an_unreadable_directory_that_has_become_readable(tree: Path, root_fd: int, index: Path) -> None:
    """Another user mounts, or the disk works again: no time stamp has moved."""
    manifest = scan(root_fd)
    manifest.unreadable = np.array([manifest.find(b"a")], dtype=np.uint32)
    save(manifest, index, source_identity(root_fd, str(tree)))
    loaded, _ = load(index, source_identity(root_fd, str(tree)))
    assert loaded is not None
    assert loaded.problems == ("a: not readable",)
    assert changed_directories(loaded, root_fd) == [manifest.find(b"a")]


def test_an_unreadable_directory_that_still_is(
    tree: Path, root_fd: int, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = manifest_index.open_beneath

    def refuse(fd: int, path: bytes, flags: int) -> int:
        if path == b"a" and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied")
        return true(fd, path, flags)

    monkeypatch.setattr("mlfs.tree.scan.open_beneath", refuse)
    monkeypatch.setattr(manifest_index, "open_beneath", refuse)
    assert manifest_for(root_fd, str(tree), index)[1].problems == ("a: Permission denied",)
    report = manifest_for(root_fd, str(tree), index)[1]
    assert (report.how, report.problem_count, report.problems) == ("reused", 1, ("a: not readable",))


def test_an_index_that_cannot_be_written_is_a_warning(tree: Path, root_fd: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    manifest, report = manifest_for(root_fd, str(tree), tmp_path / "file" / "i.idx")
    assert manifest.n_files == 6
    assert report.how == "scanned"
    assert "cannot be saved" in report.warning


def test_stop_ends_the_check(tree: Path, root_fd: int) -> None:
    manifest = scan(root_fd)
    with pytest.raises(ScanStopped):
        changed_directories(manifest, root_fd, stop=lambda: True)


def test_ten_thousand_files_are_loaded(root: Path, root_fd: int, index: Path, no_tick: None) -> None:
    for directory in range(10):
        (root / str(directory)).mkdir()
        at = os.open(root / str(directory), os.O_RDONLY)
        for file in range(1000):
            os.mknod(f"{file}.jpg", dir_fd=at)
        os.close(at)
    manifest_for(root_fd, str(root), index)
    manifest, report = manifest_for(root_fd, str(root), index)
    assert report.how == "reused"
    assert manifest.n_files == 10_000


def test_ctrl_c_during_a_scan_ends_the_process_and_leaves_neither_index_nor_lock(tree: Path, tmp_path: Path) -> None:
    """Also while a thread hangs in the source: here, one that waits for ever."""
    code = f"""
import os, signal, threading, time
from pathlib import Path
from mlfs.tree import scan, index as manifest_index
once = threading.Lock()

def hang(*_):
    if once.acquire(blocking=False):
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(3600)

scan.open_beneath = hang
manifest_index.manifest_for(os.open({str(tree)!r}, os.O_RDONLY), {str(tree)!r}, Path({str(tmp_path / "c" / "i")!r}))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert b"KeyboardInterrupt" in ended.stderr
    assert not list((tmp_path / "c").iterdir())
