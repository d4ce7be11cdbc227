"""Which files are kept in blocks, and the ids of each one's blocks.

Pure. In: the files that were large when the data set was mounted, and their sizes as they change. Out: ranges of ids.
The ids of all blocks stand behind those of all files, in the order of the files: so a file takes two numbers here,
however many blocks it has, and a block takes nothing.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

N = TypeVar("N", bound=np.generic)


class FileBlocks:
    """The blocks of large files.

    Args:
        sizes: bytes by file, then by block; the caller keeps them up to date.
        files: those that had more than `above_bytes` at first, ascending. counts: how many blocks each of them has.
        first: the first id of a block.

    Attributes:
        above_bytes: a file of more bytes is in blocks, if it was so at first. No block is larger.
        first: all ids from there on are blocks.
    """

    def __init__(
        self,
        sizes: memoryview,
        files: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        first: int,
        above_bytes: int,
        block_bytes: int,
    ) -> None:
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
        return FileBlocks(sizes, nothing, nothing, len(sizes), sys.maxsize, 0)

    def __len__(self) -> int:
        """How many files have blocks."""
        return len(self._file)

    def of(self, file: int) -> range:
        """The blocks that a file has now, in the order of their offsets; none for a file that is one sample."""
        size = self._sizes[file]
        if size <= self.above_bytes or file >= self.first:
            return range(0)
        return self.ever_of(file)[: -(-size // self.block_bytes)]

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
