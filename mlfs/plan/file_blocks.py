"""Which files are kept in blocks, and the ids of each one's blocks.

Pure. In: the files that were large when the data set was mounted, and their sizes as they change; the rows of jobs.
Out: ranges of ids. The ids of all blocks stand behind those of all files, in the order of the files: so a file takes
two numbers here, however many blocks it has, and a block takes nothing. Behind them come the ids of rows.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mlfs.plan.rows import Rows

N = TypeVar("N", bound=np.generic)


class FileBlocks:
    """The blocks of large files.

    Args:
        sizes: bytes by file, then by block; the caller keeps them up to date.
        files: those that had more than `above_bytes` at first, ascending. counts: how many blocks each of them has.
        first: the first id of a block.
        rows: ranges that jobs read; their sizes stand in `sizes` as well.

    Attributes:
        above_bytes: a file of more bytes is in blocks, if it was so at first. No block is larger.
        first: all ids from there on are blocks, and from `rows.first` on rows.
    """

    def __init__(
        self,
        sizes: memoryview,
        files: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        first: int,
        above_bytes: int,
        block_bytes: int,
        rows: Rows,
    ) -> None:
        self.rows = rows
        self.above_bytes, self.block_bytes, self.first = above_bytes, block_bytes, first
        self._sizes = sizes
        self._files = files
        firsts = np.concatenate([[first], first + np.cumsum(counts)]).astype(np.int64)
        # Invariant: the blocks of the file `_file[n]` have the ids from `_first[n]` to `_first[n + 1] - 1`.
        self._file, self._first = files.data, firsts.data

    @staticmethod
    def none(sizes: memoryview) -> FileBlocks:
        """No file is in blocks."""
        nothing = np.empty(0, np.int64)
        rows = Rows(len(sizes), np.empty(0, np.int64))
        return FileBlocks(sizes, nothing, nothing, len(sizes), sys.maxsize, 0, rows)

    def __len__(self) -> int:
        """How many files have blocks."""
        return len(self._file)

    def of(self, sample: int) -> range:
        """The blocks that a file has now, in the order of their offsets, or those that a row lies in; none for a file
        that is one sample, and for a block."""
        size = self._sizes[sample]
        if sample >= self.first:
            return self._of_row(sample, size) if sample >= self.rows.first else range(0)
        if size <= self.above_bytes:
            return range(0)
        return self.ever_of(sample)[: -(-size // self.block_bytes)]

    def _of_row(self, row: int, size: int) -> range:
        begin = self.rows.offset_of(row)
        return self.of(self.rows.file_of(row))[begin // self.block_bytes : -(-(begin + size) // self.block_bytes)]

    def of_rows(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first block of each row, and the last one."""
        files, offsets, lengths = self.rows.columns(rows)
        firsts = np.asarray(self._first)[np.searchsorted(self._files, files)]
        return firsts + offsets // self.block_bytes, firsts + (offsets + lengths - 1) // self.block_bytes

    def keeping(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The same samples, with the block that a row begins in in the place of the row: what places keep."""
        are_rows = samples >= self.rows.first
        if not are_rows.any():
            return samples
        kept = samples.copy()
        kept[are_rows] = self.of_rows(samples[are_rows])[0]
        return kept

    def marked_by(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """By block, whether one of these rows lies in it."""
        begin, end = self.of_rows(rows)
        edges = np.zeros(self.rows.first - self.first + 1, dtype=np.int64)
        np.add.at(edges, begin - self.first, 1)
        np.add.at(edges, end + 1 - self.first, -1)
        marked: npt.NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
        return marked

    def members(self, member: bytearray) -> bytearray:
        """By file and block whether a job reads it, of which the same is said by file and row."""
        rows = self.rows.first + np.flatnonzero(np.frombuffer(bytes(member[self.rows.first :]), dtype=np.uint8))
        if not len(rows):
            return member
        by_block = self.marked_by(rows).astype(np.uint8)
        return member[: self.first] + bytes(by_block)

    def ever_of(self, file: int) -> range:
        """The ids that a file's blocks have, however short the file may be now."""
        at = bisect_left(self._file, file)
        if at == len(self._file) or self._file[at] != file:
            return range(0)
        return range(self._first[at], self._first[at + 1])

    def file_of(self, block: int) -> int:
        """The file of a block."""
        return self._file[bisect_right(self._first, block) - 1]

    def offset_of(self, block: int) -> int:
        """The place of a block in its file."""
        return (block - self._first[bisect_right(self._first, block) - 1]) * self.block_bytes

    def files_now(self) -> npt.NDArray[np.int64]:
        """The files that are in blocks now."""
        return self._files[np.asarray(self._sizes)[self._files] > self.above_bytes]

    def of_files(self, by_file: npt.NDArray[N]) -> npt.NDArray[N]:
        """The same column by block: each block has what its file has."""
        said: npt.NDArray[Any] = np.repeat(by_file[self._files], np.diff(np.asarray(self._first)))
        return said

    def numbering(self) -> tuple[memoryview, memoryview]:
        """The files and the first ids of their blocks: two nodes with the same ones call each block by the same id."""
        return self._file, self._first
