"""The layouts of rows: samples that are ranges of large files.

In: a job's root, layout and fields; the tree; the heads of the source's files. Out: sample ids. Called by
`mlfs.orders.layouts`.

- npy: rows along the first axis of arrays that NumPy has saved. Source: numpy/lib/format.py (NumPy 2.4).
- raw: rows of one length, `row_bytes`, behind `header_bytes` (np.memmap, CIFAR's and STL's binary files).
- ranges: the lines of `manifest_file`, a file, an offset and a length each, with tabs between.
- tar: the members of one key, as webdataset groups them. Source: webdataset/tariterators.py (base_plus_ext).
- tfrecord: records, which one scan of their lengths finds. Source: tensorflow/core/lib/io/record_writer.h.
- array_record: records, which one scan of the headers of their chunks finds. Source:
  riegeli/doc/riegeli_records_file_format.md; array_record/cpp/array_record_writer.cc (array_record 0.8.6).
- mds: MosaicML's shards. Source: streaming/base/format/mds/reader.py (streaming 0.13).
- megatron: .bin and .idx. Source: megatron/core/datasets/indexed_dataset.py.

Several files come one after the other, by the bytes of their paths. A row in a file that is not kept in blocks keeps
its index and is not staged.
"""

from __future__ import annotations

import json
import math
import re
import stat
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.layouts.layout import Outside, ReadsSource, SampleIds, Tree, decode, encode
from mlfs.orders.layouts.links import Links, Paths
from mlfs.orders.layouts.listers import SORTED
from mlfs.orders.order_file import read_lines
from mlfs.orders.stopping import stop_if_asked

if TYPE_CHECKING:
    from mlfs.job import JobSpec

Column = npt.NDArray[np.int64]


class FoundRows(NamedTuple):
    """Rows of files, in the order of their indices."""

    files: Column
    offsets: Column
    lengths: Column


class _Given(NamedTuple):
    """The job and the tree that a layout looks at. `open`: opens a file of the source, by its path."""

    spec: JobSpec
    tree: Tree
    links: Links
    open: Callable[[bytes], BinaryIO]


def find_rows(spec: JobSpec, tree: Tree, links: Links, outside: Outside | None) -> SampleIds:
    """The id of each row; -1 for rows that are not staged.

    Raises: JobError.
    """

    def opened(path: bytes) -> BinaryIO:
        if not isinstance(outside, ReadsSource):
            raise JobError(f'the layout "{spec.layout}" reads files of the source', "register it at a mount", "layout")
        return outside.open(path)

    found = ROWS[spec.layout](_Given(spec, tree, links, opened))
    if not len(found.files):
        raise JobError(f'no samples: the layout "{spec.layout}" found no row', 'check "root"', "root")
    ends = found.offsets + found.lengths
    beyond = np.flatnonzero((found.offsets < 0) | (found.lengths <= 0) | (ends > tree.size[found.files]))
    if len(beyond):
        first = int(beyond[0])
        path = decode(tree.path(int(found.files[first])))
        place = f"{found.lengths[first]} bytes from {found.offsets[first]} on"
        raise JobError(
            f"row {first} is {place}, which {path!r} does not have", "was the file cut, or is it another one?", "layout"
        )
    try:
        ids = tree.rows.add(*found)
    except ValueError as error:
        raise JobError(f"{error}", "mount anew, or register fewer", "layout") from None
    if not (ids >= 0).any():
        message = f"none of the {len(ids):,} rows lies in a file above 4 MiB"
        raise JobError(message, "smaller files are read whole: register them as samples", "layout")
    return ids


def _files(given: _Given, ending: str | None) -> list[int]:
    """The file that is the root, or the files below it."""
    spec, tree = given.spec, given.tree
    root = given.links.follow(encode(spec.root))
    if root >= 0 and stat.S_ISREG(int(tree.mode[root])):
        return [root]
    if root < 0 or not stat.S_ISDIR(int(tree.mode[root])):
        hint = "give a file or a directory of the source, relative to where mlfs is mounted"
        raise JobError(f"there is no {spec.root!r} in the source", hint, "root")

    def below(endings: tuple[str, ...] | None) -> list[int]:
        pieces = SORTED.find(tree, root, given.links, endings, "")
        return [entry for piece in pieces for entry in piece.tolist() if entry >= 0]

    found = below(spec.extensions or (None if ending is None else (ending,)))
    if found or spec.extensions or ending is None:
        return found
    numbered = re.compile(rb"\.%b-\d+-of-\d+" % encode(ending), re.IGNORECASE)  # as TFDS and Beam name them
    return [entry for entry in below(None) if numbered.search(tree.path(entry))]


