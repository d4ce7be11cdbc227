"""The layout "hf-imagefolder": the rows of datasets.load_dataset("imagefolder", data_dir=...).

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Source: datasets/data_files.py (resolve_pattern with "**", over fsspec's glob), packaged_modules/imagefolder and
folder_based_builder (datasets 5.2): every file at any depth by the code points of its whole path, without hidden files
and directories and without directories that start with "__". Links to files count, linked directories are not gone
into.

It does not know data sets whose names make `datasets` cut them into splits (directories or files called train, test,
valid, ...: give the split's directory as "root"), nor metadata files and zip archives, which bring their own order.
"""

from __future__ import annotations

import os
import stat

import numpy as np

from mlfs.orders.layouts.layout import SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import decode, entry_types

_NAMES = (
    "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png apng jp2 j2k jpc jpf jpx j2c"
    " icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb"
    " vda vst webp wmf emf xbm xpm"
)
ENDINGS = tuple(_NAMES.split())

LOOKED_FOR = "image files at any depth ({endings})"


def find_samples(tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None) -> list[SampleIds]:
    """Return the samples below the directory `root`, in one piece.

    Raises:
        JobError: a link leaves the tree and there is no hook.
    """
    endings = frozenset("." + ending for ending in extensions or ENDINGS)
    found: list[tuple[str, int]] = []
    todo = [("", root)]
    while todo:
        prefix, directory = todo.pop()
        entries = tree.children(directory)
        for entry, kind in zip(entries, entry_types(tree, entries).tolist(), strict=True):
            name = decode(tree.name(entry))
            if _is_hidden(name):
                continue
            if kind == stat.S_IFDIR:
                if not name.startswith("__"):
                    todo.append((f"{prefix}{name}/", entry))
            elif _is_image(name, endings):
                seen = links.look(entry)
                if seen.exists and not seen.is_directory and kind in (stat.S_IFLNK, stat.S_IFREG):
                    found.append((prefix + name, seen.entry))
    found.sort(key=lambda each: each[0])
    return [np.fromiter((entry for _, entry in found), dtype=np.int64, count=len(found))]


def _is_hidden(name: str) -> bool:
    """A name of dots alone is not hidden to `datasets`, which thinks of "..": so "..." is not."""
    return name.startswith(".") and set(name) != {"."}


def _is_image(name: str, endings: frozenset[str]) -> bool:
    """Whether the ending is an image's, or, as of "a.jpg.gz", the one before it."""
    stem, ending = os.path.splitext(name)
    return ending.lower() in endings or os.path.splitext(stem)[1].lower() in endings
