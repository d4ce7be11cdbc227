"""Mounts that start at once with one index, as on many nodes: one scans the source, the others wait for its list."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.fuse import kill
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import make_tree

MOUNTS = 3
FILES = {f"d{number % 4}/f{number:02}": b"x" * number for number in range(40)}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    with SlowSource(make_tree(tmp_path / "source", FILES), open_latency="0ms") as source:
        yield source


@contextmanager
def starting(slow: SlowSource, tmp_path: Path, index: Path) -> Iterator[list[tuple[MlfsMount, subprocess.Popen[str]]]]:
    """Mounts that are just being made, each by a command of its own."""
    with ExitStack() as stack:
        begun = []
        for number in range(MOUNTS):
            mountpoint = tmp_path / f"node{number}"
            mountpoint.mkdir()
            mount = MlfsMount(slow.path, "--index", str(index), mountpoint=mountpoint)
            stack.callback(mount.clean_up)
            words = [sys.executable, "-m", "mlfs.cli.main", "mount", str(slow.path), str(mountpoint), *mount.flags]
            process = subprocess.Popen(
                words, env=mount.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(process.kill)
            begun.append((mount, process))
        yield begun


def daemons_of(begun: list[tuple[MlfsMount, subprocess.Popen[str]]]) -> list[int]:
    return [pid for mount, _ in begun for pid, words in mount.pids().items() if "mountd" in words]


def first_words(begun: list[tuple[MlfsMount, subprocess.Popen[str]]]) -> str:
    """What each says first of the scan, its own or another's: then all are at it."""
    lines = ""
    for _, process in begun:
        assert process.stdout is not None
        line = ""
        while "scan" not in line:
            line = process.stdout.readline()
            assert line, "it has ended"
        lines += line
    return lines


@pytest.mark.wall_clock
def test_the_source_is_scanned_once_however_many_mount_at_once(slow: SlowSource, tmp_path: Path) -> None:
    index = tmp_path / "pfs" / "list.idx"
    slow.control(hang={"path": "d2", "op": "list"})
    with starting(slow, tmp_path, index) as begun:
        lines = first_words(begun)
        assert lines.count("waiting for the list of files: ") == MOUNTS - 1
        assert f"{os.uname().nodename} scans (process " in lines
        slow.control(release={"path": "d2"})
        said = [process.communicate(timeout=60)[0] for _, process in begun]
        assert [process.returncode for _, process in begun] == [0] * MOUNTS, said
        counts = slow.counts()
        del counts["listed_by_path"][""]  # that the source is there each mount sees for itself
        assert counts["listed_by_path"] == {f"d{number}": 1 for number in range(4)}
        looked_up = [counts["looked_up_by_path"][path] for path in FILES]
        assert set(looked_up) <= {1, 2}
        assert looked_up.count(2) <= 4  # a few are looked at again, by the one that scans: what their times prove
        assert sum("(scanned by " in text for text in said) == MOUNTS - 1
        assert not index.with_name("list.idx.lock").exists()
        for mount, _ in begun:
            assert {path.relative_to(mount.path).as_posix() for path in mount.path.glob("d*/*")} == set(FILES)


@pytest.mark.wall_clock
def test_when_the_one_that_scans_dies_another_scans(slow: SlowSource, tmp_path: Path) -> None:
    index = tmp_path / "pfs" / "list.idx"
    slow.control(hang={"path": "d2", "op": "list"})
    with starting(slow, tmp_path, index) as begun:
        first_words(begun)
        lock = index.with_name("list.idx.lock")
        scans = next(pid for pid in daemons_of(begun) if f'"pid": {pid},' in lock.read_text())
        kill(scans)
        slow.control(release={"path": "d2"})
        said = [process.communicate(timeout=60)[0] for _, process in begun]
        assert sorted(process.returncode == 0 for _, process in begun) == [False, True, True], said
        assert slow.counts()["listed_by_path"]["d3"] <= 2
        assert sum("(scanned by " in text for text in said) == MOUNTS - 2


def test_where_nothing_can_be_written_each_mount_scans_alone_and_says_so(slow: SlowSource, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mountpoint = tmp_path / "node"
    mountpoint.mkdir()
    index = tmp_path / "file" / "list.idx"
    with MlfsMount(slow.path, "--index", str(index), mountpoint=mountpoint) as mount:
        assert f"for this mount alone: {index.parent} cannot be written" in mount.status()["manifest"]["how"]
