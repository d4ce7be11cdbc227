"""Any tree, any interleaving of calls, budgets far too small: the mount answers as the source does."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.drawn import cases
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content

PAGE, READAHEAD = 4096, 128 << 10
SIZES = [0, 1, 2, 1000, 70_000, 5 << 20]
SIZES += [edge + delta for edge in (PAGE, 3 * PAGE, READAHEAD, 2 * READAHEAD) for delta in (-1, 0, 1)]
# hypothesis draws constants of the code, too: the name of the control directory, which hides what is called so.
NAMES = st.binary(min_size=1, max_size=24).filter(
    lambda name: name not in (b".", b"..", b".mlfs") and not set(name) & set(b"/\0")
)
TREES = st.dictionaries(NAMES, st.dictionaries(NAMES, st.sampled_from(SIZES), max_size=4), min_size=1, max_size=3)
POSITIONS = st.sampled_from([0, 1, PAGE - 1, PAGE, READAHEAD - 1, READAHEAD, 70_000, (5 << 20) - 1, 5 << 20, 6 << 20])
LENGTHS = st.sampled_from([0, 1, PAGE, PAGE + 1, READAHEAD + 1, 6 << 20])
WORDS = (
    "open",
    "open",
    "read",
    "pread",
    "seek",
    "close",
    "fstat",
    "listdir",
    "mmap",
    "lstat",
    "whole",
    "whole",
    "write",
)
CALL = st.tuples(st.sampled_from(WORDS), st.integers(0, 1000), POSITIONS, LENGTHS)
CALLS = st.lists(CALL, max_size=60)
MANY_CALLS = st.lists(CALL, min_size=20, max_size=80)
TINY = ["--staging", "1M", "--ram", "300K"]
FEW = settings(
    max_examples=cases(12),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # to shrink would take a mount a step, minutes in all
)

Pair = tuple[Path, Path]
Call = tuple[str, int, int, int]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the number of the error that it fails with."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def attributes(status: os.stat_result) -> tuple[int, ...]:
    """What the view promises of a status."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_size, *times)


def mapped(fd: int, position: int, length: int) -> bytes:
    """A part of a file through a mapping of all of it; empty files cannot be mapped."""
    if not os.fstat(fd).st_size:
        return b""
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
        return memory[position : position + length]


class Handles:
    """The same descriptors over both trees, and what each call gives in both."""

    def __init__(self, roots: Pair, paths: list[str]) -> None:
        self.roots = roots
        self.paths = paths
        self.open: list[tuple[int, int]] = []

    def close_all(self) -> None:
        for pair in self.open:
            for fd in pair:
                os.close(fd)
        self.open.clear()

    def results(self, call: Call) -> list[Any]:
        """The outcomes, for the mount and for the source."""
        word, which, position, length = call
        if word in ("open", "listdir", "lstat", "whole", "write"):
            path = self.paths[which % len(self.paths)]
            return [outcome(lambda root=root: self._on_path(word, root / path)) for root in self.roots]  # type: ignore[misc]
        if not self.open:
            return []
        pair = self.open.pop(which % len(self.open))
        if word == "close":
            return [outcome(lambda fd=fd: os.close(fd)) for fd in pair]  # type: ignore[misc]
        self.open.append(pair)
        return [outcome(lambda fd=fd: _on_fd(word, fd, position, length)) for fd in pair]  # type: ignore[misc]

    def _on_path(self, word: str, path: Path) -> Any:
        if word == "listdir":
            return sorted(os.listdir(os.fsencode(path)))
        if word == "lstat":
            return attributes(os.lstat(path))
        if word == "whole":
            return path.read_bytes()
        if word == "write":
            return None if path.is_relative_to(self.roots[1]) else self._must_fail(path)
        fd = os.open(path, os.O_RDONLY)
        if path.is_relative_to(self.roots[0]):
            self._half = fd
        else:
            self.open.append((self._half, fd))
        return True

    def _must_fail(self, path: Path) -> None:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - which error is asked below
            os.close(os.open(path, os.O_WRONLY))
        assert caught.value.errno in (errno.EROFS, errno.EISDIR, errno.ENOENT)


