"""Rows of HDF5, Parquet and Arrow: the ranges of which the library's own reads consist."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from orders_support import job, manifest_of
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.orders.layouts.layout import NOTHING
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree.manifest import Manifest
from mlfs.tree.source_files import SourceFiles

ROWS, SIDE = 12, 200


def streams_of(source: Path, **fields: object) -> tuple[JobStreams, Manifest]:
    tree, fields = manifest_of(source), {"sampler": "sequential", "epochs": 1} | fields
    return build_streams(job(**fields), tree, os.fsencode(source), SourceFiles(os.fsencode(source))), tree


def samples_of(source: Path, **fields: object) -> list[list[bytes]]:
    """The ranges of each sample, as they lie in the files."""
    streams, tree = streams_of(source, **fields)
    ids = streams.epoch_ids(0, 0).reshape(-1, streams.files_per_sample)
    found = []
    for sample in ids.tolist():
        rows = np.array([row for row in sample if row != NOTHING])
        ranges = zip(*(column.tolist() for column in tree.rows.columns(rows)), strict=True)
        content = [(source / os.fsdecode(tree.path(file)), offset, length) for file, offset, length in ranges]
        found.append([path.read_bytes()[offset : offset + length] for path, offset, length in content])
    return found


def images(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# -- HDF5


def test_rows_of_a_contiguous_data_set_lie_one_behind_the_other(tmp_path: Path) -> None:
    for number, userblock in enumerate((0, 512)):
        with h5py.File(tmp_path / f"{number}.h5", "w", userblock_size=userblock) as file:
            file["label"] = np.arange(ROWS)
            file["deep/image"] = images(number, ROWS, SIDE, SIDE)
    expected = [[image.tobytes()] for number in range(2) for image in images(number, ROWS, SIDE, SIDE)]
    assert samples_of(tmp_path, layout="hdf5") == expected
    assert samples_of(tmp_path, layout="hdf5", columns=["deep/image"], root="1.h5") == expected[ROWS:]


@pytest.mark.parametrize("chunks", [(1, SIDE, SIDE), (5, SIDE, SIDE), (1, SIDE, SIDE // 2), (3, 100, 140)])
def test_rows_of_a_chunked_data_set_are_the_chunks_that_they_lie_in(tmp_path: Path, chunks: tuple[int, ...]) -> None:
    content = images(1, ROWS, SIDE, SIDE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("image", data=content, chunks=chunks)
    padded = np.pad(content, [(0, -size % chunk) for size, chunk in zip(content.shape, chunks, strict=True)])
    for row, pieces in enumerate(samples_of(tmp_path, layout="hdf5")):
        begin = row // chunks[0] * chunks[0]
        expected = [
            padded[begin : begin + chunks[0], y : y + chunks[1], x : x + chunks[2]].tobytes()
            for y in range(0, SIDE, chunks[1])
            for x in range(0, SIDE, chunks[2])
        ]
        assert sorted(pieces) == sorted(expected)


def test_chunks_that_are_compressed_have_their_sizes_and_holes_none(tmp_path: Path) -> None:
    content = images(1, ROWS, SIDE, SIDE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        of_file = file.create_dataset("image", content.shape, np.uint8, chunks=(1, SIDE, SIDE), compression="gzip")
        of_file[:7] = content[:7]
        expected = [of_file.id.read_direct_chunk((row, 0, 0))[1] for row in range(7)]
    streams, _ = streams_of(tmp_path, layout="hdf5")
    assert (streams.epoch_ids(0, 0)[7:] == NOTHING).all()
    (tmp_path.parent / f"{tmp_path.name}-first").write_text("".join(f"{row}\n" for row in range(7)))
    found = samples_of(tmp_path, layout="hdf5", subset_file=str(tmp_path.parent / f"{tmp_path.name}-first"))
    assert found == [[one] for one in expected]


def test_a_sample_of_several_data_sets_has_the_rows_of_each(tmp_path: Path) -> None:
    image, mask = images(1, ROWS, SIDE, SIDE), images(2, ROWS, SIDE, 2 * SIDE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("image", data=image, chunks=(1, SIDE, SIDE))
        file["mask"], file["label"] = mask, np.arange(ROWS)
    found = samples_of(tmp_path, layout="hdf5", columns=["image", "mask", "label"])
    assert found == [[one.tobytes(), other.tobytes()] for one, other in zip(image, mask, strict=True)]


def make_bad_hdf5(path: Path, what: str) -> None:
    with h5py.File(path, "w") as file:
        if what == "text":
            file.create_dataset("x", data=["abc", "d"], dtype=h5py.string_dtype())
        elif what == "two":
            file["x"], file["y"] = images(1, 3, 9000), images(1, 4, 9000)
        elif what == "scalar":
            file["x"] = 3
        elif what == "pieces":
            file.create_dataset("x", data=images(1, 2, 1000, 1000), chunks=(1, 100, 100))


@pytest.mark.parametrize(
    ("what", "columns", "said"),
    [
        ("none", None, "no data set"),
        ("text", None, "no fixed length"),
        ("two", ["x", "z"], "no data set 'z'"),
        ("two", ["x", "y"], "x and y are not of one length"),
        ("scalar", ["x"], "no data set 'x' with rows"),
        ("pieces", None, "in 100 pieces, at most 64"),
    ],
)
def test_hdf5_without_such_rows_is_refused(tmp_path: Path, what: str, columns: list[str] | None, said: str) -> None:
    make_bad_hdf5(tmp_path / "a.h5", what)
    with pytest.raises(JobError, match=rf"'a\.h5' cannot be read by rows: .*{said}"):
        streams_of(tmp_path, layout="hdf5", columns=columns)


# -- Parquet


class Watched:
    """A file that notes what is read of it."""

    def __init__(self, path: Path) -> None:
        self._file, self.ranges, self.closed = path.open("rb"), list[tuple[int, int]](), False

    def read(self, size: int = -1) -> bytes:
        begin = self._file.tell()
        data = self._file.read(size)
        self.ranges.append((begin, begin + len(data)))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def table(seed: int, rows: int) -> pa.Table:
    noise = images(seed, rows, 20_000)
    return pa.table({
        "image": [row.tobytes() for row in noise], "label": np.arange(rows) % 3,
        "text": [row.tobytes().hex()[: 3 * 4096] for row in noise],
    })  # fmt: skip


@pytest.mark.parametrize("columns", [None, ["text"], ["text", "image"]])
def test_row_groups_are_what_pyarrow_reads_of_them(tmp_path: Path, columns: list[str] | None) -> None:
    pq.write_table(table(1, 20), tmp_path / "b.parquet", row_group_size=6)
    pq.write_table(table(2, 3), tmp_path / "a.parquet", compression="none")
    streams, tree = streams_of(tmp_path, layout="parquet", columns=columns)
    ids = streams.epoch_ids(0, 0).reshape(-1, streams.files_per_sample)
    for sample, (name, group) in enumerate([("a", 0), *(("b", group) for group in range(4))]):
        watched = Watched(tmp_path / f"{name}.parquet")
        file = pq.ParquetFile(watched)
        watched.ranges.clear()
        file.read_row_group(group, columns=columns)
        assert_staged(tree, ids[sample], watched)


def assert_staged(tree: Manifest, rows: np.ndarray, watched: Watched) -> None:
    """All that is staged of a sample is read of it, and nearly all that is read."""
    read, ours = np.zeros(tree.size.max(), bool), np.zeros(tree.size.max(), bool)
    for begin, end in watched.ranges:
        read[begin:end] = True
    for _, offset, length in zip(*(column.tolist() for column in tree.rows.columns(rows[rows >= 0])), strict=True):
        ours[offset : offset + length] = True
    assert not (ours & ~read).any()
    assert (read & ~ours).sum() < 8192  # columns that have no page to themselves


def test_a_parquet_file_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(table(1, 3), tmp_path / "a.parquet")
    with pytest.raises(JobError, match="no column 'picture'"):
        streams_of(tmp_path, layout="parquet", columns=["picture"])


# -- Arrow


def nested(rows: int) -> pa.Table:
    """As HF's datasets keep images (structs of bytes and a path), tokens and arrays of a fixed size."""
    noise = images(3, rows, 12_000)
    image = [{"bytes": row[: 9000 + 10 * at].tobytes(), "path": f"{at}.jpg"} for at, row in enumerate(noise)]
    tokens = [row.view(np.uint16)[: 5000 + at].astype(np.int32) for at, row in enumerate(noise)]
    box = pa.FixedSizeListArray.from_arrays(pa.array(noise.view(np.float16).reshape(-1)), 6000)
    return pa.table({"image": image, "label": range(rows), "tokens": tokens, "box": box})