def _together(pieces: Sequence[tuple[int, int, int, int]]) -> FoundRows:
    """Rows of one length each piece. Args: pieces: (file, where the first row begins, bytes of a row, rows)."""
    nothing = np.empty(0, np.int64)
    counts = [count for *_, count in pieces]
    return FoundRows(
        np.repeat(np.array([file for file, *_ in pieces], np.int64), counts),
        np.concatenate(
            [nothing, *(begin + length * np.arange(count, dtype=np.int64) for _, begin, length, count in pieces)]
        ),
        np.repeat(np.array([length for _, _, length, _ in pieces], np.int64), counts),
    )


def _of_each(given: _Given, files: Sequence[int], one: Callable[[int, BinaryIO], FoundRows]) -> FoundRows:
    """The rows of files, each of which says by itself where they are. Raises: JobError for one that does not."""
    found = [_together([])]
    for file in files:
        stop_if_asked()
        path = given.tree.path(file)
        try:
            with given.open(path) as content:
                found.append(one(file, content))
        except JobError:
            raise
        except Exception as error:  # libraries that read another format than theirs fail in many ways
            message = f"{decode(path)!r} cannot be read by rows: {' '.join(str(error).split())}"
            raise JobError(message, f'is it what the layout "{given.spec.layout}" is for?', "layout") from None
    return FoundRows(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _npy(given: _Given) -> FoundRows:
    def one(file: int, content: BinaryIO) -> FoundRows:
        version = np.lib.format.read_magic(content)
        parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = parse(content)
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        if dtype.hasobject or (by_column and len(shape) > 1) or not shape or not row_bytes:
            raise ValueError("its rows do not lie one behind the other")
        return _together([(file, content.tell(), row_bytes, shape[0])])

    return _of_each(given, _files(given, "npy"), one)


def _raw(given: _Given) -> FoundRows:
    row_bytes, header_bytes = given.spec.row_bytes, given.spec.header_bytes or 0
    if not row_bytes:
        message = 'job field "row_bytes" is missing: the layout "raw" needs it'
        raise JobError(message, "give the bytes of a row", "row_bytes")
    return _together(
        [
            (file, header_bytes, row_bytes, max(0, int(given.tree.size[file]) - header_bytes) // row_bytes)
            for file in _files(given, None)
        ]
    )


def _ranges(given: _Given) -> FoundRows:
    spec = given.spec
    if not spec.manifest_file:
        message = 'job field "manifest_file" is missing: the layout "ranges" reads the rows from it'
        raise JobError(message, "give the absolute path of a file with one row a line", "manifest_file")
    paths, entries = Paths(given.tree, given.links, spec.root), dict[bytes, int]()
    rows: list[tuple[int, int, int]] = []
    for line in read_lines(spec.manifest_file, "manifest_file"):
        name, *numbers = line.text.split(b"\t")
        entry = entries.get(name)
        if entry is None:
            entry = entries[name] = paths.file(name)
        if entry < 0 or len(numbers) != 2 or not all(number.isdigit() and len(number) < 19 for number in numbers):
            shown = line.text[:80].decode("utf-8", "surrogateescape")
            hint = "a line is a file relative to the job's root, an offset and a length in bytes, with tabs between"
            raise JobError(f"{spec.manifest_file!r}, line {line.number}: {shown!r} is no row", hint, "manifest_file")
        rows.append((entry, int(numbers[0]), int(numbers[1])))
    return FoundRows(*np.array(rows, dtype=np.int64).T)


# -- formats that say themselves where their samples are


def _columns(file: int, begins: Sequence[int] | Column, ends: Sequence[int] | Column) -> FoundRows:
    """Rows of one file, each from where it begins to where it ends."""
    offsets = np.asarray(begins, dtype=np.int64)
    return FoundRows(np.full(len(offsets), file, np.int64), offsets, np.asarray(ends, dtype=np.int64) - offsets)


def _tar(given: _Given) -> FoundRows:
    """A sample is the members of one name up to its first dot, from its first header to its last byte."""

    def one(file: int, content: BinaryIO) -> FoundRows:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            members = [member for member in archive if member.isreg()]
        groups = [list(of_key) for _, of_key in groupby(members, key=lambda member: _key_of(member.name))]
        ends = [of_key[-1].offset_data + of_key[-1].size for of_key in groups]
        return _columns(file, [of_key[0].offset for of_key in groups], ends)

    return _of_each(given, _files(given, "tar"), one)


def _key_of(name: str) -> str:
    directory, slash, base = name.rpartition("/")
    return directory + slash + base.partition(".")[0]


_RECORD: Final = struct.Struct("<Q4x")  # the length of the data, and a checksum of that


def _tfrecord(given: _Given) -> FoundRows:
    """A sample is a record with its frame: 12 bytes before the data, 4 behind it."""

    def one(file: int, content: BinaryIO) -> FoundRows:
        size, begins, at = int(given.tree.size[file]), list[int](), 0
        while at < size:
            content.seek(at)
            (length,) = _RECORD.unpack(content.read(_RECORD.size))
            begins.append(at)
            at += _RECORD.size + length + 4
        return _columns(file, begins, [*begins[1:], at] if begins else [])

    return _of_each(given, _files(given, "tfrecord"), one)


_BLOCK, _BLOCK_HEADER, _CHUNK_HEADER = 1 << 16, 24, 40  # of Riegeli's files
_CHUNK: Final = struct.Struct("<8xQ8xQ8x")  # bytes of the data; the kind in a byte, and how many records in seven
_SIGNATURE, _KINDS = ord("s"), b"smprt"


def _array_record(given: _Given) -> FoundRows:
    """A sample is a chunk of one record. The last two chunks that have any are the footer and its place."""

    def one(file: int, content: BinaryIO) -> FoundRows:
        size, begins, ends, records, at = int(given.tree.size[file]), list[int](), list[int](), list[int](), 0
        while at < size:
            content.seek(at)
            head, inside = content.read(_BLOCK_HEADER + _CHUNK_HEADER), -at % _BLOCK
            if inside < _CHUNK_HEADER:  # a block's header stands in the middle of it, or before it
                head = head[:inside] + head[inside + _BLOCK_HEADER :]
            length, count = _CHUNK.unpack(head[:_CHUNK_HEADER])
            kind, count = count & 0xFF, count >> 8
            if kind not in _KINDS or (not at and kind != _SIGNATURE):
                raise ValueError(f"there is no chunk at byte {at}")
            begin, at = at, _end_of_chunk(at, _CHUNK_HEADER + length, count)
            if count:
                begins.append(begin)
                ends.append(at)
                records.append(count)
        if len(records) < 2 or begins[-1] != size - _BLOCK:
            raise ValueError("its end is missing")
        if max(records[:-2], default=1) > 1:
            raise ValueError(f"{max(records[:-2])} records lie in one chunk: Grain wants group_size:1")
        return _columns(file, begins[:-2], ends[:-2])

    return _of_each(given, _files(given, "array_record"), one)


def _end_of_chunk(begin: int, size: int, records: int) -> int:
    """The place behind a chunk, with the headers of the blocks that it goes through: it is as long as it has records,
    and does not end in a block's header."""
    usable, least = _BLOCK - _BLOCK_HEADER, begin + records
    headers = (size + (begin + usable - 1) % _BLOCK) // usable
    return max(begin + size + headers * _BLOCK_HEADER, least + max(0, -least % _BLOCK - (usable - 1)))


def _mds(given: _Given) -> FoundRows:
    """A sample is what lies between two of the offsets at the head of its shard; index.json has the shards."""
    paths = Paths(given.tree, given.links, given.spec.root)
    index = paths.file(b"index.json")
    if index < 0:
        raise JobError('the layout "mds" found no index.json', 'give its directory as "root"', "root")
    try:
        with given.open(given.tree.path(index)) as content:
            shards = json.loads(content.read())["shards"]
        files = [paths.file(encode(shard["raw_data"]["basename"])) for shard in shards]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"index.json cannot be read: {error}", "it is what MDSWriter writes", "layout") from None
    if -1 in files:
        missing = shards[files.index(-1)]["raw_data"]["basename"]
        raise JobError(f"there is no shard {missing!r} beside index.json", "shards must not be compressed", "layout")

    def one(file: int, content: BinaryIO) -> FoundRows:
        (count,) = struct.unpack("<I", content.read(4))
        offsets = np.frombuffer(content.read(4 * (count + 1)), dtype="<u4", count=count + 1).astype(np.int64)
        return _columns(file, offsets[:-1], offsets[1:])

    return _of_each(given, files, one)


_MEGATRON_SIZES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}  # bytes of a token by its code


