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
- megatron-gpt: samples of such files (`mlfs.orders.layouts.gpt_dataset`).
- nanogpt: windows of train.bin and val.bin (`mlfs.orders.layouts.nanogpt`).
- ffcv: .beton. Source: ffcv/types.py, ffcv/reader.py (FFCV 1.0).
- hdf5, parquet, arrow: as their own libraries say (`mlfs.orders.layouts.libraries`).

A sample may be several ranges, which are read one after the other, and several samples may read one. Several files come
one after the other, by the bytes of their paths. A row in a file that is not kept in blocks keeps its index and is not
staged.
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.layouts import gpt_dataset as gpt
from mlfs.orders.layouts import nanogpt
from mlfs.orders.layouts.layout import (
    NOT_HERE,
    NOTHING,
    Endings,
    Outside,
    ReadsSource,
    SampleIds,
    Tree,
    decode,
    encode,
)
from mlfs.orders.layouts.libraries import FILES_AT_ONCE, FORMATS, MOST_RANGES, MissingLibraryError, RowRanges, ranges_of
from mlfs.orders.layouts.links import Links, Paths
from mlfs.orders.layouts.listers import LISTED
from mlfs.orders.order_file import read_lines, read_named
from mlfs.orders.stopping import stop_if_asked

if TYPE_CHECKING:
    from mlfs.job import JobSpec

Column = npt.NDArray[np.int64]
MOST_SAMPLES: Final = 1 << 24  # as many as there may be rows


class FoundRows(NamedTuple):
    """Rows of files, in the order of their indices.

    Attributes:
        of_sample: the rows that each sample is, -1 where it has no more, shape (samples, most rows of one); None where
            each row is a sample.
    """

    files: Column
    offsets: Column
    lengths: Column
    of_sample: Column | None = None

    @staticmethod
    def joined(found: Sequence[FoundRows]) -> FoundRows:
        files = np.concatenate([one.files for one in found])
        if all(one.of_sample is None for one in found):
            return FoundRows(files, *(np.concatenate([one[at] for one in found]) for at in (1, 2)))
        each = (np.arange(len(one.files))[:, None] if one.of_sample is None else one.of_sample for one in found)
        parts = [RowRanges(one.offsets, one.lengths, of_row) for one, of_row in zip(found, each, strict=True)]
        return FoundRows(files, *RowRanges.joined(parts))


class _Given(NamedTuple):
    """The job and the tree that a layout looks at. `open`: opens a file of the source, by its path."""

    spec: JobSpec
    tree: Tree
    links: Links
    open: Callable[[bytes], BinaryIO]


def find_rows(spec: JobSpec, tree: Tree, links: Links, outside: Outside | None) -> SampleIds:
    """The id of each row, or where samples have several, those of each sample; -1 for what is not staged.

    Raises: JobError.
    """

    def opened(path: bytes) -> BinaryIO:
        if not isinstance(outside, ReadsSource):
            raise JobError(f'the layout "{spec.layout}" reads files of the source', "register it at a mount", "layout")
        return outside.open(path)

    found = ROWS[spec.layout](_Given(spec, tree, links, opened))
    if not len(found.files):
        raise JobError(f'no samples: the layout "{spec.layout}" found no row', 'check "root"', "root")
    room = tree.size[found.files] - found.lengths  # not where rows end, which may be beyond all numbers
    beyond = np.flatnonzero((found.offsets < 0) | (found.lengths <= 0) | (found.offsets > room))
    if len(beyond):
        first = int(beyond[0])
        path = decode(tree.path(int(found.files[first])))
        place = f"{found.lengths[first]} bytes from {found.offsets[first]} on"
        raise JobError(
            f"row {first} is {place}, which {path!r} does not have", "was the file cut, or is it another one?", "layout"
        )
    try:
        ids = tree.rows.add(*found[:3])
    except ValueError as error:
        raise JobError(f"{error}", "mount anew, or register fewer", "layout") from None
    if not (ids >= 0).any():
        message = f"none of the {len(ids):,} rows lies in a file above 4 MiB"
        raise JobError(message, "smaller files are read whole: register them as samples", "layout")
    return ids if found.of_sample is None else _of_samples(ids, found.of_sample)


