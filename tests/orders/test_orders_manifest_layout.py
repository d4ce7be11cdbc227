"""The layout "manifest": samples as a file lists them, also of several files, and what streams make of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from orders_support import job, make_file, manifest_of

from mlfs.errors import JobError
from mlfs.orders.layouts import samples
from mlfs.orders.streams import build_streams


def write(tmp_path: Path, *lines: bytes) -> str:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("img/1.jpg", "img/2.jpg", "mask/1.png", "mask/2.png", "img/\udcff.jpg", "text/1.txt"):
        make_file(tmp_path / "source", name)
    os.symlink("../img/2.jpg", tmp_path / "source/mask/linked.png")
    return tmp_path / "source"


def test_one_file_a_line_in_any_order_and_more_than_once(source: Path, tmp_path: Path) -> None:
    lines = (b"img/2.jpg", b"img/\xff.jpg", b"", b"mask/linked.png\r", b"img/2.jpg", b"mask/../img/1.jpg")
    tree = manifest_of(source)
    found = samples(job(layout="manifest", manifest_file=write(tmp_path, *lines)), tree)
    names = (b"img/2.jpg", b"img/\xff.jpg", b"img/2.jpg", b"img/2.jpg", b"img/1.jpg")
    assert found.tolist() == [tree.find(name) for name in names]


def test_paths_can_be_absolute_and_start_from_the_root(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path, b"1.jpg", os.fsencode(source) + b"/mask/1.png")
    tree = manifest_of(source)
    found = samples(job(layout="manifest", manifest_file=path, root="img"), tree, os.fsencode(source))
    assert [tree.path(entry) for entry in found] == [b"img/1.jpg", b"mask/1.png"]


def test_samples_of_several_files_are_read_one_after_another(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path, b"img/1.jpg\tmask/1.png\ttext/1.txt", b"img/2.jpg\tmask/2.png", b"img/\xff.jpg")
    tree = manifest_of(source)
    fields = {"layout": "manifest", "manifest_file": path, "seed": 3, "world_size": 2, "batch_size": 2}
    streams = build_streams(job(**fields), tree)
    plain = build_streams(job(**fields, start_step=1), tree)
    rows = samples(job(**fields), tree)
    assert rows.shape == (3, 3)
    assert (rows == -2).sum() == 3
    assert (streams.files_per_sample, streams.batch_files, streams.length(0)) == (3, 6, 6)
    for rank in (0, 1):
        order = streams.order.rank_stream(0, rank)
        assert np.array_equal(streams.epoch_ids(0, rank), rows[order].reshape(-1))
        assert np.array_equal(plain.epoch_ids(0, rank), streams.epoch_ids(0, rank))
    with pytest.raises(JobError, match="an epoch has 1 steps"):
        build_streams(job(**fields, start_step=2), tree)


def test_an_order_file_names_a_sample_by_any_of_its_files(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path, b"img/1.jpg\tmask/1.png", b"img/2.jpg\tmask/2.png")
    order = tmp_path / "order.txt"
    order.write_text("mask/2.png\nimg/1.jpg\n")
    spec = job(layout="manifest", manifest_file=path, sampler="explicit", order_file=str(order))
    tree = manifest_of(source)
    names = (b"img/2.jpg", b"mask/2.png", b"img/1.jpg", b"mask/1.png")
    assert build_streams(spec, tree).epoch_ids(0, 0).tolist() == [tree.find(name) for name in names]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((b"img/1.jpg", b"", b"img/9.jpg"), ["line 3", "'img/9.jpg' is not a file", "tabs"]),
        ((b"img/1.jpg mask/1.png",), ["line 1", "is not a file"]),
        ((b"img",), ["line 1", "'img' is not a file"]),
        ((b"img/1.jpg\t\tmask/1.png",), ["line 1", "'' is not a file"]),
        ((b"",), ["the manifest file", "is empty"]),
        ((b"\t".join([b"img/1.jpg"] * 65),), ["has 65 files"]),
    ],
)
def test_what_cannot_be_used_is_named(source: Path, tmp_path: Path, lines: tuple[bytes, ...], words: list[str]) -> None:
    spec = job(layout="manifest", manifest_file=write(tmp_path, *lines))
    with pytest.raises(JobError) as caught:
        samples(spec, manifest_of(source))
    assert caught.value.field == "manifest_file"
    assert all(word in str(caught.value) for word in words)


def test_no_manifest_file_is_an_error_with_the_way_out(source: Path) -> None:
    with pytest.raises(JobError, match='"manifest_file" is missing'):
        samples(job(layout="manifest"), manifest_of(source))
    with pytest.raises(JobError, match="cannot be read"):
        samples(job(layout="manifest", manifest_file="/nowhere/list.txt"), manifest_of(source))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*/?.*", [b"img/1.jpg", b"img/2.jpg", b"img/\xff.jpg", b"mask/1.png", b"mask/2.png", b"text/1.txt"]),
        ("mask/*", [b"mask/1.png", b"mask/2.png", b"mask/linked.png"]),
        ("*/*.jpg", [b"img/1.jpg", b"img/2.jpg", b"img/\xff.jpg"]),
        ("[!i]*/?.png", [b"mask/1.png", b"mask/2.png"]),
        ("text/1.txt", [b"text/1.txt"]),
    ],
)  # fmt: skip
def test_tf_list_files_takes_a_pattern(source: Path, pattern: str, names: list[bytes]) -> None:
    tree = manifest_of(source)
    found = samples(job(layout="tf-list-files", pattern=pattern), tree)
    followed = [b"img/2.jpg" if name == b"mask/linked.png" else name for name in names]
    assert [tree.path(entry) for entry in found] == followed


@pytest.mark.parametrize("pattern", ["", "/", "//"])
def test_a_pattern_without_a_name_is_refused(pattern: str) -> None:
    with pytest.raises(JobError, match="pattern"):
        job(layout="tf-list-files", pattern=pattern)
