"""The files that were found to have another number of bytes than their size says.

In: what reads of the source have found (`mlfs.places.posix`). Out: which files have to be read as the source gives
them, past all caches, since the kernel would cut or pad them to their size, and the number of bytes that the kernel is
told for their size, by which mmap(2) and sendfile(2) go. A manifest has one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Unsized:
    """How many files were found whose size is not the number of their bytes, and the first of them, -1 for none."""

    count: int = 0
    first: int = -1


class UnsizedFiles:
    """The files whose size is not the number of their bytes. Any thread may call it.

    Attributes:
        files: by entry the bytes that it has, None where nobody has counted them. Only to be read.
    """

    def __init__(self) -> None:
        self.files: dict[int, int | None] = {}

    def note(self, entry: int, counted_bytes: int | None = None) -> bool:
        """Its size is not the number of its bytes, which may have been counted. Whether that is new."""
        new = entry not in self.files
        self.files[entry] = self.files.get(entry) if counted_bytes is None else counted_bytes
        return new

    def counted(self, entry: int) -> int | None:
        """The bytes that a file has whose size is wrong; None where the size is right, or nobody has counted them."""
        return self.files.get(entry)

    def shown(self, entries: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sizes that the kernel is told of these entries: where their bytes were counted, that number."""
        if not self.files:
            return sizes
        counted = map(self.files.get, entries.tolist())
        pairs = zip(counted, sizes.tolist(), strict=True)
        return np.array([size if count is None else count for count, size in pairs], dtype=np.int64)

    def forget(self, entry: int) -> None:
        """Its size is right again."""
        self.files.pop(entry, None)

    def statistics(self) -> Unsized:
        files = tuple(self.files)
        return Unsized(len(files), files[0] if files else -1)
