"""Layouts over real trees with unpleasant names: torchvision's own lines, run on the disk, say what is right."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orders_support import IMG_EXTENSIONS, entries_of, job, make_file, manifest_of, torchvision_samples
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.job.names import layout_names
from mlfs.orders.layouts import LISTED, samples
from mlfs.orders.layouts.rows import ROWS
from mlfs.tree.source_files import SourceFiles

# Below, at and above "/" and between each other in every way: by bytes, by code point, by case, as prefixes.
DIRECTORIES = ["a", "a-b", "a b", "a.jpg", ".hidden", "A", "b", "é", "\udcff", "\ue000", "\U00010000", "ÿ"]
FILES = [
    "x.jpg",
    "x.JPG",
    ".jpg",
    "x.PnG",
    "x.txt",
    "x",
    "\udcff.jpg",
    "\ue000.jpg",
    "\U00010000.WebP",
    "é.tiff",
    "x.jpg.gz",
]

PATHS = st.builds(
    lambda above, name: "/".join([*above, name]),
    st.lists(st.sampled_from(DIRECTORIES), max_size=4),
    st.sampled_from(FILES),
)


def make_tree(root: str, paths: list[str]) -> None:
    """Create the files; no name of a directory is one of a file."""
    for path in paths:
        make_file(root, path)


def ids(source: str, **fields: object) -> list[int]:
    spec = job(**fields)
    return samples(spec, manifest_of(source), os.fsencode(source), SourceFiles(os.fsencode(source))).tolist()


@given(paths=st.lists(PATHS, max_size=30, unique=True))
@example(paths=["a/x.jpg", "a/b/x.jpg", "a/a-b/x.jpg", "a/a/x.jpg", "a/a/a/x.jpg", "a/a b/x.jpg"])
@example(paths=["\udcff/x.jpg", "\ue000/x.jpg", "\U00010000/\udcff.jpg", "\U00010000/\ue000.jpg"])
@settings(max_examples=cases(40), deadline=None)
def test_imagefolder_is_torchvisions(paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as source:
        make_tree(source, ["c/always.jpg", *paths])
        expected = entries_of(manifest_of(source), source, torchvision_samples(source))
        assert min(expected) > 0
        assert ids(source) == expected


@given(paths=st.lists(PATHS, max_size=30, unique=True), extensions=st.sampled_from([None, ["jpg"], [".PNG", "é.tiff"]]))
@settings(max_examples=cases(30), deadline=None)
def test_sorted_is_every_file_by_the_bytes_of_its_path(paths: list[str], extensions: list[str] | None) -> None:
    with tempfile.TemporaryDirectory() as source:
        made = ["c.png", "c.jpg", *paths]
        make_tree(source, made)
        endings = tuple("." + ending.lower().removeprefix(".") for ending in extensions or ())
        wanted = sorted(os.fsencode(path) for path in made if not endings or path.lower().endswith(endings))
        manifest = manifest_of(source)
        assert [manifest.path(entry) for entry in ids(source, layout="sorted", extensions=extensions)] == wanted


def test_own_extensions_replace_those_of_images(tmp_path: Path) -> None:
    make_tree(str(tmp_path), ["a/x.NPY", "a/x.jpg", "a/y.tar.gz", "a/z.gz"])
    expected = torchvision_samples(str(tmp_path), (".npy", ".tar.gz"))
    assert ids(str(tmp_path), extensions=["npy", "tar.gz"]) == entries_of(
        manifest_of(tmp_path), str(tmp_path), expected
    )
    assert len(expected) == 2


def test_a_root_below_the_source(tmp_path: Path) -> None:
    make_tree(str(tmp_path), ["train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "0.jpg"])
    os.symlink("train", tmp_path / "linked")
    manifest = manifest_of(tmp_path)
    expected = entries_of(manifest, str(tmp_path), torchvision_samples(str(tmp_path / "train")))
    assert len(expected) == 2
    assert ids(str(tmp_path), root="train") == ids(str(tmp_path), root="linked") == expected
    found = ids(str(tmp_path), root="train", layout="sorted")
    assert [manifest.path(entry) for entry in found] == [b"train/a/1.jpg", b"train/b/2.jpg"]


def test_trees_deeper_than_pythons_stack(tmp_path: Path) -> None:
    deep = "c/" + "d/" * 1200
    directories = [tmp_path / deep[:end] for end in range(1, len(deep), 2)]
    try:
        for directory in directories:
            os.mkdir(directory)
        make_file(tmp_path, deep + "x.jpg")
        make_file(tmp_path, "c/d/x.jpg")
        manifest = manifest_of(tmp_path)
        expected = [manifest.find(b"c/d/x.jpg"), manifest.find(os.fsencode(deep + "x.jpg"))]
        assert samples(job(), manifest).tolist() == expected
        assert samples(job(layout="sorted"), manifest).tolist() == expected[::-1]
    finally:  # what pytest removes old directories with is recursive
        for directory in reversed(directories):
            (directory / "x.jpg").unlink(missing_ok=True)
            directory.rmdir()


def link_forest(source: Path, elsewhere: Path) -> None:
    """Links of every kind that do not loop."""
    make_tree(str(source), ["a/1.jpg", "a/deep/er/2.jpg", "b/3.png", "store/4.jpg", "store/sub/5.JPG", "store/no.txt"])
    make_tree(str(elsewhere), ["6.jpg", "z/7.jpg", "z-a/8.jpg", "z/\udcff.png", "note.txt"])
    os.symlink("store", source / "linked-class")
    os.symlink("../store/4.jpg", source / "a/to-file.jpg")
    os.symlink("../store/4.jpg", source / "a/to-file.txt")
    os.symlink("../store/no.txt", source / "a/text-as.jpg")
    os.symlink("../../store/sub", source / "a/deep/dir.jpg")
    os.symlink(str(source / "store/sub"), source / "b/absolute")
    os.symlink(str(source / "store/4.jpg") + "/", source / "b/slash-after-file.jpg")
    os.symlink("../linked-class/../store/./sub/5.JPG", source / "b/crooked.jpg")
    os.symlink(f"../../{source.name}/store/4.jpg", source / "b/out-and-in.jpg")
    os.symlink("nowhere", source / "b/broken.jpg")
    os.symlink("nowhere", source / "broken-class")
    os.symlink("self.jpg", source / "b/self.jpg")
    os.symlink(str(elsewhere), source / "b/outside-dir")
    os.symlink(str(elsewhere), source / "outside-class")
    os.symlink(str(elsewhere / "6.jpg"), source / "b/outside.jpg")
    os.symlink("../../../" + elsewhere.name + "/6.jpg", source / "a/deep/outside.jpg")
    os.symlink(str(elsewhere / "nothing"), source / "b/outside-broken.jpg")
    os.mkfifo(source / "b/pipe.jpg")


@pytest.fixture
def forest(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    link_forest(source, tmp_path / "elsewhere")
    return source


def test_imagefolder_follows_links_as_os_walk_does(forest: Path) -> None:
    expected = entries_of(manifest_of(forest), str(forest), torchvision_samples(str(forest)))
    assert expected.count(-1) > 8
    assert len(set(expected)) < len(expected) - expected.count(-1)
    assert ids(str(forest)) == expected


def test_sorted_follows_links_to_files_only(forest: Path) -> None:
    found = [path for path in forest.rglob("*") if path.is_file()]
    paths = [str(path) for path in sorted(found, key=os.fsencode)]
    expected = entries_of(manifest_of(forest), str(forest), paths)
    assert expected.count(-1) == 2
    assert ids(str(forest), layout="sorted") == expected


def test_absolute_links_need_the_sources_path_and_the_root_can_be_a_source(tmp_path: Path) -> None:
    make_tree(str(tmp_path), ["a/1.jpg"])
    os.symlink("/a/1.jpg", tmp_path / "a/2.jpg")
    os.symlink("../../../a/1.jpg", tmp_path / "a/3.jpg")
    manifest = manifest_of(tmp_path)
    entry = manifest.find(b"a/1.jpg")
    assert samples(job(), manifest, b"/").tolist() == [entry] * 3
    assert samples(job(), manifest, None, lambda path: None).tolist() == [entry, -1, -1]


def test_a_link_that_leaves_without_a_hook_is_named(forest: Path) -> None:
    with pytest.raises(JobError, match="leads out of the source") as caught:
        samples(job(), manifest_of(forest), os.fsencode(forest))
    assert caught.value.hint


@pytest.mark.parametrize("target", [".", "..", "../b", "../../source/b/to-a"])
def test_a_loop_of_links_ends_in_an_error(tmp_path: Path, target: str) -> None:
    source = tmp_path / "source"
    make_tree(str(source), ["a/1.jpg", "b/2.jpg"])
    os.symlink("../a", source / "b/to-a")
    os.symlink(target, source / "a/loop")
    with pytest.raises(JobError, match="leads back to it") as caught:
        ids(str(source))
    assert '"layout": "sorted"' in caught.value.hint
    assert len(ids(str(source), layout="sorted")) == 2


@pytest.mark.parametrize(
    ("fields", "paths", "words"),
    [
        ({}, ["x.jpg", "a/x.txt"], ["imagefolder", "jpg jpeg png", "class directories", '"layout": "sorted"']),
        ({"root": "a", "extensions": ["npy"]}, ["a/b/x.jpg"], ["'a'", "npy"]),
        ({"layout": "sorted", "extensions": ["npy"]}, ["a/b/x.jpg"], ['layout "sorted"', "npy", '"extensions"']),
        ({"layout": "sorted"}, [], ['layout "sorted"']),
    ],
)
def test_no_samples_is_an_error_that_says_what_was_looked_for(
    tmp_path: Path, fields: dict[str, object], paths: list[str], words: list[str]
) -> None:
    make_tree(str(tmp_path), paths)
    with pytest.raises(JobError, match="no samples") as caught:
        ids(str(tmp_path), **fields)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("root", ["nowhere", "a/x.jpg", "a/x.jpg/y"])
def test_a_root_that_is_no_directory_is_an_error(tmp_path: Path, root: str) -> None:
    make_file(tmp_path, "a/x.jpg")
    with pytest.raises(JobError, match="there is no directory") as caught:
        ids(str(tmp_path), root=root)
    assert caught.value.field == "root"


def test_the_layouts_of_a_job_are_those_that_find_samples() -> None:
    assert set(layout_names()) == {*LISTED, *ROWS, "manifest", "braces", "litdata"}


def test_the_endings_are_torchvisions() -> None:
    ours = LISTED["imagefolder"].endings.split()

    assert tuple("." + ending for ending in ours) == IMG_EXTENSIONS
