"""The layouts of class directories: "imagefolder", "keras" and "dali".

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Sources: torchvision/datasets/folder.py (find_classes, make_dataset); keras/src/utils/dataset_utils.py (index_directory,
iter_valid_files; Keras 3.15, with labels="inferred" and follow_links=False); dali/operators/reader/loader/
discover_files.cc (DALI 2.4).

- imagefolder: sorted class directories, in each sorted(os.walk(followlinks=True)), in each directory sorted names.
  "Sorted" compares str, and for os.walk whole paths. Hidden and linked directories count; files beside the class
  directories do not.
- keras: the same without hidden classes; linked ones are taken, and below them links to directories are not followed.
- dali: classes, hidden and linked ones too, and the files right in them, by the bytes of their names. Files deeper down
  do not count. A link counts whatever is behind it: DALI would fail when it reads it.
"""

from __future__ import annotations

import stat
from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from mlfs.orders.layouts.layout import NOT_HERE, SampleIds, Tree
from mlfs.orders.layouts.links import Links, LinkTarget, Lister
from mlfs.orders.layouts.names import Endings, code_point_order, decode, entry_types, ids_of

_OF_DALI: Final = "jpg jpeg png bmp tif tiff pnm ppm pgm pbm jp2 webp flac ogg wav"


def _imagefolder(tree: Tree, root: int, links: Links, endings: tuple[str, ...] | None, pattern: str) -> list[SampleIds]:
    walker = _Walker(tree, links, Endings(endings or ()), follow_links=True)
    return [piece for _, seen in _classes(tree, root, links) for piece in walker.walk(seen)]


def _keras(tree: Tree, root: int, links: Links, endings: tuple[str, ...] | None, pattern: str) -> list[SampleIds]:
    walker = _Walker(tree, links, Endings(endings or ()), follow_links=False)
    seen_classes = _classes(tree, root, links)
    return [piece for name, seen in seen_classes if not name.startswith(".") for piece in walker.walk(seen)]


def _classes(tree: Tree, root: int, links: Links) -> list[tuple[str, LinkTarget]]:
    """The class directories by code point: their names, and what is there."""
    looked = sorted((decode(tree.name(entry)), entry) for entry in tree.children(root))
    return [(name, seen) for name, entry in looked if (seen := links.look(entry)).is_directory]


def _dali(tree: Tree, root: int, links: Links, endings: tuple[str, ...] | None, pattern: str) -> list[SampleIds]:
    matching, pieces = Endings(endings or ()), []
    for seen in map(links.look, tree.children(root)):
        if seen.is_directory and seen.entry == NOT_HERE:
            names = [path for path in seen.files if b"/" not in path]
            pieces.append(np.full(int(matching.match(names).sum()), NOT_HERE, dtype=np.int64))
        elif seen.is_directory:
            entries = tree.children(seen.entry)
            types, samples = entry_types(tree, entries), ids_of(entries)
            for at in np.flatnonzero(types == stat.S_IFLNK).tolist():
                behind = links.look(entries[at])
                samples[at] = NOT_HERE if behind.is_directory else behind.entry
            wanted = (types == stat.S_IFREG) | (types == stat.S_IFLNK)
            pieces.append(samples[wanted & matching.match([tree.name(entry) for entry in entries])])
    return pieces


_IN_CLASSES: Final = "files with the endings {endings} in class directories"
IMAGEFOLDER: Final = Lister(
    _imagefolder, _IN_CLASSES, ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
)
# Its endings: ALLOWLIST_FORMATS in keras/src/utils/image_dataset_utils.py.
KERAS: Final = Lister(_keras, f"{_IN_CLASSES} that are not hidden", ("bmp", "gif", "jpeg", "jpg", "png"))
DALI: Final = Lister(_dali, "files with the endings {endings} right in the directories below", tuple(_OF_DALI.split()))


class _Walked(NamedTuple):
    """One directory that os.walk would yield: its path within the class (sort key), its samples."""

    path: str
    samples: SampleIds


class _Walker:
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
