"""The layout "sorted": every file below a directory, by the bytes of its path.

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Source: ours; what `sorted(glob("**"))` over ASCII names, `find | LC_ALL=C sort` and tf.io.gfile-style byte sorts give.
Regular files and links to files count; links to directories are not followed, so nothing can loop.
"""

from __future__ import annotations

import stat

import numpy as np

from mlfs.orders.layouts.layout import SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import Endings, entry_types, ids_of

ENDINGS = None

LOOKED_FOR = "files with the endings {endings}"


def find_samples(tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None) -> list[SampleIds]:
    """Return the samples below the directory `root`, in pieces; every file when `extensions` is None.

    Raises:
        JobError: a link leaves the tree and there is no hook.
    """
    endings = None if extensions is None else Endings(extensions)
    pieces: list[SampleIds] = []
    todo: list[SampleIds | int] = [root]  # what comes next stands last: samples as they are, directories as their ids
    while todo:
        item = todo.pop()
        if isinstance(item, int):
            todo += reversed(_list(tree, item, links, endings))
        else:
            pieces.append(item)
    return pieces


def _list(tree: Tree, directory: int, links: Links, endings: Endings | None) -> list[SampleIds | int]:
    """A directory's content in the order of whole paths: runs of samples, and sub-directories between them."""
    entries = tree.children(directory)
    types = entry_types(tree, entries)
    samples = ids_of(entries)
    wanted = types == stat.S_IFREG
    for at in np.flatnonzero(types == stat.S_IFLNK).tolist():
        seen = links.look(entries[at])
        wanted[at] = seen.exists and not seen.is_directory
        samples[at] = seen.entry
    if endings is not None:
        wanted &= endings.match([tree.name(entry) for entry in entries])
    is_directory = types == stat.S_IFDIR
    if not is_directory.any():
        return [samples[wanted]]
    # "a-b" sorts before "a/x", but "a" before "a-b": so a directory is compared with its slash.
    names = [tree.name(entry) + (b"/" if is_directory[at] else b"") for at, entry in enumerate(entries)]
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    items: list[SampleIds | int] = []
    start = 0
    for at in [*np.flatnonzero(is_directory[order]).tolist(), len(order)]:
        run = order[start:at]
        items.append(samples[run[wanted[run]]])
        if at < len(order):
            items.append(entries[int(order[at])])
        start = at + 1
    return items