def write_arrow(path: Path, content: pa.Table, kind: str, **options: Any) -> None:
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with make(path, content.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(content, max_chunksize=5)


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_rows_of_arrow_are_their_bytes_in_each_column(tmp_path: Path, kind: str) -> None:
    content = nested(ROWS)
    write_arrow(tmp_path / "a.arrow", content, kind)
    expected = [
        [row["image"]["bytes"], np.array(row["tokens"], np.int32).tobytes(), np.array(row["box"], np.float16).tobytes()]
        for row in content.to_pylist()
    ]
    assert samples_of(tmp_path, layout="arrow") == expected
    assert samples_of(tmp_path, layout="arrow", columns=["tokens"]) == [[row[1]] for row in expected]


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_record_batches_of_arrow_are_their_messages(tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    content = nested(ROWS)
    write_arrow(tmp_path / "a.arrow", content, kind, **options)
    streams, tree = streams_of(tmp_path, layout="arrow-batches")
    watched = Watched(tmp_path / "a.arrow")
    opened = pa.ipc.open_file(watched) if kind == "file" else pa.ipc.open_stream(watched)
    for number, row in enumerate(streams.epoch_ids(0, 0)):
        watched.ranges.clear()
        batch = opened.get_batch(number) if kind == "file" else opened.read_next_batch()
        assert batch.num_rows == min(5, ROWS - 5 * number)
        assert_staged(tree, np.array([row]), watched)


def test_rows_of_compressed_batches_are_refused(tmp_path: Path) -> None:
    pyarrow.feather.write_feather(nested(ROWS), tmp_path / "a.arrow", compression="lz4")
    with pytest.raises(JobError, match=r"it is compressed.*arrow-batches"):
        streams_of(tmp_path, layout="arrow")


# -- all of them


def good(layout: str, path: Path) -> None:
    if layout == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=images(1, ROWS, 9000), chunks=(1, 9000))
    elif layout == "parquet":
        pq.write_table(table(1, 6), path, row_group_size=2)
    else:
        write_arrow(path, nested(ROWS), "file")


def damaged(content: bytes, layout: str) -> Iterator[bytes]:
    rng = random.Random(layout)
    yield b""
    yield b"no such file"
    yield content[: len(content) // 2]
    for _ in range(cases(1)):
        spoilt, head = bytearray(content), rng.choice([300, 3000, len(content)])
        for _ in range(30):
            spoilt[rng.choice([1, -1]) * rng.randrange(1, head)] = rng.randrange(256)
        yield bytes(spoilt)


@pytest.mark.parametrize("layout", ["hdf5", "parquet", "arrow", "arrow-batches"])
def test_a_damaged_file_is_refused_in_one_line_or_gives_ranges_that_it_has(tmp_path: Path, layout: str) -> None:
    ending = "h5" if layout == "hdf5" else layout.partition("-")[0]
    good(layout, tmp_path / f"a.{ending}")
    path = tmp_path / f"b.{ending}"
    good(layout, path)
    said = list[str]()
    for content in list(damaged(path.read_bytes(), layout)):
        path.write_bytes(content)
        try:
            streams_of(tmp_path, layout=layout)
        except JobError as error:
            said.append(str(error))
    assert not [text for text in said if "\n" in text or "Traceback" in text]
    assert sum(f"'b.{ending}'" in text for text in said) >= 3


@pytest.mark.parametrize("layout", ["hdf5", "parquet", "arrow", "arrow-batches"])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = "h5py" if layout == "hdf5" else "pyarrow"
    (tmp_path / "none" / library).mkdir(parents=True)
    (tmp_path / "none" / library / "__init__.py").write_text("raise ModuleNotFoundError")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / f"a.{layout.partition('-')[0]}").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "none"))
    with pytest.raises(JobError, match=rf"needs {library}, which is not installed") as refused:
        streams_of(tmp_path / "source", layout=layout)
    assert refused.value.hint == f"pip install 'mlfs[{library}]'"