def _of_samples(ids: SampleIds, of_sample: Column) -> SampleIds:
    """The rows of each sample that are staged, one after the other; -1 for a sample of which none is."""
    rows = np.where(of_sample >= 0, ids[of_sample], NOTHING)
    is_staged = rows >= 0
    width = max(1, int(is_staged.sum(axis=1).max(initial=0)))
    order = np.argsort(~is_staged, axis=1, kind="stable")[:, :width]
    rows = np.take_along_axis(np.where(is_staged, rows, NOTHING), order, axis=1)
    rows[~is_staged.any(axis=1) & (of_sample >= 0).any(axis=1), 0] = NOT_HERE
    return rows[:, 0] if width == 1 else rows


def _files(given: _Given, ending: str | None) -> list[int]:
    """The file that is the root, or the files below it."""
    spec, tree = given.spec, given.tree
    root = given.links.follow(encode(spec.root))
    if root >= 0 and stat.S_ISREG(int(tree.mode[root])):
        return [root]
    if root < 0 or not stat.S_ISDIR(int(tree.mode[root])):
        hint = "give a file or a directory of the source, relative to where mlfs is mounted"
        raise JobError(f"there is no {spec.root!r} in the source", hint, "root")

    def below(endings: Sequence[str]) -> list[int]:
        pieces = LISTED["sorted"].find(tree, root, given.links, Endings(endings), "")
        return [entry for piece in pieces for entry in piece.tolist() if entry >= 0]

    found = below(spec.extensions or (() if ending is None else (ending,)))
    if found or spec.extensions or ending is None:
        return found
    numbered = re.compile(rb"\.%b-\d+-of-\d+" % encode(ending), re.IGNORECASE)  # as TFDS and Beam name them
    return [entry for entry in below(()) if numbered.search(tree.path(entry))]


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
        try:
            with given.open(given.tree.path(file)) as content:
                found.append(one(file, content))
        except JobError:
            raise
        except Exception as error:  # libraries that read another format than theirs fail in many ways
            raise _cannot_read(given, file, str(error)) from None
    return FoundRows.joined(found)


def _cannot_read(given: _Given, file: int, why: str) -> JobError:
    message = f"{decode(given.tree.path(file))!r} cannot be read by rows: {' '.join(why.split())}"
    hint = f'is it what the layout "{given.spec.layout}" is for?'
    return JobError(message, hint if given.spec.columns is None else f"{hint} Are the columns right?", "layout")


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
        indexed = _indexed(given, index, content)
        return _columns(indexed.data, indexed.begins, indexed.begins + indexed.lengths * indexed.token_bytes)

    return _of_each(given, _files(given, "idx"), one)


class _Indexed(NamedTuple):
    """The file of an IndexedDataset, with the tokens of each of its sequences, and where it begins."""

    data: int
    token_bytes: int
    lengths: Column
    begins: Column


def _indexed(given: _Given, index: int, content: BinaryIO) -> _Indexed:
    data = given.links.follow(given.tree.path(index).removesuffix(b".idx") + b".bin")
    if data < 0 or content.read(9) != b"MMIDIDX\0\0":
        raise ValueError("it is no index of an IndexedDataset with a .bin beside it")
    version, code, count, _ = struct.unpack("<QBQQ", content.read(25))
    if version != 1 or code not in _MEGATRON_SIZES:
        raise ValueError(f"its version is {version}, its type {code}")
    lengths = np.frombuffer(content.read(4 * count), "<i4", count).astype(np.int64)
    return _Indexed(data, _MEGATRON_SIZES[code], lengths, np.frombuffer(content.read(8 * count), "<i8", count))