def _megatron(given: _Given) -> FoundRows:
    """A sample is a sequence (a document) of a .bin, as the .idx beside it has them."""

    def one(index: int, content: BinaryIO) -> FoundRows:
        data = given.links.follow(given.tree.path(index).removesuffix(b".idx") + b".bin")
        if data < 0 or content.read(9) != b"MMIDIDX\0\0":
            raise ValueError("it is no index of an IndexedDataset with a .bin beside it")
        version, code, count, _ = struct.unpack("<QBQQ", content.read(25))
        if version != 1 or code not in _MEGATRON_SIZES:
            raise ValueError(f"its version is {version}, its type {code}")
        lengths = np.frombuffer(content.read(4 * count), "<i4", count).astype(np.int64) * _MEGATRON_SIZES[code]
        begins = np.frombuffer(content.read(8 * count), "<i8", count)
        return _columns(data, begins, begins + lengths)

    files = _files(given, "idx")
    return _of_each(given, files, one)


ROWS: Final[Mapping[str, Callable[[_Given], FoundRows]]] = {
    "npy": _npy,
    "raw": _raw,
    "ranges": _ranges,
    "tar": _tar,
    "tfrecord": _tfrecord,
    "array_record": _array_record,
    "mds": _mds,
    "megatron": _megatron,
}
