"""Formats whose own libraries say where their rows lie: HDF5, Parquet and Arrow.

In: open files of the source, the format's name, the columns that are read. Out: ranges of each file, and which of them
each row is. Called by `mlfs.orders.layouts.rows`.

A library reads the files in a process of its own: a damaged file may crash it, and what it takes of memory is free when
it ends. Nothing but a file's index is read, and that once, when a job is registered. The libraries come with extras of
pyproject.toml.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.stopping import StoppedError, stop_if_asked

Column = npt.NDArray[np.int64]
FILES_AT_ONCE: Final = 64
"""Files that one process reads: it takes half a second to begin."""
LEAST_BYTES: Final = 512
"""Bytes of a row in one of several columns that are fewer (a label, a path) come with the page that they lie in."""
MOST_RANGES: Final = 64
"""Ranges of one sample: all samples have as many places as the one with most."""
_ASK_EVERY_S: Final = 0.2
_REFUSED: Final = 3  # the exit codes of the process
_MISSING: Final = 4


class RowRanges(NamedTuple):
    """Ranges of a file, and the numbers of those that each row is, -1 where it has no more, shape (rows, most)."""

    offsets: Column
    lengths: Column
    of_row: Column

    @staticmethod
    def joined(parts: Sequence[RowRanges]) -> RowRanges:
        """The rows of several, one part after the other."""
        return RowRanges(*_concatenated(parts), np.concatenate(_renumbered(parts, widened=True)))

    @staticmethod
    def side_by_side(parts: Sequence[RowRanges]) -> RowRanges:
        """Rows each of which is a row of every part, one part after the other."""
        return RowRanges(*_concatenated(parts), np.concatenate(_renumbered(parts, widened=False), axis=1))

    @staticmethod
    def grouped(group: Column, offsets: Column, lengths: Column, group_of_row: Column) -> RowRanges:
        """Rows each of which is all ranges of a group.

        Args:
            group: of each range, ascending.

        Raises: ValueError, a group has too many ranges.
        """
        numbers = np.arange(int(group_of_row.max(initial=-1)) + 1)
        begins, ends = np.searchsorted(group, numbers), np.searchsorted(group, numbers, side="right")
        width = max(1, int((ends - begins).max(initial=0)))
        if width > MOST_RANGES:
            raise ValueError(f"a row lies in {width} pieces, at most {MOST_RANGES} are staged")
        of_group = begins[:, None] + np.arange(width)
        of_group[of_group >= ends[:, None]] = -1
        return RowRanges(offsets, lengths, of_group[group_of_row])


def _concatenated(parts: Sequence[RowRanges]) -> tuple[Column, Column]:
    return np.concatenate([part.offsets for part in parts]), np.concatenate([part.lengths for part in parts])


def _renumbered(parts: Sequence[RowRanges], widened: bool) -> list[Column]:
    """`of_row` of each part, whose ranges stand behind those of the parts before. Args: widened: to one width."""
    width = max(part.of_row.shape[1] for part in parts) if widened else 0
    found, begin = list[Column](), 0
    for part in parts:
        of_row = np.where(part.of_row >= 0, part.of_row + begin, -1)
        lacking = max(0, width - of_row.shape[1])
        found.append(np.pad(of_row, ((0, 0), (0, lacking)), constant_values=-1))
        begin += len(part.offsets)
    return found


class MissingLibraryError(Exception):
    """A library is not installed; the argument is its name, and that of the extra which brings it."""


def ranges_of(contents: Sequence[BinaryIO], format_name: str, columns: Sequence[str]) -> tuple[list[RowRanges], str]:
    """The ranges of the rows of each file up to the first one that cannot be read, and why that one cannot.

    Raises: MissingLibraryError; StoppedError.
    """
    numbers = [content.fileno() for content in contents]
    # As a file, and without what lies beside it: this package imports what takes half of such a process' time.
    command = [sys.executable, "-P", __file__, format_name, ",".join(map(str, numbers)), *columns]
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=numbers, **streams) as process:
        said = b""
        while True:
            try:
                stop_if_asked()
                written, said = process.communicate(timeout=_ASK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                continue
            except StoppedError:
                process.kill()
                raise
    library = FORMATS[format_name].library
    if process.returncode == _MISSING:
        raise MissingLibraryError(library)
    arrays, found = io.BytesIO(written), list[RowRanges]()
    while len(found) < len(contents) and arrays.tell() < len(written):
        try:
            found.append(RowRanges(*(np.load(arrays, allow_pickle=False) for _ in RowRanges._fields)))
        except (ValueError, EOFError):  # it ended while it wrote
            break
    if not process.returncode:
        return found, ""
    if process.returncode < 0:
        return found, f"{library} crashed (signal {-process.returncode})"
    return found, said.decode("utf-8", "replace").strip().rpartition("\n")[2]


# -- in the process: rows of a file


def _hdf5(h5py: Any, path: str, columns: Sequence[str]) -> RowRanges:
    """The rows along the first axis of data sets: of a chunked one the chunks that a row lies in."""
    with h5py.File(path, "r", locking=False) as file:
        sets = [_data_set(h5py, file, name) for name in columns or [_largest(h5py, file)]]
        if len({len(one) for one in sets}) > 1:
            raise ValueError(f"{' and '.join(columns)} are not of one length")
        parts = [_of_data_set(one) for one in sets]
        return RowRanges.side_by_side([one for one in parts if one.lengths.max(initial=0) >= LEAST_BYTES] or parts)


def _data_set(h5py: Any, file: Any, name: str) -> Any:
    found = file.get(name)
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise ValueError(f"it has no data set {name!r} with rows")
    return found


def _largest(h5py: Any, file: Any) -> str:
    """The data set with most bytes."""
    found: list[tuple[int, str]] = []

    def visit(name: str, one: Any) -> None:
        if isinstance(one, h5py.Dataset) and one.shape:
            found.append((one.nbytes, name))

    file.visititems(visit)
    if not found:
        raise ValueError("it has no data set")
    return max(found)[1]


def _of_data_set(data_set: Any) -> RowRanges:
    shape, name = data_set.shape, data_set.name
    if data_set.dtype.hasobject:
        raise ValueError(f"the rows of {name!r} have no fixed length, and HDF5 keeps their bytes elsewhere")
    if data_set.external or data_set.is_virtual:
        raise ValueError(f"the bytes of {name!r} lie in other files")
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * data_set.dtype.itemsize
    if data_set.chunks is None:
        begin = data_set.id.get_offset()
        if begin is None:
            raise ValueError(f"{name!r} has no bytes of its own in the file")
        rows = np.arange(shape[0], dtype=np.int64)
        return RowRanges(begin + row_bytes * rows, np.full(shape[0], row_bytes), rows[:, None])
    return _of_chunks(data_set)


def _of_chunks(data_set: Any) -> RowRanges:
    """A row of chunks along the first axis is read by all rows that lie in it."""
    found: list[tuple[int, int, int]] = []
    rows_of_chunk = data_set.chunks[0]
    data_set.id.chunk_iter(
        lambda chunk: found.append((chunk.chunk_offset[0] // rows_of_chunk, chunk.byte_offset, chunk.size))
    )
    chunks = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    return RowRanges.grouped(
        chunks[:, 0], chunks[:, 1], chunks[:, 2], np.arange(len(data_set), dtype=np.int64) // rows_of_chunk
    )


_FILE_MAGIC: Final = b"ARROW1"  # of an IPC file; a stream begins with its schema


def _parquet(pyarrow: Any, path: str, columns: Sequence[str]) -> RowRanges:
    """The row groups: all columns, or the chunks of some."""
    metadata = import_module("pyarrow.parquet").read_metadata(path)
    for name in columns:
        if name not in metadata.schema.to_arrow_schema().names:
            raise ValueError(f"it has no column {name!r}")
    found: list[tuple[int, int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        spans = sorted(
            (min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset),
             chunk.total_compressed_size)
            for chunk in chunks
            if not columns or chunk.path_in_schema.partition(".")[0] in columns
        )  # fmt: skip
        for begin, size in spans:
            if found and found[-1][0] == number and sum(found[-1][1:]) == begin:  # they lie one behind the other
                found[-1] = number, found[-1][1], found[-1][2] + size
            else:
                found.append((number, begin, size))
    group_of, begins, sizes = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return RowRanges.grouped(group_of, begins, sizes, np.arange(metadata.num_row_groups))


def _arrow_batches(pyarrow: Any, path: str, columns: Sequence[str]) -> RowRanges:
    """The record batches of an IPC file or stream, of which both consist of the same messages."""
    content = _mapped(pyarrow, path)
    found: list[tuple[int, int]] = []
    for message in pyarrow.ipc.MessageReader.open_stream(content.slice(8) if _is_file(content) else content):
        if message.type == "record batch":
            begin = message.metadata.address - content.address
            found.append((begin, message.body.address + message.body.size - content.address - begin))
    offsets, lengths = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return RowRanges(offsets, lengths, np.arange(len(found))[:, None])


def _arrow(pyarrow: Any, path: str, columns: Sequence[str]) -> RowRanges:
    """The rows of all record batches: the bytes of each row in each column, as a reader of a mapped file gets them."""
    content = _mapped(pyarrow, path)
    opened = pyarrow.ipc.open_file(content) if _is_file(content) else pyarrow.ipc.open_stream(content)
    batches = (opened.get_batch(at) for at in range(opened.num_record_batches)) if _is_file(content) else opened
    for name in columns:
        if name not in opened.schema.names:
            raise ValueError(f"it has no column {name!r}")
    parts = [_row_by_row(np.empty(0, np.int64), np.empty(0, np.int64))]
    for batch in batches:
        rows = np.arange(batch.num_rows, dtype=np.int64)
        pieces = [_row_by_row(rows, rows)]
        for name in columns or batch.schema.names:
            for begins, ends in _leaves(pyarrow, batch.column(name), rows, rows + 1):
                if len(begins) and not content.address <= begins[0] <= content.address + content.size:
                    raise ValueError("it is compressed, so that its batches are read whole (layout arrow-batches)")
                pieces.append(_row_by_row(begins - content.address, ends - content.address))
        parts.append(RowRanges.side_by_side(pieces))
    return RowRanges.joined(parts)


def _mapped(pyarrow: Any, path: str) -> Any:
    return pyarrow.memory_map(path).read_buffer()


def _is_file(content: Any) -> bool:
    return bytes(content.slice(0, len(_FILE_MAGIC))) == _FILE_MAGIC


def _row_by_row(begins: Column, ends: Column) -> RowRanges:
    """A range for each row, if it is not too short."""
    staged = ends - begins >= LEAST_BYTES
    return RowRanges(begins[staged], (ends - begins)[staged], np.where(staged, np.cumsum(staged) - 1, -1)[:, None])


def _leaves(pyarrow: Any, array: Any, first: Column, end: Column) -> Iterator[tuple[Column, Column]]:
    """The place in memory of each row's elements, those from `first` to `end`, in each leaf of a column."""
    kind, types = array.type, pyarrow.types
    if isinstance(array, pyarrow.ExtensionArray):
        yield from _leaves(pyarrow, array.storage, first, end)
        return
    buffers = array.buffers()
    if types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _leaves(pyarrow, array.field(at), first, end)
    elif types.is_fixed_size_list(kind):
        yield from _leaves(pyarrow, array.values, first * kind.list_size, end * kind.list_size)
    elif len(buffers) < 2 or buffers[1] is None:
        return
    elif types.is_list(kind) or types.is_map(kind) or types.is_large_list(kind):
        offsets = np.frombuffer(buffers[1], "<i8" if types.is_large_list(kind) else "<i4").astype(np.int64)
        inner = array.items if types.is_map(kind) else array.values
        yield from _leaves(pyarrow, inner, offsets[first], offsets[end])
    elif types.is_binary(kind) or types.is_string(kind) or types.is_large_binary(kind) or types.is_large_string(kind):
        large = types.is_large_binary(kind) or types.is_large_string(kind)
        if buffers[2] is not None:
            offsets = np.frombuffer(buffers[1], "<i8" if large else "<i4").astype(np.int64)
            yield buffers[2].address + offsets[first], buffers[2].address + offsets[end]
    elif types.is_primitive(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        yield buffers[1].address + first * kind.bit_width // 8, buffers[1].address + end * kind.bit_width // 8


class _Format(NamedTuple):
    """A format.

    Attributes:
        library: reads it, and is an extra of its name. ending: of its files. read: gives the rows of a file.
    """

    library: str
    ending: str | None
    read: Callable[[Any, str, Sequence[str]], RowRanges]


FORMATS: Final[Mapping[str, _Format]] = {
    "hdf5": _Format("h5py", None, _hdf5),
    "parquet": _Format("pyarrow", "parquet", _parquet),
    "arrow": _Format("pyarrow", "arrow", _arrow),
    "arrow-batches": _Format("pyarrow", "arrow", _arrow_batches),
}


def main() -> int:
    """Say where the rows of files lie, in a process of its own: arrays on stdout, or one line on stderr."""
    format_name, numbers, *columns = sys.argv[1:]
    library, _, read = FORMATS[format_name]
    try:
        module = import_module(library)
    except ImportError:
        return _MISSING
    for number in numbers.split(","):
        try:
            found = read(module, f"/proc/self/fd/{number}", columns)
        except Exception as error:  # a library fails in many ways where a file is another one than it takes it for
            print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
            return _REFUSED
        written = io.BytesIO()  # numpy cannot write to a pipe
        for column in found:
            np.save(written, np.ascontiguousarray(column, dtype=np.int64), allow_pickle=False)
        sys.stdout.buffer.write(written.getbuffer())
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
