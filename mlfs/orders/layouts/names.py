"""File names as Python code sees them: decoded, sorted by code point, compared without case.

In: names as bytes. Out: strings, orders, matches. Called by the layouts. Training scripts list directories with str
paths, so what counts is os.fsdecode with UTF-8: bytes that are no UTF-8 become surrogates (PEP 383), and those sort
below U+E000, not where the bytes would.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mlfs.orders.layouts.layout import Tree


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
        endings: without the dot, such as "jpg".
    """

    def __init__(self, endings: Iterable[str]) -> None:
        self._text = tuple("." + ending.lower() for ending in endings)
        self._bytes = tuple(encode(ending) for ending in self._text)

    def match(self, names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Which names have one of the endings, shape (len(names),)."""
        # Lower-casing bytes is the same as lower-casing text for ASCII names, and much faster.
        endings = self._bytes
        found = (
            name.lower().endswith(endings) if name.isascii() else decode(name).lower().endswith(self._text)
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