def _on_fd(word: str, fd: int, position: int, length: int) -> Any:
    if word == "read":
        return os.read(fd, length)
    if word == "pread":
        return os.pread(fd, length, position)
    if word == "seek":
        return os.lseek(fd, position, os.SEEK_SET)
    if word == "fstat":
        return attributes(os.fstat(fd))
    return mapped(fd, position, length)


@contextlib.contextmanager
def mounted(tree: dict[bytes, dict[bytes, int]]) -> Iterator[tuple[MlfsMount, Handles]]:
    """The tree, mounted elsewhere; its paths relative to the root."""
    with tempfile.TemporaryDirectory() as work:
        source, mountpoint = Path(work, "source"), Path(work, "mount")
        mountpoint.mkdir()
        paths = ["never a file"]
        for directory, files in tree.items():
            (source / os.fsdecode(directory)).mkdir(parents=True)
            paths.append(os.fsdecode(directory))
            for name, size in files.items():
                paths.append(f"{os.fsdecode(directory)}/{os.fsdecode(name)}")
                (source / paths[-1]).write_bytes(content(repr(paths[-1]), size))
        (source / "at least one").write_bytes(b"file")  # a source without files is refused
        with MlfsMount(source, *TINY, mountpoint=mountpoint) as mount:
            handles = Handles((mount.path, source), paths)
            try:
                yield mount, handles
            finally:
                handles.close_all()


def check(handles: Handles, calls: list[Call]) -> None:
    """Every call gives the same in both trees."""
    for call in calls:
        ours_and_theirs = handles.results(call)
        assert not ours_and_theirs or ours_and_theirs[0] == ours_and_theirs[1], call


@pytest.mark.promise("view-bytes")
@FEW
@given(tree=TREES, calls=CALLS)
def test_any_tree_answers_as_its_source(tree: dict[bytes, dict[bytes, int]], calls: list[Call]) -> None:
    with mounted(tree) as (mount, handles):
        check(handles, calls)
        check(handles, [("whole", index, 0, 0) for index in range(len(handles.paths))])
        assert mount.status()["state"] == "serving"


FIXED = {b"d%d" % d: {b"%03d" % (n * 3 + d): size for n, size in enumerate(SIZES * 2)} for d in range(3)}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[MlfsMount, Handles]]:
    """One mount of 108 files of all sizes."""
    with mounted(FIXED) as both:
        yield both


@pytest.mark.promise("view-bytes")
@pytest.mark.parametrize("order", ["none", "right", "wrong"])
def test_any_calls_answer_as_the_source_with_any_prediction(shared: tuple[MlfsMount, Handles], order: str) -> None:
    mount, handles = shared
    names = [os.path.relpath(path, mount.source) for path in sorted(mount.source.rglob("*")) if path.is_file()]

    # A prediction is a job that is registered for each of them.
    @settings(FEW, max_examples=cases(40 if order == "none" else 8))
    @given(calls=MANY_CALLS, start=st.integers(0, len(names)), ahead=st.integers(0, 40))
    def run(calls: list[Call], start: int, ahead: int) -> None:
        if order != "none":
            mount.register(sampler="sequential", epochs=3, batch_size=4, layout="sorted")
        step = 1 if order == "right" else -7
        predicted = [names[(start * (order == "wrong") + step * index) % len(names)] for index in range(ahead)]
        for index, name in enumerate(predicted):
            assert (mount.path / name).read_bytes() == (mount.source / name).read_bytes()
            check(handles, calls[index : index + 1])
        check(handles, calls[ahead:])
        handles.close_all()

    run()
    mount.settle()  # the job to come shall not see the last opens of these
    status = mount.status()
    assert status["state"] == "serving"
    assert status["staging"]["used_bytes"] <= 2 * (5 << 20)
    if order == "right":
        mount.register(sampler="sequential", epochs=3, batch_size=4, layout="sorted")
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] > 0)
        assert (mount.path / names[0]).read_bytes() == (mount.source / names[0]).read_bytes()
        assert mount.status()["reads"]["all"]["page_cache"]["reads"] > status["reads"]["all"]["page_cache"]["reads"]
