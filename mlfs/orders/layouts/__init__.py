"""The layouts: each says which entry of the tree a framework's data set has at each index.

In: a job's root, layout and extensions; the tree. Out: sample ids. Called by `mlfs.orders.streams`.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.job.names import layout_names
from mlfs.orders.layouts import manifest
from mlfs.orders.layouts.class_directories import DALI, IMAGEFOLDER, KERAS
from mlfs.orders.layouts.layout import Outside, SampleIds, Tree
from mlfs.orders.layouts.links import Links, Lister
from mlfs.orders.layouts.names import encode
from mlfs.orders.layouts.whole_paths import HF_IMAGEFOLDER, SORTED, TF_LIST_FILES, TIMM

if TYPE_CHECKING:
    from mlfs.job import JobSpec

__all__ = ["LISTED", "layout_names", "samples"]

# Directories as a framework lists them, by the names of `mlfs.job.names` but "manifest", which a file of the user's
# lists.
LISTED: Final[Mapping[str, Lister]] = {
    "imagefolder": IMAGEFOLDER,
    "timm": TIMM,
    "keras": KERAS,
    "hf-imagefolder": HF_IMAGEFOLDER,
    "dali": DALI,
    "tf-list-files": TF_LIST_FILES,
    "sorted": SORTED,
}
PATTERN: Final = "*/*"


def samples(spec: JobSpec, tree: Tree, source: bytes | None = None, outside: Outside | None = None) -> SampleIds:
    """Return the tree's entry for each dataset index of a job, shape (n_samples,), read-only.

    Samples of several files (layout "manifest" only) have a row of entries each: shape (n_samples, most files of one).

    A linked file has its target's entry, so an entry may come up more than once; -1 stands for samples that are not
    files of the tree (see `contract.NOT_HERE`).

    Args:
        spec: the job; `root`, `layout` and the layout's fields are looked at.
        tree: the source tree.
        source: the absolute path of the source, as absolute links name it.
        outside: says what is behind links that leave the tree.

    Raises:
        JobError: the root is not a directory of the tree, there are no samples, or links cannot be followed.
    """
    links = Links(tree, source, outside)
    root = links.follow(encode(spec.root))
    if root < 0 or not stat.S_ISDIR(int(tree.mode[root])):
        hint = "give a directory of the source, relative to where mlfs is mounted"
        raise JobError(f"there is no directory {spec.root!r} in the source", hint, "root")
    found = manifest.find_listed(spec, tree, links) if spec.layout == "manifest" else _listed(spec, tree, root, links)
    found.flags.writeable = False
    return found


def _listed(spec: JobSpec, tree: Tree, root: int, links: Links) -> SampleIds:
    layout, pattern = LISTED[spec.layout], spec.pattern or PATTERN
    pieces = layout.find(tree, root, links, spec.extensions or layout.endings, pattern)
    found = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
    if not len(found):
        endings = " ".join(spec.extensions or layout.endings or ("*",))
        looked_for = layout.looked_for.format(endings=endings, pattern=pattern)
        where = repr(spec.root) if spec.root else "the source"
        other = "" if spec.layout == "sorted" else ', or use "layout": "sorted", which takes every file at any depth'
        message = f'no samples: layout "{spec.layout}" looked in {where} for {looked_for}'
        raise JobError(message, f'check "root" and "extensions"{other}', "layout")
    return found