def _megatron_gpt(given: _Given) -> FoundRows:
    """A sample is some tokens of a GPTDataset, in pieces of one document or of several."""
    spec, files = given.spec, _files(given, "idx")
    if len(files) != 1:
        raise JobError('the layout "megatron-gpt" is for one .idx', 'give it as "root": each has samples', "root")
    if not spec.manifest_file and spec.sequence_length is None:
        message = 'job field "sequence_length" is missing: the layout "megatron-gpt" needs it, or "manifest_file"'
        raise JobError(message, "give Megatron's --seq-length", "sequence_length")
    saved = None if spec.manifest_file is None else _saved_row(spec.manifest_file)

    def one(index: int, content: BinaryIO) -> FoundRows:
        data, token_bytes, lengths, begins = _indexed(given, index, content)
        if saved is not None:
            row = gpt.saved(saved, lengths)
        else:
            of_part = lengths[: gpt.first_part(len(lengths), spec.document_split or (1,))]
            row = gpt.computed(of_part, spec.sequence_length or 1, spec.num_samples, spec.seed)
        if len(row.sample_of) > MOST_SAMPLES:
            raise ValueError(f"{len(row.sample_of):,} samples are too many, register fewer (num_samples)")
        found: list[tuple[Column, ...]] = [(np.empty(0, np.int64),) * 3]
        sample_bytes = (int(np.diff(row.begins).max()) + 1) * token_bytes
        for columns in gpt.pieces(row, lengths, begins, token_bytes):
            stop_if_asked()  # the smallest pieces of a sample that has more than may be staged are left out
            found.append(tuple(column[columns[2] * MOST_RANGES > sample_bytes] for column in columns))
        samples, places, sizes = (np.concatenate(column) for column in zip(*found, strict=True))
        ranges = RowRanges.grouped(samples, places, sizes, row.sample_of)
        return FoundRows(np.full(len(ranges.offsets), data, np.int64), *ranges)

    return _of_each(given, files, one)


def _saved_row(path: str) -> list[npt.NDArray[Any]]:
    """The document, sample and shuffle index that Megatron has saved, by the path of the first one."""
    ending = "document_index.npy"
    if not path.endswith(ending):
        hint = f"Megatron calls it ...-{ending}; the two others lie beside it"
        raise JobError(f"{path!r} is no document index of Megatron's", hint, "manifest_file")
    try:
        names = [path.removesuffix(ending) + f"{what}_index.npy" for what in ("document", "sample", "shuffle")]
        return [np.load(io.BytesIO(read_named(name)), allow_pickle=False) for name in names]
    except (OSError, ValueError, EOFError) as error:
        message = f"the index {path!r} and those beside it cannot be read: {' '.join(str(error).split())}"
        raise JobError(message, "Megatron saves three arrays of numpy", "manifest_file") from None


