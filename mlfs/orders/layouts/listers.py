"""Directories as frameworks list them: the layouts but "manifest".

In: a tree, a directory in it, file name endings, a pattern. Out: the entry of each dataset index. Called by
`mlfs.orders.layouts`. docs/orders.md, "Layouts", says what each of them takes, in which order: "sorted" compares str by
code point, and for os.walk whole paths. Sources:

- imagefolder: torchvision/datasets/folder.py (find_classes, make_dataset).
- keras: keras/src/utils/dataset_utils.py (index_directory, iter_valid_files; Keras 3.15, with labels="inferred" and
  follow_links=False).
- dali: dali/operators/reader/loader/discover_files.cc (DALI 2.4). A link counts whatever is behind it: DALI would fail
  when it reads it.
- tf-list-files: tensorflow/python/data/ops/dataset_ops.py (list_files), core/kernels/matching_files_op.cc and
  core/platform/file_system_helper.cc (TensorFlow 2.21). Directories that match are left out: a job that read them would
  have failed.
- hf-imagefolder: datasets/data_files.py (resolve_pattern with "**", over fsspec's glob), packaged_modules (datasets
  5.2).
- timm: timm/data/readers/reader_image_folder.py (find_images_and_targets), timm/utils/misc.py (natural_key; timm 1.0).
  os.walk(topdown=False, followlinks=True), then a stable sort: "1.jpg", "01.jpg" and, in case, "A.jpg" and "a.jpg" are
  ties, and stay in the order of readdir.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.layouts.layout import NOT_HERE, Endings, SampleIds, Tree, code_point_order, decode, entry_types, ids_of
from mlfs.orders.layouts.links import Links, LinkTarget, Lister

Match = Callable[[Sequence[bytes]], npt.NDArray[np.bool_]]


def _imagefolder(
    tree: Tree, root: int, links: Links, endings: Endings, pattern: str, keras: bool = False
) -> list[SampleIds]:
    names = sorted((decode(tree.name(entry)), entry) for entry in tree.children(root))
    classes = [(name, links.look(entry)) for name, entry in names]
    shown = [seen for name, seen in classes if seen.is_directory and not (keras and name.startswith("."))]
    walked = (_walk(tree, links, seen, endings.match, follow_links=not keras) for seen in shown)
    return [piece for of_class in walked for piece in _by_path(of_class)]


def _dali(tree: Tree, root: int, links: Links, endings: Endings, pattern: str) -> list[SampleIds]:
    pieces = []
    for seen in map(links.look, tree.children(root)):
        if seen.is_directory and seen.entry == NOT_HERE:
            names = [path for path in seen.files if b"/" not in path]
            pieces.append(np.full(int(endings.match(names).sum()), NOT_HERE, dtype=np.int64))
        elif seen.is_directory:
            entries = tree.children(seen.entry)
            types, samples = entry_types(tree, entries), ids_of(entries)
            for at in np.flatnonzero(types == stat.S_IFLNK).tolist():
                behind = links.look(entries[at])
                samples[at] = NOT_HERE if behind.is_directory else behind.entry
            wanted = (types == stat.S_IFREG) | (types == stat.S_IFLNK)
            pieces.append(samples[wanted & endings.match([tree.name(entry) for entry in entries])])
    return pieces


class _Walked(NamedTuple):
    """One directory that os.walk would yield.

    Attributes:
        path: from the top, "" for that, else with a slash before each name.
        names: in the order of their bytes. samples: behind each. wanted: which are samples.
    """

    path: str
    names: list[bytes]
    samples: SampleIds
    wanted: npt.NDArray[np.bool_]


def _walk(tree: Tree, links: Links, top: LinkTarget, match: Match, follow_links: bool = True) -> Iterator[_Walked]:
    """Directories, each before those in it, and of those the last first. Trees may be deeper than Python's stack.

    Args:
        match: says which names are samples'. follow_links: os.walk's followlinks: whether linked directories below the
            top are gone into.

    Raises:
        JobError: links to directories form a loop, or one leaves the tree and there is no hook.
    """
    # Path, directory, and the directories that lead to it: one that comes up again below itself is a loop.
    todo: list[tuple[str, LinkTarget, tuple[int, ...]]] = [("", top, ())]
    while todo:
        path, seen, above = todo.pop()
        if seen.entry == NOT_HERE:  # behind a link that leaves the tree: they take up indices, and no more is known
            for where, files in groupby(sorted(file.rpartition(b"/") for file in seen.files), key=lambda file: file[0]):
                outside = [name for _, _, name in files]
                place = f"{path}/{decode(where)}" if where else path
                yield _Walked(place, outside, np.full(len(outside), NOT_HERE, dtype=np.int64), match(outside))
            continue
        links.check_no_loop(seen.entry, above)
        entries = tree.children(seen.entry)
        names = [tree.name(entry) for entry in entries]
        samples, is_file, below = links.listed(entries)
        yield _Walked(path, names, samples, match(names) & is_file)
        above = (*above, seen.entry)
        followed = [(at, directory) for at, directory, linked in below if follow_links or not linked]
        todo += [(f"{path}/{decode(names[at])}", directory, above) for at, directory in followed]


def _by_path(walked: Iterable[_Walked]) -> Iterator[SampleIds]:
    """The samples of each directory by code point, in the order of sorted(os.walk())."""
    for _, names, samples, wanted in sorted(walked, key=lambda each: each.path):
        order = code_point_order(names)
        yield samples[wanted] if order is None else samples[order][wanted[order]]


# -- whole paths sorted


_Keyed = list[tuple[Any, int]]


def _in_order(found: _Keyed) -> list[SampleIds]:
    """The entries by their keys; those with one key stay as they are."""
    found.sort(key=lambda each: each[0])
    return [np.fromiter((entry for _, entry in found), dtype=np.int64, count=len(found))]


def _sorted(tree: Tree, root: int, links: Links, endings: Endings, pattern: str) -> list[SampleIds]:
    pieces: list[SampleIds] = []
    todo: list[SampleIds | int] = [root]  # what comes next stands last: samples as they are, directories as their ids
    while todo:
        item = todo.pop()
        if isinstance(item, int):
            todo += reversed(_list(tree, item, links, endings))
        else:
            pieces.append(item)
    return pieces


def _list(tree: Tree, directory: int, links: Links, endings: Endings) -> list[SampleIds | int]:
    """A directory's content in the order of whole paths: runs of samples, and sub-directories between them."""
    entries = tree.children(directory)
    types = entry_types(tree, entries)
    samples = ids_of(entries)
    wanted = types == stat.S_IFREG
    for at in np.flatnonzero(types == stat.S_IFLNK).tolist():
        seen = links.look(entries[at])
        wanted[at] = seen.exists and not seen.is_directory
        samples[at] = seen.entry
    if endings.text:
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


