"""The layout "dali": the files that DALI's readers.file finds with file_root.

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Source: dali/operators/reader/loader/discover_files.cc (DALI 2.4): the sub-directories of file_root by the bytes of
their names, hidden and linked ones too; in each the files right in it, by the bytes of their names, that match one of
file_filters without regard to case. Files deeper down and files beside the directories do not count.
"""

from __future__ import annotations

import stat

import numpy as np

from mlfs.orders.layouts.layout import NOT_HERE, SampleIds, Tree
from mlfs.orders.layouts.links import Links, LinkTarget
from mlfs.orders.layouts.names import Endings, entry_types, ids_of

_NAMES = "jpg jpeg png bmp tif tiff pnm ppm pgm pbm jp2 webp flac ogg wav"
ENDINGS = tuple(_NAMES.split())

LOOKED_FOR = "files with the endings {endings} right in the directories below"


def find_samples(tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None) -> list[SampleIds]:
    """Return the samples of the data set whose file_root is the directory `root`, in pieces.

    Raises:
        JobError: a link leaves the tree and there is no hook.
    """
    endings = Endings(extensions or ENDINGS)
    directories = (links.look(entry) for entry in tree.children(root))
    return [_files(tree, seen, links, endings) for seen in directories if seen.is_directory]


def _files(tree: Tree, seen: LinkTarget, links: Links, endings: Endings) -> SampleIds:
    """The samples right in a directory. A link counts whatever is behind it: DALI would fail when it reads it."""
    if seen.entry == NOT_HERE:
        names = [path for path in seen.files if b"/" not in path]
        return np.full(int(endings.match(names).sum()), NOT_HERE, dtype=np.int64)
    entries = tree.children(seen.entry)
    types = entry_types(tree, entries)
    samples = ids_of(entries)
    for at in np.flatnonzero(types == stat.S_IFLNK).tolist():
        behind = links.look(entries[at])
        samples[at] = NOT_HERE if behind.is_directory else behind.entry
    wanted = (types == stat.S_IFREG) | (types == stat.S_IFLNK)
    wanted &= endings.match([tree.name(entry) for entry in entries])
    found: SampleIds = samples[wanted]
    return found
