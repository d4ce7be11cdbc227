"""Class directories as os.walk goes through them: what torchvision's and Keras' data sets share.

In: a tree, a class directory, file name endings. Out: the entries of its samples, in order. Called by the layouts
`imagefolder` and `keras`. Source: torchvision/datasets/folder.py (make_dataset), keras/src/utils/dataset_utils.py
(iter_valid_files): sorted(os.walk()), in each directory sorted file names with a matching ending. "Sorted" compares
str, and for os.walk whole paths.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from mlfs.orders.layouts.layout import NOT_HERE, SampleIds, Tree
from mlfs.orders.layouts.links import Links, LinkTarget
from mlfs.orders.layouts.names import Endings, code_point_order, decode


class _Walked(NamedTuple):
    """One directory that os.walk would yield: its path within the class (sort key), its samples."""

    path: str
    samples: SampleIds


class Walker:
    """Walks class directories. Not recursive: trees may be deeper than Python's stack.

    Args:
        follow_links: os.walk's followlinks: whether linked directories below the class directory are gone into.
    """

    def __init__(self, tree: Tree, links: Links, endings: Endings, follow_links: bool) -> None:
        self._tree = tree
        self._links = links
        self._endings = endings
        self._follow_links = follow_links

    def walk(self, top: LinkTarget) -> list[SampleIds]:
        """The samples of one class, directory by directory in the order of sorted(os.walk()).

        Raises:
            JobError: links to directories form a loop, or one leaves the tree and there is no hook.
        """
        walked: list[_Walked] = []
        # Path, directory, and the directories that lead to it: one that comes up again below itself is a loop.
        todo: list[tuple[str, LinkTarget, tuple[int, ...]]] = [("", top, ())]
        while todo:
            path, seen, above = todo.pop()
            if seen.entry == NOT_HERE:
                walked += self._walk_outside(path, seen.files)
                continue
            self._links.check_no_loop(seen.entry, above)
            samples, directories = self._list(seen.entry)
            walked.append(_Walked(path, samples))
            above = (*above, seen.entry)
            todo += [(f"{path}/{name}", below, above) for name, below in directories]
        walked.sort(key=lambda each: each.path)
        return [each.samples for each in walked]

    def _list(self, directory: int) -> tuple[SampleIds, list[tuple[str, LinkTarget]]]:
        """The samples right in a directory, in order, and its sub-directories."""
        entries = self._tree.children(directory)
        names = [self._tree.name(entry) for entry in entries]
        samples, is_file, below, linked = self._links.listed(entries)
        directories = [(decode(names[at]), seen) for at, seen in below if self._follow_links or at not in linked]
        wanted = self._endings.match(names) & is_file
        order = code_point_order(names)
        if order is None:
            return samples[wanted], directories
        return samples[order][wanted[order]], directories

    def _walk_outside(self, path: str, files: tuple[bytes, ...]) -> list[_Walked]:
        """The files behind a link that leaves the tree: they take up indices, and that is all that is known of them."""
        names = [file.rpartition(b"/")[2] for file in files]
        matching = self._endings.match(names).tolist()
        places = (file.rpartition(b"/")[0] for file, wanted in zip(files, matching, strict=True) if wanted)
        counts = Counter(f"{path}/{decode(place)}" if place else path for place in places)
        return [_Walked(place, np.full(count, NOT_HERE, dtype=np.int64)) for place, count in counts.items()]
