"""Which files are kept in blocks, and the ids of each one's blocks.

Pure. In: the files that were large when the data set was mounted, those that come and grow later, and their sizes as
they change; the rows of jobs. Out: ranges of ids. The ids of all blocks stand behind those of all files, in the order
of the files: so a file takes two numbers here, however many blocks it has, and a block takes nothing. A file that comes
later, or outgrows its ids, gets others behind those. They are this node's own: other nodes may see files grow in
another order. Behind them come the ids of rows.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from mlfs.plan.rows import Rows

N = TypeVar("N", bound=np.generic)


class FileBlocks:
    """The blocks of large files. Ids are given on the loop, and looked up from all threads.

    Args:
        sizes: bytes by file, then by block, with room for blocks that come; the caller keeps them up to date.
        files: those that had more than `above_bytes` at first, ascending. counts: how many ids each of them has.
        first: the first id of a block.
        rows: ranges that jobs read; their sizes stand in `sizes` as well.

    Attributes:
        above_bytes: a file of more bytes is in blocks, once it has ids for them. No block is larger.
        first: all ids from there on are blocks, and from `rows.first` on rows.
        sizes: as given.
        own_from: ids from there on are of files that came or grew; no other node knows them.
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
        self.sizes = sizes
        self._files = files
        firsts = np.concatenate([[first], first + np.cumsum(counts)]).astype(np.int64)
        # Invariant: the blocks of the file `_file[n]` have the ids from `_first[n]` to `_first[n + 1] - 1`, unless it
        # has later ones.
        self._file, self._first = files.data, firsts.data
        self.own_from: Final = int(firsts[-1])
        self._next = self.own_from
        self._later: dict[int, range] = {}
        # Invariant: the ids from `_later_first[n]` on are of `_later_file[n]`, up to those of the next one.
        self._later_file: list[int] = []
        self._later_first: list[int] = []

    @staticmethod
    def none(sizes: memoryview) -> FileBlocks:
        nothing = np.empty(0, np.int64)
        rows = Rows(len(sizes), np.empty(0, np.int64))
        return FileBlocks(sizes, nothing, nothing, len(sizes), sys.maxsize, 0, rows)

    def number(self, file: int, count: int) -> bool:
        """Give a file that came, or outgrew its ids, so many others; False where they are not left. Nobody uses those
        that it had any more: the caller gives them no bytes."""
        if self._next + count > self.rows.first:
            return False
        self._later_file.append(file)  # before the id by which others find it
        self._later_first.append(self._next)
        self._later[file] = range(self._next, self._next + count)
        self._next += count
        return True

    def __len__(self) -> int:
        """How many files have, or had, blocks."""
        return len(self._file) + len(self._later)

    def of(self, sample: int) -> range:
        """The blocks that a file has now, in the order of their offsets, or those that a row lies in; none for a file
        that is one sample, for a block, and for a row whose file has become too short for it."""
        size = self.sizes[sample]
        if sample >= self.first:
            return self._of_row(sample, size) if sample >= self.rows.first else range(0)
        if size <= self.above_bytes:
            return range(0)
        return self.ever_of(sample)[: -(-size // self.block_bytes)]

    def _of_row(self, row: int, size: int) -> range:
        begin, file = self.rows.offset_of(row), self.rows.file_of(row)
        if begin + size > self.sizes[file]:
            return range(0)
        return self.of(file)[begin // self.block_bytes : -(-(begin + size) // self.block_bytes)]

    def of_rows(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first block of each row, and the last one."""
        files, offsets, lengths = self.rows.columns(rows)
        unique, at = np.unique(files, return_inverse=True)
        firsts = np.array([self.ever_of(file).start for file in unique.tolist()], np.int64)[at]
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
        if file in self._later:
            return self._later[file]
        at = bisect_left(self._file, file)
        if at == len(self._file) or self._file[at] != file:
            return range(0)
        return range(self._first[at], self._first[at + 1])

    def ever(self, files: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """By file, whether it has, or had, blocks."""
        if not len(self):
            return np.zeros(len(files), np.bool_)
        return np.fromiter((bool(self.ever_of(file)) for file in files.tolist()), np.bool_, len(files))

    def file_of(self, block: int) -> int:
        if block >= self.own_from:
            return self._later_file[bisect_right(self._later_first, block) - 1]
        return self._file[bisect_right(self._first, block) - 1]

    def offset_of(self, block: int) -> int:
        firsts = self._first if block < self.own_from else self._later_first
        return (block - firsts[bisect_right(firsts, block) - 1]) * self.block_bytes

    def files_now(self) -> npt.NDArray[np.int64]:
        """The files that are in blocks now."""
        files = np.union1d(self._files, np.array(list(self._later), np.int64)) if self._later else self._files
        return files[np.asarray(self.sizes)[files] > self.above_bytes]

    def of_files(self, by_file: npt.NDArray[N], unused: int = 0) -> npt.NDArray[N]:
        """The same column by block: each block has what its file has. Args: unused: for ids that no file has."""
        said: npt.NDArray[Any] = np.full(self.rows.first - self.first, unused, by_file.dtype)
        said[: self.own_from - self.first] = np.repeat(by_file[self._files], np.diff(np.asarray(self._first)))
        for file, blocks in self._later.items():
            said[blocks.start - self.first : blocks.stop - self.first] = by_file[file]
        return said

    def shared_sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of what nodes deal out among each other: of files that are not in blocks, and of blocks that all of
        them know by the same ids."""
        sizes = np.array(self.sizes[: self.rows.first])
        sizes[self.files_now()] = 0
        sizes[self.own_from :] = 0
        return sizes

    def numbering(self) -> tuple[memoryview, memoryview]:
        """The files and the first ids of their blocks: two nodes with the same ones call each block by the same id that
        is not this node's own."""
        return self._file, self._first
