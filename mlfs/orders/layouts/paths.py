"""Finds the entries of paths as users write them, quickly for many paths that share their directories.

In: a tree, its links, the job's root. Out: entries. Called by `mlfs.orders.layouts.manifest` and, for orders that are
written as paths, by `mlfs.orders.streams`.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from mlfs.orders.layouts.layout import Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import encode

# Directories whose children are kept in a dict; lists of paths stay in a directory for a while, or come back to few.
_DIRECTORIES_KEPT = 1 << 16


class Paths:
    """Finds what paths lead to.

    Args:
        root: the job's root, which relative paths start from.
    """

    def __init__(self, tree: Tree, links: Links, root: str) -> None:
        self._tree = tree
        self._links = links
        self._prefix = encode(root) + b"/" if root else b""
        self._children = lru_cache(maxsize=_DIRECTORIES_KEPT)(self._children_at)

    def plain(self, path: bytes) -> int:
        """The entry at a relative path without links and ".." in it, else -1. The quick way, right for most paths."""
        if path.startswith(b"/"):
            return -1
        directory, _, name = (self._prefix + path).rpartition(b"/")
        entries = self._children(directory)
        at = bisect_left(entries, name, key=self._tree.name)
        return entries[at] if at < len(entries) and self._tree.name(entries[at]) == name else -1

    def followed(self, path: bytes) -> int:
        """The entry that the kernel would come to, negative when there is none in the tree."""
        return self._links.follow(path if path.startswith(b"/") else self._prefix + path)

    def file(self, path: bytes) -> int:
        """The regular file at a path, with links followed; -1 when it leads to something else or nowhere."""
        entry = self.plain(path)
        if not self._is_file(entry):
            entry = self.followed(path)
        return entry if self._is_file(entry) else -1

    def _is_file(self, entry: int) -> bool:
        return entry >= 0 and stat.S_ISREG(int(self._tree.mode[entry]))

    def _children_at(self, directory: bytes) -> Sequence[int]:
        entry = self._tree.find(directory)
        return self._tree.children(entry) if entry >= 0 else range(0)
