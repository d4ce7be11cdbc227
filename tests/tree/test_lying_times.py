"""What is learned of a source's times, and what a saved index is worth where those of directories prove nothing."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.slow import LyingSource
from support.trees import make_tree

from mlfs.tree.attributes import FileAttributes
from mlfs.tree.index import manifest_for
from mlfs.tree.learn_times import neighbours
from mlfs.tree.scan import scan
from mlfs.tree.times import ALIKE, MOVED_BY_LISTINGS, NEVER_MOVE, Times

TREE = {f"{directory}/{n}": 10 for directory in ("a", "a/b", "c", "d/e") for n in range(4)}


def looked(mtime_ns: int, ctime_ns: int, size: int = 5) -> FileAttributes:
    return FileAttributes(size, mtime_ns, ctime_ns, 0o100644, 7, 0, 0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_what_moves_in_enough_files_proves_nothing(seed: int) -> None:
    draw = random.Random(seed)
    times, files = Times(), draw.randrange(1, 6)
    moving = {name: {n for n in range(files) if draw.random() < 0.6} for name in ("mtime", "ctime")}
    pairs = [[(looked(1, 1), looked(1 + (n in moving["mtime"]), 1 + (n in moving["ctime"])))] for n in range(files)]
    learned = times.learn(pairs, alone=files == 1)
    enough = 1 if files == 1 else max(2, (files + 1) // 2)
    assert set(learned) == {name for name, which in moving.items() if len(which) >= enough}
    assert (times.mtime, times.ctime) == ("mtime" not in learned, "ctime" not in learned)
    assert times.same(looked(1, 1), looked(1 + (not times.mtime), 1 + (not times.ctime)))
    assert not times.same(looked(1, 1), looked(1, 1, size=6))
    assert not times.mtime or not times.same(looked(1, 1), looked(2, 1))
    assert not times.ctime or not times.same(looked(1, 1), looked(1, 2))


def test_a_file_that_is_written_just_then_teaches_nothing() -> None:
    times = Times()
    assert times.learn([[(looked(1, 1), looked(2, 2))], [(looked(1, 1), looked(1, 1))]], alone=False) == []
    grows = [(looked(1, 1), looked(2, 2, size=6))]
    assert times.learn([grows, grows], alone=False) == []
    assert times.both


def test_copies_are_told_apart_by_what_proves_something_and_else_never_found_again() -> None:
    assert Times().version(3, 4) == (3, 4)
    assert Times(ctime=False).version(3, 4) == Times(ctime=False).version(3, 5) == (3, 0)
    assert Times(mtime=False).version(3, 4) == (0, 4)
    assert Times(mtime=False, ctime=False).version(3, 4) != Times(mtime=False, ctime=False).version(3, 4)


@pytest.mark.promise("lies-directory")
def test_an_index_is_used_again_only_where_times_of_directories_prove_something(tmp_path: Path) -> None:
    with LyingSource(make_tree(tmp_path / "backing", TREE)) as source:

        def mounted(name: str) -> tuple[str, str, set[bytes]]:
            fd = os.open(source.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                manifest, report = manifest_for(fd, str(source.path), tmp_path / name)
            finally:
                os.close(fd)
            return report.how, manifest.times.directories, set(manifest.paths(manifest.files))

        def is_true(found: set[bytes]) -> bool:
            below = [path for path in source.backing.rglob("*") if path.is_file()]
            return found == {os.fsencode(path.relative_to(source.backing)) for path in below}

        assert mounted("true")[:2] == ("scanned", "")
        assert mounted("true")[:2] == ("reused", "")
        lies = {"none": ALIKE, "alike": ALIKE, "moved": MOVED_BY_LISTINGS, "now": MOVED_BY_LISTINGS}
        for number, (lie, why) in enumerate(lies.items()):
            source.lie("", directories=lie)
            for turn in range(3):
                how, said, found = mounted(lie)
                assert (how, said) == ("scanned", why)
                assert is_true(found)
                (source.backing / "a" / "b" / f"new{number}-{turn}").write_bytes(b"")
        source.lie("", directories="frozen")
        assert mounted("frozen")[:2] == ("scanned", "")
        assert mounted("frozen")[:2] == ("reused", "")
        (source.backing / "d" / "e" / "new").write_bytes(b"")
        for _ in range(2):  # found out, and remembered
            how, said, found = mounted("frozen")
            assert (how, said) == ("scanned", NEVER_MOVE)
            assert is_true(found)
            (source.backing / "c" / "0").unlink(missing_ok=True)


def test_directories_that_were_made_in_one_moment_are_believed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", TREE)
    for directory, _, _ in os.walk(tree):
        os.utime(directory, ns=(10**18, 10**18))
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for how in ("scanned", "reused"):
        manifest, report = manifest_for(fd, str(tree), tmp_path / "index")
        assert (report.how, manifest.times.directories) == (how, "")
    os.close(fd)


def test_files_that_are_looked_at_beside_one_are_others_and_near(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", TREE | {"flat/only": 1})
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    manifest = scan(fd, workers=1)
    os.close(fd)
    for entry in manifest.files.tolist():
        others = neighbours(manifest, entry, 3)
        assert len(set(others) - {entry}) == 3
        assert all(manifest.is_file(other) for other in others)
        if manifest.path(entry).startswith(b"a/b/"):
            assert all(manifest.path(other).startswith(b"a/b/") for other in others)
