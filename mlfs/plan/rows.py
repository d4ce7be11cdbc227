"""Rows: ranges of large files that a job reads as its samples, each with an id behind those of all files and blocks.

Pure. In: the ranges that a job's layout names, when the job is registered. Out: ids; where a row lies; which row a READ
tells of. A row is staged in the page cache ahead of its reader, and its blocks are kept by places.

The kernel answers reads of staged pages and tells nobody. So one page of a row stays away, its *tripwire*: the READ
that comes for it says which row is being read, and by whom. It is the first page that the row has to itself. The kernel
reads on behind what was asked for where more pages lie before a missing one than are asked for from there on
(mm/readahead.c); the tripwire of the row before sees to it that they do not, though that row is staged as well.

A row that lies in one or two pages stays away as a whole: to answer the READ for it from memory costs no more than that
for a tripwire, and nothing has to be pushed.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.served.partition import PAGE_BYTES

MOST_ROWS: Final = 1 << 24
"""The rows that all jobs of a mount may have. Memory is taken for those that there are, some 30 bytes each."""

MOST_KEPT_AWAY_BYTES: Final = 2 * PAGE_BYTES
"""A row that lies in so many pages is not pushed: whatever is larger has a page to itself behind its first one."""
REMEMBERED: Final = 8
"""So many lists of rows are known again at once: a job is registered anew when its files have changed, and a search
tries variants of it."""

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
        self._known: OrderedDict[bytes, Numbers] = OrderedDict()  # by a digest of what was added last: the ids of it
        self._file, self._offset = np.empty(0, np.int64).data, np.empty(0, np.int64).data
        self._of_file: dict[int, _Tripwires] = {}

    @staticmethod
    def behind(sizes: Numbers) -> Rows:
        column = room_behind(len(sizes))
        column[: len(sizes)] = sizes
        return Rows(len(sizes), column)

    @property
    def sizes(self) -> Numbers:
        """Bytes by id, of all that come before the rows as well."""
        return self._sizes[: self.end]

    def add(self, files: Numbers, offsets: Numbers, lengths: Numbers) -> Numbers:
        """The id of each row; -1 for one of a file that has no rows. A row that is there already keeps its id: so a
        file that grows costs ids for what it has more.

        Raises: ValueError when there are too many.
        """
        digest = hashlib.blake2b()
        for column in (files, offsets, lengths):
            digest.update(np.ascontiguousarray(column, dtype=np.int64).data)
        with self._lock:
            ids = self._known.get(digest.digest())
            if ids is None:
                counts = np.full(len(files), True) if self._files is None else np.isin(files, self._files)
                ids = np.full(len(files), -1, dtype=np.int64)
                ids[counts] = self._ids_of(files[counts], offsets[counts], lengths[counts])
                self._known[digest.digest()] = ids
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        return ids.copy()

    def _ids_of(self, files: Numbers, offsets: Numbers, lengths: Numbers) -> Numbers:
        known = self.first + np.flatnonzero(np.isin(np.asarray(self._file), files))
        both = [np.concatenate(column) for column in zip(self.columns(known), (files, offsets, lengths), strict=True)]
        order = np.lexsort(both[::-1])  # stable: of rows that are the same the one that is known comes first
        differs = np.full(len(order), False)
        differs[:1] = True
        for column in both:
            differs[1:] |= np.diff(column[order]) != 0
        same_as = np.empty(len(order), dtype=np.int64)
        same_as[order] = order[differs][np.cumsum(differs) - 1]
        given = same_as[len(known) :]
        new = np.unique(given[given >= len(known)])
        if self.end + len(new) > len(self._sizes):
            most = len(self._sizes) - self.first
            raise ValueError(f"{len(new):,} rows are too many: this mount may have {most:,} of all jobs")
        ids = np.concatenate([known, np.empty(len(files), dtype=np.int64)])
        ids[new] = np.arange(self.end, self.end + len(new), dtype=np.int64)
        at = new - len(known)
        self._add(files[at], offsets[at], lengths[at])
        found: Numbers = ids[given]
        return found

    def _add(self, files: Numbers, offsets: Numbers, lengths: Numbers) -> None:
        first, end = self.end, self.end + len(files)
        self._sizes[first:end] = lengths
        self._file = np.concatenate([np.asarray(self._file), files.astype(np.int64)]).data
        self._offset = np.concatenate([np.asarray(self._offset), offsets.astype(np.int64)]).data
        wires, order = tripwires(offsets, lengths), np.argsort(files, kind="stable")
        of_each, begins = np.unique(files[order], return_index=True)
        for file, part in zip(of_each.tolist(), np.split(order, begins[1:]), strict=False):  # of no rows a part is left
            of_file = self._of_file.get(file, NO_TRIPWIRES)
            self._of_file[file] = of_file.with_more(wires[part], first + part)
        self.end = end

    def __len__(self) -> int:
        return self.end - self.first

    def file_of(self, row: int) -> int:
        return self._file[row - self.first]

    def offset_of(self, row: int) -> int:
        """The place of a row in its file, in bytes."""
        return self._offset[row - self.first]

    def columns(self, rows: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        at = rows - self.first
        return np.asarray(self._file)[at], np.asarray(self._offset)[at], self._sizes[rows]

    def pages_of(self, row: int) -> tuple[int, int]:
        """The pages that a row lies in, as bytes from the first one and to the last one. The file may end before."""
        begin = self.offset_of(row)
        end = begin + int(self._sizes[row])
        return begin // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES

    def own_pages_of(self, row: int) -> tuple[int, int]:
        """The pages that are dropped once the row was read: not the first one if it is pushed, and another row may end
        in it."""
        begin, end = self.pages_of(row)
        shares = self.offset_of(row) > begin and end - begin > MOST_KEPT_AWAY_BYTES
        return begin + PAGE_BYTES * shares, end

    def tripwire_of(self, row: int) -> tuple[int, int]:
        """The pages of a row that stay away, as bytes from the first one and to the last one."""
        begin, end = self.pages_of(row)
        if end - begin <= MOST_KEPT_AWAY_BYTES:
            return begin, end
        own = begin + PAGE_BYTES * (self.offset_of(row) > begin)
        return own, own + PAGE_BYTES

    def tripwires_of(self, rows: Sequence[int], but_for: int | None) -> list[tuple[int, int, int]]:
        """The same of several rows: ranges of files, without the pages of a row that is being read."""
        spared = (self.file_of(but_for), *self.pages_of(but_for)) if but_for is not None else (-1, 0, 0)
        found: list[tuple[int, int, int]] = []
        for file, begin, end in sorted((self.file_of(row), *self.tripwire_of(row)) for row in rows):
            if file == spared[0] and begin < spared[2] and spared[1] < end:
                continue  # dropped with that row
            if found and found[-1][0] == file and begin <= found[-1][2]:
                found[-1] = file, found[-1][1], max(end, found[-1][2])
            else:
                found.append((file, begin, end))
        return found

    def of_file(self, file: int) -> Sequence[int]:
        return self._of_file.get(file, NO_TRIPWIRES).rows

    def read(self, file: int, offset: int, size: int) -> Sequence[int]:
        """The rows whose tripwires begin in a range: one of them is read, the kernel may have read on or around it."""
        known = self._of_file.get(file, NO_TRIPWIRES)
        return known.rows[bisect_left(known.wires, offset) : bisect_left(known.wires, offset + size)]

    def has(self, file: int) -> bool:
        return file in self._of_file


class _Tripwires:
    """The rows of a file by the places of their tripwires, which ascend."""

    __slots__ = ("rows", "wires")

    def __init__(self, wires: Numbers, rows: Numbers) -> None:
        self.wires, self.rows = wires.data, rows.data

    def with_more(self, wires: Numbers, rows: Numbers) -> _Tripwires:
        """The same, and others. Whoever looks something up has either."""
        wires, rows = np.concatenate([np.asarray(self.wires), wires]), np.concatenate([np.asarray(self.rows), rows])
        order = np.argsort(wires, kind="stable")
        return _Tripwires(wires[order], rows[order])


NO_TRIPWIRES: Final = _Tripwires(np.empty(0, np.int64), np.empty(0, np.int64))


def tripwires(offsets: Numbers, lengths: Numbers) -> Numbers:
    """The place of the first page of each row that stays away, in bytes."""
    begins, ends = offsets // PAGE_BYTES * PAGE_BYTES, -(-(offsets + lengths) // PAGE_BYTES) * PAGE_BYTES
    own = -(-offsets // PAGE_BYTES) * PAGE_BYTES
    found: Numbers = np.where(ends - begins > MOST_KEPT_AWAY_BYTES, own, begins)
    return found
