"""The source tree as a layout sees it, the sample list that it gives back, and file names as Python code sees them.

In: a tree (`mlfs.tree.manifest.Manifest` is one). Out: sample ids, the entry of each dataset index. Used by the
layouts.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, Final, Protocol, runtime_checkable

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
# any order. `mlfs.tree.source_files` makes one.
Outside = Callable[[bytes], list[bytes] | None]


@runtime_checkable
class ReadsSource(Protocol):
    """A hook that reads files of the source as well, for layouts that say which parts of a file are samples."""

    def open(self, path: bytes) -> BinaryIO:
        """A file of the source, by its path relative to it. Raises: OSError."""


class RowNumbers(Protocol):
    """Numbers the rows of large files, which stand behind all entries."""

    def add(self, files: SampleIds, offsets: SampleIds, lengths: SampleIds) -> SampleIds:
        """The id of each row, -1 for one that is not staged. Raises: ValueError when there are too many."""

    def columns(self, rows: SampleIds) -> tuple[SampleIds, SampleIds, SampleIds]:
        """The file of each row, its place there, and how long it is, in bytes."""


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

    @property
    def rows(self) -> RowNumbers:
        """The ranges of files that jobs have named."""

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


# -- file names
#
# Training scripts list directories with str paths, so what counts is os.fsdecode with UTF-8: bytes that are no UTF-8
# become surrogates (PEP 383), and those sort below U+E000, not where the bytes would.


def decode(name: bytes) -> str:
    """The name as a Python program sees it."""
    return name.decode("utf-8", "surrogateescape")


def encode(name: str) -> bytes:
    """The bytes of a name that `decode` gave."""
    return name.encode("utf-8", "surrogateescape")


def code_point_order(names: Sequence[bytes]) -> npt.NDArray[np.int64] | None:
    """The positions that sorting by code point gives to names that are sorted by bytes; None when it changes
    nothing."""
    if all(map(bytes.isascii, names)):
        return None
    decoded = [decode(name) for name in names]
    return np.array(sorted(range(len(names)), key=decoded.__getitem__), dtype=np.int64)


class Endings:
    """The file name endings of a data set, matched as torchvision does: name.lower().endswith(endings).

    Args:
        endings: without the dot, such as "jpg"; none: a name may end in any way.

    Attributes:
        text: the endings in lower case, with the dot; none where any will do.
    """

    def __init__(self, endings: Iterable[str]) -> None:
        self.text = tuple("." + ending.lower() for ending in endings)
        self._bytes = tuple(encode(ending) for ending in self.text)

    def match(self, names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Which names have one of the endings, shape (len(names),)."""
        if not self.text:
            return np.ones(len(names), dtype=np.bool_)
        # Lower-casing bytes is the same as lower-casing text for ASCII names, and much faster.
        endings = self._bytes
        found = (
            name.lower().endswith(endings) if name.isascii() else decode(name).lower().endswith(self.text)
            for name in names
        )
        return np.fromiter(found, dtype=np.bool_, count=len(names))


def ids_of(entries: Sequence[int]) -> npt.NDArray[np.int64]:
    """Entries as an array: those of a directory are a range, unless the tree was refreshed."""
    if isinstance(entries, range):
        return np.arange(entries.start, entries.stop, dtype=np.int64)
    return np.array(entries, dtype=np.int64)


def entry_types(tree: Tree, entries: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The file types (stat.S_IFREG, ...) of some entries, shape (len(entries),)."""
    modes = tree.mode[entries.start : entries.stop] if isinstance(entries, range) else tree.mode[ids_of(entries)]
    return modes & np.uint32(stat.S_IFMT(0xFFFFFFFF))
