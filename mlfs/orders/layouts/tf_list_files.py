"""The layout "tf-list-files": what tf.data.Dataset.list_files(pattern, shuffle=False) lists.

In: a tree, a directory in it, a pattern relative to it. Out: the entry of each dataset index. Called by
`mlfs.orders.layouts`. Source: tensorflow/python/data/ops/dataset_ops.py (list_files), core/kernels/matching_files_op.cc
and core/platform/file_system_helper.cc (TensorFlow 2.21): all paths that match, sorted by their bytes; "*" and "?"
match hidden names, too, but no slash. Directories that match are left out: a job that read them would have failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate

import numpy as np

from mlfs.orders.layouts.layout import NOT_HERE, SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import Endings, decode

PATTERN = "*/*"
ENDINGS = None

LOOKED_FOR = "files that match {pattern}, with the endings {endings}"


def find_samples(
    tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None, pattern: str = PATTERN
) -> list[SampleIds]:
    """Return the entries below the directory `root` whose paths match, in one piece.

    Args:
        pattern: of as many parts as the files lie deep, "*/*" for files in class directories.
        extensions: what else the names must end in; None for anything.

    Raises:
        JobError: a link leaves the tree and there is no hook.
    """
    parts = [re.compile(translate(part)) for part in pattern.split("/") if part]
    endings = None if extensions is None else Endings(extensions)
    found: list[tuple[bytes, int]] = []
    todo: list[tuple[bytes, int, int]] = [(b"", root, 0)]
    while todo:
        prefix, directory, depth = todo.pop()
        last = depth + 1 == len(parts)
        for path, entry, is_directory in _matching(tree, links, directory, parts[depth], prefix):
            if is_directory and not last and entry != NOT_HERE:
                todo.append((path + b"/", entry, depth + 1))
            elif last and not is_directory and (endings is None or endings.match([path])[0]):
                found.append((path, entry))
    found.sort()
    return [np.fromiter((entry for _, entry in found), dtype=np.int64, count=len(found))]


def _matching(
    tree: Tree, links: Links, directory: int, part: re.Pattern[str], prefix: bytes
) -> Iterator[tuple[bytes, int, bool]]:
    """The entries of a directory that match: path, entry with links followed, whether it is a directory."""
    for entry in tree.children(directory):
        name = tree.name(entry)
        if part.match(decode(name)):
            seen = links.look(entry)
            yield prefix + name, seen.entry, seen.is_directory
