"""The layouts: each says which entry of the tree a framework's data set has at each index.

In: a job's root, layout and extensions; the tree. Out: sample ids. Called by `mlfs.orders.streams`.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.job.layouts import layout_names
from mlfs.orders.layouts import dali, hf_imagefolder, imagefolder, keras, manifest, sorted, tf_list_files, timm
from mlfs.orders.layouts.layout import Outside, SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import encode

if TYPE_CHECKING:
    from mlfs.job import JobSpec

__all__ = ["LISTED", "layout_names", "samples"]

# Directories as a framework lists them, by the names of `mlfs.job.layouts` but "manifest", which a file of the user's
# lists. Each has find_samples, LOOKED_FOR and ENDINGS (None: any).
LISTED = {
    "imagefolder": imagefolder,
    "timm": timm,
    "keras": keras,
    "hf-imagefolder": hf_imagefolder,
    "dali": dali,
    "tf-list-files": tf_list_files,
    "sorted": sorted,
}


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
    if spec.layout == "tf-list-files":
        pieces = tf_list_files.find_samples(tree, root, links, spec.extensions, spec.pattern or tf_list_files.PATTERN)
    else:
        pieces = LISTED[spec.layout].find_samples(tree, root, links, spec.extensions)
    found = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
    if not len(found):
        raise _nothing_found(spec)
    return found


def _nothing_found(spec: JobSpec) -> JobError:
    layout = LISTED[spec.layout]
    endings = spec.extensions or layout.ENDINGS or ("*",)
    looked_for = layout.LOOKED_FOR.format(endings=" ".join(endings), pattern=spec.pattern or tf_list_files.PATTERN)
    where = repr(spec.root) if spec.root else "the source"
    hint = 'check "root" and "extensions"'
    if spec.layout != "sorted":
        hint += ', or use "layout": "sorted", which takes every file at any depth'
    return JobError(f'no samples: layout "{spec.layout}" looked in {where} for {looked_for}', hint, "layout")
