"""Explicit orders: files of indices and paths, and errors that name the file and the line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from orders_support import job, make_file, manifest_of

from mlfs.errors import JobError
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree.manifest import Manifest


def streams_of(source: Path, order_file: Path | str, **fields: object) -> tuple[Manifest, JobStreams]:
    manifest = manifest_of(source)
    spec = job(sampler="explicit", order_file=str(order_file), **fields)
    return manifest, build_streams(spec, manifest, os.fsencode(source))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    for path in ("train/a/1.jpg", "train/a/2.jpg", "train/b/\udcff.jpg", "train/b/7", "note.txt"):
        make_file(top, path)
    os.symlink("train/b", top / "linked")
    return top


def refusal(source: Path, content: bytes, tmp_path: Path, **fields: object) -> JobError:
    order_file = tmp_path / "order.txt"
    order_file.write_bytes(content)
    with pytest.raises(JobError) as caught:
        streams_of(source, order_file, **fields)
    assert caught.value.field == "order_file"
    return caught.value


def test_indices_count_in_the_layouts_order(source: Path, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"2\n0\r\n\n1\n2")
    manifest, streams = streams_of(source, tmp_path / "order.txt", root="train")
    paths = [manifest.path(entry) for entry in streams.epoch_ids(0, 0)]
    assert paths == [b"train/b/\xff.jpg", b"train/a/1.jpg", b"train/a/2.jpg", b"train/b/\xff.jpg"]


def test_paths_are_relative_to_the_root_or_absolute_and_may_go_through_links(source: Path, tmp_path: Path) -> None:
    lines = [b"b/\xff.jpg", b"./a/2.jpg", b"a/../a/1.jpg", b"../linked/7", os.fsencode(source / "train/a/1.jpg")]
    (tmp_path / "order.txt").write_bytes(b"\n".join(lines) + b"\n")
    manifest, streams = streams_of(source, tmp_path / "order.txt", root="train", layout="sorted")
    paths = [manifest.path(entry) for entry in streams.epoch_ids(0, 0)]
    assert paths == [b"train/b/\xff.jpg", b"train/a/2.jpg", b"train/a/1.jpg", b"train/b/7", b"train/a/1.jpg"]


def test_a_name_of_digits_is_a_path_when_the_first_line_is(source: Path, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"./7\n7\n")
    manifest, streams = streams_of(source, tmp_path / "order.txt", root="train/b", layout="sorted")
    assert streams.epoch_ids(0, 0).tolist() == [manifest.find(b"train/b/7")] * 2


def test_the_worlds_list_is_dealt_and_shorter_ranks_end_with_nothing(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text("4\n3\n2\n1\n0\n")
    order = build_order(job(sampler="explicit", order_file=str(tmp_path / "order.txt"), world_size=2), 5)
    assert [order.rank_stream(0, rank).tolist() for rank in range(2)] == [[4, 2, 0], [3, 1]]
    assert order.stream_length(0) == 3
    with pytest.raises(ValueError, match="read-only"):  # it would change every later epoch
        order.rank_stream(0, 0)[0] = 1


def test_streams_of_unequal_ranks_are_filled_up_with_what_is_not_there(source: Path, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text("1\n0\n2\n")
    _, streams = streams_of(source, tmp_path / "order.txt", root="train", world_size=2)
    assert [len(streams.epoch_ids(0, rank)) for rank in range(2)] == [streams.length(0)] * 2 == [2, 2]
    assert streams.epoch_ids(0, 1).tolist() == [streams.sample_ids[0], -2]


def test_every_epoch_and_rank_can_have_its_own_file(tmp_path: Path) -> None:
    for epoch in range(2):
        for rank in range(2):
            (tmp_path / f"e{epoch}r{rank}").write_text("\n".join(["1"] * (1 + 2 * epoch + rank)))
    spec = job(sampler="explicit", order_file=str(tmp_path / "e{epoch}r{rank}"), world_size=2, epochs=2)
    order = build_order(spec, 2)
    assert [[len(order.rank_stream(epoch, rank)) for rank in range(2)] for epoch in range(2)] == [[1, 2], [3, 4]]
    assert [order.stream_length(epoch) for epoch in range(2)] == [2, 4]


def test_a_file_is_the_same_in_every_epoch_without_a_placeholder_and_read_once(tmp_path: Path) -> None:
    path = tmp_path / "order.txt"
    path.write_text("1\n0\n")
    order = build_order(job(sampler="explicit", order_file=str(path), epochs=9), 2)
    assert order.rank_stream(0, 0).tolist() == [1, 0]
    path.unlink()
    assert order.rank_stream(8, 0).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0\n1\n\n3\n", ["line 4", "'3'", "from 0 to 2"]),
        (b"0\nx.jpg\n", ["line 2", "'x.jpg'", "like the first line"]),
        (b"0\n-1\n", ["line 2", "'-1'"]),
        (b"9" * 30, ["line 1", "from 0 to 2"]),
        (b"a/1.jpg\r\na/3.jpg\r\n", ["line 2", "'a/3.jpg'", "not the path of a sample", '"layout": "sorted"']),
        (b"a\n", ["line 1", "'a'"]),
        (b"b/7\n", ["line 1", "'b/7'", '"layout": "sorted"']),
        (b"/etc/hostname\n", ["line 1", "not the path of a sample"]),
        (b"../../..\n", ["line 1", "not the path of a sample"]),
        (b"\xff\x1b\n", ["line 1", r"'\udcff\x1b'"]),
        (b"\n\r\n", ["is empty"]),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(
    source: Path, tmp_path: Path, content: bytes, words: list[str]
) -> None:
    error = refusal(source, content, tmp_path, root="train")
    assert "order.txt" in error.message
    assert all(word in str(error) for word in words)
    assert str(error).isprintable()


def test_a_missing_file_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"epoch3'.*No such file") as caught:
        streams_of(source, tmp_path / "epoch{epoch}", root="train", epochs=5, start_epoch=3)
    assert caught.value.hint


def test_a_file_that_grows_while_the_job_runs_is_noticed(source: Path, tmp_path: Path) -> None:
    for epoch in range(2):
        (tmp_path / f"order{epoch}").write_text("0\n")
    _, streams = streams_of(source, tmp_path / "order{epoch}", root="train", epochs=2)
    assert streams.length(1) == 1
    (tmp_path / "order1").write_text("0\n1\n")
    with pytest.raises(JobError, match="has grown"):
        streams.epoch_ids(1, 0)