def _tf(tree: Tree, root: int, links: Links, endings: Endings, pattern: str) -> list[SampleIds]:
    """A pattern has as many parts as the files lie deep."""
    parts = [re.compile(translate(part)) for part in pattern.split("/") if part]
    found: _Keyed = []
    todo: list[tuple[bytes, int, int]] = [(b"", root, 0)]
    while todo:
        prefix, directory, depth = todo.pop()
        last = depth + 1 == len(parts)
        entries = tree.children(directory)
        names = [tree.name(entry) for entry in entries]
        for entry, name, wanted in zip(entries, names, endings.match(names).tolist(), strict=True):
            if not parts[depth].match(decode(name)):
                continue
            seen = links.look(entry)
            if seen.is_directory and not last and seen.entry != NOT_HERE:
                todo.append((prefix + name + b"/", seen.entry, depth + 1))
            elif last and wanted and not seen.is_directory:
                found.append((prefix + name, seen.entry))
    return _in_order(found)


def _hf(tree: Tree, root: int, links: Links, endings: Endings, pattern: str) -> list[SampleIds]:
    images, found = frozenset(endings.text), _Keyed()
    todo = [("", root)]
    while todo:
        prefix, directory = todo.pop()
        entries = tree.children(directory)
        for entry, kind in zip(entries, entry_types(tree, entries).tolist(), strict=True):
            name = decode(tree.name(entry))
            if name.startswith(".") and set(name) != {"."}:
                continue  # it is hidden; a name of dots alone is not to `datasets`, which thinks of ".."
            if kind == stat.S_IFDIR:
                if not name.startswith("__"):
                    todo.append((f"{prefix}{name}/", entry))
                continue
            # The ending is an image's, or, as of "a.jpg.gz", the one before it.
            stem, ending = os.path.splitext(name)
            is_image = ending.lower() in images or os.path.splitext(stem)[1].lower() in images
            if is_image and kind in (stat.S_IFLNK, stat.S_IFREG):
                seen = links.look(entry)
                if seen.exists and not seen.is_directory:
                    found.append((prefix + name, seen.entry))
    return _in_order(found)


def _timm(tree: Tree, root: int, links: Links, endings: Endings, pattern: str) -> list[SampleIds]:
    """Bottom up, as os.walk goes."""

    def match(names: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """os.path.splitext takes no ending from a name that begins with its only dot."""
        return endings.match([name.lstrip(b".") for name in names])

    found: _Keyed = []
    for path, names, samples, wanted in reversed(list(_walk(tree, links, LinkTarget(True, True, root), match))):
        prefix, ids = natural_key(f"{path}/"), samples.tolist()
        found += [(prefix + natural_key(decode(names[at])), ids[at]) for at in np.flatnonzero(wanted).tolist()]
    return _in_order(found)


_DIGITS: Final = re.compile(r"\d+")


def natural_key(text: str) -> str:
    """A string that compares as timm's natural_key(text) does, made in a fraction of its time.

    A number becomes NUL (no name holds one, and it ends the text before it), how many digits it has, its digits.
    """
    return _DIGITS.sub(_number, text.lower())


def _number(match: re.Match[str]) -> str:
    digits = match.group()
    digits = digits.lstrip("0") if digits.isascii() else str(int(digits)).lstrip("0")
    return f"\0{chr(len(digits) + 1)}{digits}"


_keras: Final = partial(_imagefolder, keras=True)
_FILES: Final = "files with the endings {endings}"
_OF_DALI: Final = "jpg jpeg png bmp tif tiff pnm ppm pgm pbm jp2 webp flac ogg wav"
_OF_PILLOW: Final = (
    "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png apng jp2 j2k jpc jpf jpx j2c"
    " icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb"
    " vda vst webp wmf emf xbm xpm"
)
LISTED: Final[Mapping[str, Lister]] = {
    "imagefolder": Lister(_imagefolder, f"{_FILES} in class directories", "jpg jpeg png ppm bmp pgm tif tiff webp"),
    "timm": Lister(_timm, f"{_FILES} at any depth", "png jpg jpeg"),
    # Its endings: ALLOWLIST_FORMATS in keras/src/utils/image_dataset_utils.py.
    "keras": Lister(_keras, f"{_FILES} in class directories that are not hidden", "bmp gif jpeg jpg png"),
    "hf-imagefolder": Lister(_hf, "image files at any depth ({endings})", _OF_PILLOW),
    "dali": Lister(_dali, f"{_FILES} right in the directories below", _OF_DALI),
    "tf-list-files": Lister(_tf, "files that match {pattern}, with the endings {endings}"),
    "sorted": Lister(_sorted, _FILES),
}
"""By the name of the layout."""
