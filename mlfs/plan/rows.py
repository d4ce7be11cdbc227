"""Rows: ranges of large files that a job reads as its samples, each with an id behind those of all files and blocks.

Pure. In: the ranges that a job's layout names, when the job is registered. Out: ids; where a row lies; which row a READ
tells of. A row is staged in the page cache ahead of its reader, and its blocks are kept by places.

The kernel answers reads of staged pages and tells nobody. So one page of a row stays away, its *tripwire*: the READ
that comes for it says which row is being read, and by whom. It is the first page that the row has to itself. The kernel
reads on behind what was asked for where more pages lie before a missing one than are asked for from there on
(mm/readahead.c); the tripwire of the row before sees to it that they do not, though that row is staged as well.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mlfs.served.partition import PAGE_BYTES

MOST_ROWS: Final = 1 << 24
"""The rows that all jobs of a mount may have. Memory is taken for those that there are, some 30 bytes each."""

Numbers = npt.NDArray[np.int64]


def room_behind(count: int) -> Numbers:
    """Zeros for so many sizes, and behind them for those of rows, as memory that nobody has written to costs nothing.

    A process that may map little memory has room for no row.
    """
    try:
        return np.zeros(count + MOST_ROWS, dtype=np.int64)
    except MemoryError:
        return np.zeros(count, dtype=np.int64)


class Rows:
    """The rows of one mount. Any thread may add some and ask; what there is never changes.

    Args:
        first: the id of the first row. sizes: bytes by id, with room behind `first` for as many rows as there may be.
        files: those that have rows, ascending: files that are kept in blocks. None for all.

    Attributes:
        end: the id behind the last row.
    """

    def __init__(self, first: int, sizes: Numbers, files: Numbers | None = None) -> None:
        self.first: Final = first
        self.end = first
        self._sizes, self._files = sizes, files
        self._lock = threading.Lock()
        self._known: dict[bytes, int] = {}  # by a digest of what was added: the first id of it
        self._file, self._offset = np.empty(0, np.int64).data, np.empty(0, np.int64).data
        self._of_file: dict[int, list[_WithTripwires]] = {}  # a list for each file: what was added of it at one time

    @staticmethod
    def behind(sizes: Numbers) -> Rows:
        """Rows behind others that have these sizes."""
        column = room_behind(len(sizes))
        column[: len(sizes)] = sizes
        return Rows(len(sizes), column)

    @property
    def sizes(self) -> Numbers:
        """Bytes by id, of all that come before the rows as well."""
        return self._sizes[: self.end]

    def add(self, files: Numbers, offsets: Numbers, lengths: Numbers) -> Numbers:
        """The id of each row; -1 for one that has no page of its own, or is of a file that has no rows. The same rows
        get the same ids.

        Raises: ValueError when there are too many.
        """
        counts = tripwires(offsets, lengths) >= 0
        if self._files is not None:
            counts &= np.isin(files, self._files)
        if not counts.any():
            return np.full(len(files), -1, dtype=np.int64)
        digest = hashlib.blake2b()
        for column in (files, offsets, lengths):
            digest.update(np.ascontiguousarray(column, dtype=np.int64).data)
        with self._lock:
            known = self._known.get(digest.digest())
            first = self.end if known is None else known
            if known is None:
                if first + len(files) > len(self._sizes):
                    most = len(self._sizes) - self.first
                    raise ValueError(f"{len(files):,} rows are too many: this mount may have {most:,} of all jobs")
                self._add(files, offsets, lengths)
                self._known[digest.digest()] = first
        ids = np.arange(first, first + len(files), dtype=np.int64)
        return np.where(counts, ids, -1)

    def _add(self, files: Numbers, offsets: Numbers, lengths: Numbers) -> None:
        first, end = self.end, self.end + len(files)
        self._sizes[first:end] = lengths
        self._file = np.concatenate([np.asarray(self._file), files.astype(np.int64)]).data
        self._offset = np.concatenate([np.asarray(self._offset), offsets.astype(np.int64)]).data
        wires = tripwires(offsets, lengths)
        order = np.lexsort((wires, files))
        order = order[wires[order] >= 0]
        sorted_files = files[order]
        begins = np.flatnonzero(np.diff(sorted_files, prepend=-1))
        for begin, stop in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
            part = order[begin:stop]
            self._of_file.setdefault(int(sorted_files[begin]), []).append(_WithTripwires(wires[part], first + part))
        self.end = end

    def __len__(self) -> int:
        """How many rows there are."""
        return self.end - self.first

    def file_of(self, row: int) -> int:
        """The file that a row lies in."""
        return self._file[row - self.first]

    def offset_of(self, row: int) -> int:
        """The place of a row in its file, in bytes."""
        return self._offset[row - self.first]

    def columns(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The file of each row, its place there, and how long it is, in bytes."""
        at = rows - self.first
        return np.asarray(self._file)[at], np.asarray(self._offset)[at], self._sizes[rows]

    def pages_of(self, row: int) -> tuple[int, int]:
        """The pages that a row lies in, as bytes from the first one and to the last one. The file may end before."""
        begin = self.offset_of(row)
        end = begin + int(self._sizes[row])
        return begin // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES

    def own_pages_of(self, row: int) -> tuple[int, int]:
        """The same without the first page if another row may end in it: what is dropped once the row was read."""
        begin, end = self.pages_of(row)
        return begin + PAGE_BYTES * (self.offset_of(row) > begin), end

    def tripwire_of(self, row: int) -> tuple[int, int]:
        """The page of a row that stays away, as bytes from its first one and to its last one."""
        begin = int(tripwires(np.array([self.offset_of(row)]), self._sizes[row : row + 1])[0])
        return begin, begin + PAGE_BYTES

    def of_file(self, file: int) -> Iterator[int]:
        """The rows of a file that have a tripwire."""
        for known in self._of_file.get(file, ()):
            yield from known.rows

    def read(self, file: int, offset: int, size: int) -> Iterator[int]:
        """The rows whose tripwires lie in a range: one of them is read, the kernel may have read on or around it."""
        for known in self._of_file.get(file, ()):
            for at in range(bisect_left(known.wires, offset), bisect_left(known.wires, offset + size)):
                yield known.rows[at]

    def has(self, file: int) -> bool:
        """Whether a file has rows."""
        return file in self._of_file


class _WithTripwires:
    """The rows of a file that were added at one time: their tripwires, ascending, and their ids."""

    __slots__ = ("rows", "wires")

    def __init__(self, wires: Numbers, rows: Numbers) -> None:
        self.wires, self.rows = wires.data, rows.data


def tripwires(offsets: Numbers, lengths: npt.NDArray[Any]) -> Numbers:
    """The place of the first page that each row has to itself, in bytes; -1 for rows that have none."""
    first, end = -(-offsets // PAGE_BYTES), (offsets + lengths) // PAGE_BYTES
    found: Numbers = np.where(end > first, first * PAGE_BYTES, -1)
    return found