def _nanogpt(given: _Given) -> FoundRows:
    """A sample is a window of train.bin or val.bin, in the order in which a process reads them; one rank's stand behind
    those of another."""
    spec, tree, paths = given.spec, given.tree, Paths(given.tree, given.links, given.spec.root)
    for field in ("sequence_length", "num_samples"):
        if getattr(spec, field) is None:
            message = f'job field "{field}" is missing: the layout "nanogpt" needs it'
            raise JobError(message, "give block_size, and the windows that a process reads to train", field)
    files = [paths.file(b"train.bin"), paths.file(b"val.bin")]
    files = files if spec.eval_interval else files[:1]
    if -1 in files:
        raise JobError("there is no train.bin, or no val.bin beside it", 'give their directory as "root"', "root")
    tokens = (tree.size[files] // nanogpt.TOKEN_BYTES).tolist()
    if min(tokens) <= (spec.sequence_length or 0):
        raise JobError("train.bin or val.bin is shorter than a window", "give block_size", "sequence_length")
    counts = [sum(count for _, count in nanogpt.reads_of(spec, rank)) for rank in range(spec.world_size)]
    if sum(counts) > MOST_SAMPLES:
        message = f"{sum(counts):,} windows are too many: at most {MOST_SAMPLES:,} are staged"
        raise JobError(message, "give fewer", "num_samples")
    of_ranks = [nanogpt.windows(spec, rank, tokens) for rank in range(spec.world_size)]
    of_sample = np.full((spec.world_size, max(counts)), -1)
    for rank, (begin, count) in enumerate(zip(np.cumsum([0, *counts]).tolist(), counts, strict=False)):
        of_sample[rank, :count] = np.arange(begin, begin + count)
    numbers, positions = (np.concatenate(column) for column in zip(*of_ranks, strict=True))
    lengths = np.full(len(positions), (1 + (spec.sequence_length or 0)) * nanogpt.TOKEN_BYTES)
    return FoundRows(np.array(files)[numbers], positions * nanogpt.TOKEN_BYTES, lengths, of_sample.reshape(-1, 1))


_BETON: Final = struct.Struct("<HHIQQ")  # version, fields, bytes of a page, samples, place of the allocations


def _ffcv(given: _Given) -> FoundRows:
    """A sample is what was allocated for it: the fields that are no numbers, which lie one behind the other mostly."""

    def one(file: int, content: BinaryIO) -> FoundRows:
        version, _, _, count, table = _BETON.unpack(content.read(_BETON.size))
        if version != 2 or count > MOST_SAMPLES or not _BETON.size <= table <= given.tree.size[file]:
            raise ValueError(f"it is no .beton of version 2 with at most {MOST_SAMPLES:,} samples")
        content.seek(table)
        sample, begins, sizes = np.frombuffer(content.read(), "<i8").reshape(-1, 3).T
        order = np.lexsort((begins, sample))
        sample, begins, sizes = sample[order], begins[order], sizes[order]
        if len(sample) and not 0 <= sample[0] <= sample[-1] < count:
            raise ValueError("it has bytes of samples that it does not have")
        goes_on = (sample[1:] == sample[:-1]) & (begins[1:] == begins[:-1] + sizes[:-1])
        first = np.flatnonzero(np.concatenate([[True] * bool(len(sample)), ~goes_on]))
        lengths = np.add.reduceat(sizes, first) if len(first) else sizes
        ranges = RowRanges.grouped(sample[first], begins[first], lengths, np.arange(count, dtype=np.int64))
        return FoundRows(np.full(len(first), file, np.int64), *ranges)

    return _of_each(given, _files(given, "beton"), one)


# -- formats that their libraries read


def _by_library(given: _Given) -> FoundRows:
    """The rows of files of a format by its own library, many files by one process."""
    spec, found = given.spec, [_together([])]
    files = _files(given, FORMATS[spec.layout].ending)
    for begin in range(0, len(files), FILES_AT_ONCE):
        batch = files[begin : begin + FILES_AT_ONCE]
        with ExitStack() as opened:
            contents: list[BinaryIO] = []
            try:
                for file in batch:
                    contents.append(opened.enter_context(given.open(given.tree.path(file))))
                ranges, why = ranges_of(contents, spec.layout, spec.columns or ())
            except OSError as error:
                raise _cannot_read(given, batch[len(contents)], str(error)) from None
            except MissingLibraryError as error:
                message = f'the layout "{spec.layout}" needs {error}, which is not installed where the mount runs'
                raise JobError(message, f"pip install 'mlfs[{error}]'", "layout") from None
        for file, (offsets, lengths, of_row) in zip(batch, ranges, strict=False):
            found.append(FoundRows(np.full(len(offsets), file, np.int64), offsets, lengths, of_row))
        if why:
            raise _cannot_read(given, batch[len(ranges)], why)
    return FoundRows.joined(found)


ROWS: Final[Mapping[str, Callable[[_Given], FoundRows]]] = {
    "npy": _npy,
    "raw": _raw,
    "ranges": _ranges,
    "tar": _tar,
    "tfrecord": _tfrecord,
    "array_record": _array_record,
    "mds": _mds,
    "megatron": _megatron,
    "megatron-gpt": _megatron_gpt,
    "nanogpt": _nanogpt,
    "ffcv": _ffcv,
    **dict.fromkeys(FORMATS, _by_library),
}
