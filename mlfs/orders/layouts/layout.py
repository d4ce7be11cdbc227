"""The source tree as a layout sees it, and the sample list that it gives back.

In: a tree (`mlfs.tree.manifest.Manifest` is one). Out: sample ids, the entry of each dataset index. Used by the
layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

ROOT: Final = 0

# The id of a sample that has a dataset index but is no file of the tree: behind a link that leaves it, behind a broken
# link, or a pipe that happens to be called .jpg. It keeps the indices right; there is nothing to prefetch.
NOT_HERE: Final = -1

# A place of a stream at which nothing is read: a rank has fewer samples than others, or a sample fewer files.
NOTHING: Final = -2

SampleIds = npt.NDArray[np.int64]

# Asked about a link that leaves the tree, by its path relative to the source. Answers None when nothing is there, [b""]
# when it is a file, else the paths of all files behind it as os.walk(followlinks=True) finds them, relative to it, in
# any order. `mlfs.orders.layouts.outside` makes one.
Outside = Callable[[bytes], list[bytes] | None]


class Tree(Protocol):
    """The frozen source tree. Entries are numbers from 0; the root is `ROOT`.

    A mount's is the manifest of `mlfs/tree`, which orders do not know: they need no more of it than this.
    """

    @property
    def mode(self) -> npt.NDArray[np.uint32]:
        """st_mode (of lstat: links are links) by entry, shape (number of entries,)."""

    @property
    def size(self) -> npt.NDArray[np.int64]:
        """Bytes by entry; they count for regular files only."""

    def children(self, entry: int) -> Sequence[int]:
        """The entries of a directory, sorted by the bytes of their names; empty for anything else."""

    def name(self, entry: int) -> bytes:
        """The entry's own name, b"" for the root."""

    def path(self, entry: int) -> bytes:
        """The path relative to the root, b"" for the root."""

    def find(self, path: bytes) -> int:
        """The entry at a path relative to the root, -1 when absent. Links are not followed."""

    def target(self, entry: int) -> bytes:
        """The text of a symbolic link."""
