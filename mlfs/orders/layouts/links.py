"""Follows paths and symbolic links within the tree, as the kernel would follow them in the source.

In: a tree, the source's own path, a hook for what lies outside. Out: where a path leads. Called by the layouts and by
`mlfs.orders.streams`. No I/O: all that is known is the manifest's, and the hook's.
"""

from __future__ import annotations

import stat
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.layouts.layout import NOT_HERE, Endings, Outside, SampleIds, Tree, decode, encode, entry_types, ids_of

MISSING: Final = -1
LEAVES: Final = -2

# The kernel's MAXSYMLINKS: one more is ELOOP, which os.walk takes for "not a directory".
_MAX_LINKS = 40


class LinkTarget(NamedTuple):
    """The file or directory behind an entry.

    Attributes:
        is_directory: whether os.path.isdir would say so.
        exists: False for a broken link.
        entry: the file or directory in the tree, `NOT_HERE` for what has none.
        files: for a directory outside of the tree, its files (see `Outside`).
    """

    is_directory: bool
    exists: bool
    entry: int
    files: tuple[bytes, ...] = ()


class Links:
    """Resolves paths and links of one tree.

    Args:
        tree: the source tree.
        source: the absolute path of the source as links may name it; without it absolute links all leave the tree.
        outside: says what is behind links that leave the tree; without it such a link is a JobError.
    """

    def __init__(self, tree: Tree, source: bytes | None = None, outside: Outside | None = None) -> None:
        self._tree = tree
        # The path to the root of the tree, name by name: of a source that nobody knows there is one that no path has.
        self._source = [b"/"] if source is None else [part for part in source.split(b"/") if part not in (b"", b".")]
        self._outside = outside

    def follow(self, path: bytes) -> int:
        """The entry that a path leads to with all links followed, or `MISSING`, or `LEAVES`.

        Args:
            path: relative to the tree's root, or absolute.
        """
        at = [] if path.startswith(b"/") else self._source  # the names that lead to where the path has come to
        todo, links, entry = path.split(b"/")[::-1], 0, self._entry(at)
        while todo:
            part = todo.pop()
            if entry >= 0 and not self._is(entry, stat.S_IFDIR):
                return MISSING
            if part in (b"", b"."):
                continue
            to = at[:-1] if part == b".." else [*at, part]
            entry = self._entry(to)
            if entry == MISSING:
                return MISSING
            if entry >= 0 and self._is(entry, stat.S_IFLNK):
                links += 1
                target = self._tree.target(entry)
                if links > _MAX_LINKS or not target:
                    return MISSING
                todo += target.split(b"/")[::-1]
                to = [] if target.startswith(b"/") else at
                entry = self._entry(to)
            at = to
        return entry

    def _entry(self, at: list[bytes]) -> int:
        """The entry at a place, `MISSING`, or `LEAVES` outside of the tree: links out there are not known."""
        above = len(self._source)
        return self._tree.find(b"/".join(at[above:])) if at[:above] == self._source else LEAVES

    def look(self, entry: int) -> LinkTarget:
        """An entry of the tree with links followed."""
        if self._is(entry, stat.S_IFLNK):
            found = self.follow(self._tree.path(entry))
            if found == LEAVES:
                return self._look_outside(self._tree.path(entry))
            if found == MISSING:
                return LinkTarget(False, False, NOT_HERE)
            entry = found
        if self._is(entry, stat.S_IFDIR):
            return LinkTarget(True, True, entry)
        return LinkTarget(False, True, entry if self._is(entry, stat.S_IFREG) else NOT_HERE)

    def listed(
        self, entries: Sequence[int]
    ) -> tuple[SampleIds, npt.NDArray[np.bool_], list[tuple[int, LinkTarget, bool]]]:
        """A directory's entries with links followed, as os.walk tells files from directories. Raises JobError as `look`
        does.

        Returns:
            the entry behind each, `NOT_HERE` for what is no file of the tree; which os.walk would list among the files;
            position, what is there and whether it is a link, of those that it would list among the directories.
        """
        types = entry_types(self._tree, entries)
        samples = ids_of(entries)
        samples[types != stat.S_IFREG] = NOT_HERE
        is_file = types != stat.S_IFDIR
        directories = []
        for at in np.flatnonzero((types == stat.S_IFDIR) | (types == stat.S_IFLNK)).tolist():
            seen = self.look(entries[at])
            samples[at] = seen.entry
            is_file[at] = not seen.is_directory
            if seen.is_directory:
                directories.append((at, seen, bool(types[at] == stat.S_IFLNK)))
        return samples, is_file, directories

    def check_no_loop(self, directory: int, above: tuple[int, ...]) -> None:
        """Raises JobError for a directory that has come up again below itself."""
        if directory in above:
            shown = decode(self._tree.path(directory)) or "."
            hint = 'remove the link, or use "layout": "sorted", which follows no links to directories'
            raise JobError(f"a link below the directory {shown!r} leads back to it", hint, "layout")

    def _is(self, entry: int, file_type: int) -> bool:
        return stat.S_IFMT(int(self._tree.mode[entry])) == file_type

    def _look_outside(self, path: bytes) -> LinkTarget:
        if self._outside is None:
            shown = path.decode("utf-8", "surrogateescape")
            raise JobError(f"the link {shown!r} leads out of the source", "mount over the directory that holds both")
        files = self._outside(path)
        if files is None or files == [b""]:
            return LinkTarget(False, files is not None, NOT_HERE)
        return LinkTarget(True, True, NOT_HERE, tuple(files))


class Lister(NamedTuple):
    """A directory as a framework lists it.

    Attributes:
        find: gives the samples below a directory, in pieces, by (tree, directory, links, endings, pattern); a JobError
            where links to directories form a loop, or one leaves the tree and there is no hook.
        looked_for: what it takes for samples, in words. endings: those of its samples, with spaces between; "" for any.
    """

    find: Callable[[Tree, int, Links, Endings, str], list[SampleIds]]
    looked_for: str
    endings: str = ""


# -- paths as users write them, many of which share their directories


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
