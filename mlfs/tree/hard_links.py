"""Hard links: which entries of a tree are names of one file.

In: device, inode number and attributes of the files that have several links, as the scan saw them. Out: two columns of
the manifest, and `HardLinks`, which says of an entry under which other names its file stands in the tree. Files with
one link cost nothing. Called by `mlfs.tree.scan` and `mlfs.tree.manifest`.

Inode numbers of some file systems tell nothing: they are all alike, or made up. So entries are taken for one file only
if size and times are alike as well, and if they are no more than the file has links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Columns = tuple[NDArray[np.uint32], NDArray[np.uint32]]


def columns_of(seen: NDArray[np.int64]) -> Columns:
    """The columns `linked` (entries with another name in the tree, ascending) and `linked_first` (the first of them).

    Args:
        seen: [k, 2 + attributes] for each entry with several links its id, its number of links, and all that one file
            has under each of its names: device, inode number, size, times.
    """
    nothing = np.zeros(0, dtype=np.uint32)
    if len(seen) < 2:
        return nothing, nothing
    ids, links = seen[:, 0], seen[:, 1]
    _, groups = np.unique(seen[:, 1:], axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    counts = np.bincount(groups)
    first = np.full(len(counts), np.iinfo(np.int64).max)
    np.minimum.at(first, groups, ids)
    linked = (counts[groups] > 1) & (counts[groups] <= links)
    order = np.argsort(ids[linked], kind="stable")
    return ids[linked][order].astype(np.uint32), first[groups][linked][order].astype(np.uint32)


class HardLinks:
    """The groups of entries that are names of one file.

    Groups that are found later (`regroup`) stand in a small table; called on the loop only.
    """

    def __init__(self, linked: NDArray[np.uint32], first: NDArray[np.uint32]) -> None:
        self._linked, self._first = linked, first
        self._now: dict[int, int] = {}
        self._names: dict[int, tuple[int, ...]] = {}  # of files with names that the scan did not know

    def __len__(self) -> int:
        """How many entries have, or had, another name in the tree."""
        return len(self._linked) + len(self._names)

    def first_of(self, entry: int) -> int:
        """The entry that stands for the file: the first of its names, `entry` itself where it has no other one."""
        now = self._now.get(entry)
        if now is not None:
            return now
        if not len(self._linked):
            return entry
        at = int(np.searchsorted(self._linked, entry))
        return int(self._first[at]) if at < len(self._linked) and self._linked[at] == entry else entry

    def first_of_each(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """`first_of` of many entries."""
        first = entries.copy()
        if len(self._linked):
            at = np.minimum(np.searchsorted(self._linked, entries), len(self._linked) - 1)
            first = np.where(self._linked[at] == entries, self._first[at], entries).astype(np.int64)
        if self._now:
            for place in np.flatnonzero(np.isin(entries, list(self._now))).tolist():
                first[place] = self._now[int(entries[place])]
        return first

    def names_of(self, entry: int) -> Sequence[int]:
        """All entries that were names of the file at the scan, `entry` itself among them; () where it has no other."""
        names = self._names.get(entry)
        if names is not None:
            return names
        at = int(np.searchsorted(self._linked, entry))
        if at >= len(self._linked) or self._linked[at] != entry:
            return ()
        found: list[int] = self._linked[self._first == self._first[at]].tolist()
        return found

    @property
    def known(self) -> set[int]:
        """The entries that have, or had, another name."""
        return {*self._linked.tolist(), *self._names}

    def refreshed(self, files: Iterable[Sequence[int]]) -> None:
        """The tree has been scanned anew: the entries of each of these are names of one file, and of no other."""
        files = list(files)
        self.regroup(files)
        for names in files:
            self._names.update(dict.fromkeys(names, tuple(names)))

    def regroup(self, files: Iterable[Sequence[int]]) -> None:
        """The entries of each of these are names of one file now, and of no other."""
        for names in files:
            first = min(names)
            self._now.update(dict.fromkeys(names, first))
