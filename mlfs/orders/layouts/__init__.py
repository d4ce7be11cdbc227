"""The layouts: each says which entry of the tree a framework's data set has at each index.

In: a job's root, layout and extensions; the tree. Out: sample ids. Called by `mlfs.orders.streams`. Directories that
frameworks list are `mlfs.orders.layouts.listers`, rows of large files `mlfs.orders.layouts.rows`; the layout "manifest"
is here.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.job.names import layout_names
from mlfs.orders.layouts.braces import expanded
from mlfs.orders.layouts.layout import NOTHING, Endings, Outside, SampleIds, Tree, encode
from mlfs.orders.layouts.links import Links, Paths
from mlfs.orders.layouts.listers import LISTED
from mlfs.orders.layouts.litdata import find_chunks
from mlfs.orders.layouts.rows import ROWS, find_rows
from mlfs.orders.order_file import Line, bad_line, read_lines

if TYPE_CHECKING:
    from mlfs.job import JobSpec

__all__ = ["LISTED", "layout_names", "samples"]

PATTERN: Final = "*/*"
MOST_BRACED: Final = 1 << 23


def samples(spec: JobSpec, tree: Tree, source: bytes | None = None, outside: Outside | None = None) -> SampleIds:
    """Return the tree's entry for each dataset index of a job, shape (n_samples,), read-only.

    Samples of several files (layout "manifest" only) have a row of entries each: shape (n_samples, most files of one).

    A linked file has its target's entry, so an entry may come up more than once; -1 stands for samples that are not
    files of the tree (`NOT_HERE`). A row has an id behind all entries. Args: as `Links`.

    Raises:
        JobError: the root is not a directory of the tree, there are no samples, or links cannot be followed.
    """
    links = Links(tree, source, outside)
    if spec.layout in ROWS:
        found = find_rows(spec, tree, links, outside)
        found.flags.writeable = False
        return found
    root = links.follow(encode(spec.root))
    if root < 0 or not stat.S_ISDIR(int(tree.mode[root])):
        hint = "give a directory of the source, relative to where mlfs is mounted"
        raise JobError(f"there is no directory {spec.root!r} in the source", hint, "root")
    if spec.layout == "manifest":
        found = find_listed(spec, tree, links)
    elif spec.layout == "braces":
        found = find_braced(spec, tree, links)
    elif spec.layout == "litdata":
        found = find_chunks(spec, tree, links, outside).entries
    else:
        found = _listed(spec, tree, root, links)
    found.flags.writeable = False
    return found


def _listed(spec: JobSpec, tree: Tree, root: int, links: Links) -> SampleIds:
    layout, pattern = LISTED[spec.layout], spec.pattern or PATTERN
    extensions = spec.extensions or layout.endings.split()
    pieces = layout.find(tree, root, links, Endings(extensions), pattern)
    found = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
    if not len(found):
        looked_for = layout.looked_for.format(endings=" ".join(extensions or ("*",)), pattern=pattern)
        where = repr(spec.root) if spec.root else "the source"
        other = "" if spec.layout == "sorted" else ', or use "layout": "sorted", which takes every file at any depth'
        message = f'no samples: layout "{spec.layout}" looked in {where} for {looked_for}'
        raise JobError(message, f'check "root" and "extensions"{other}', "layout")
    return found


def find_braced(spec: JobSpec, tree: Tree, links: Links) -> SampleIds:
    """Return the files that a pattern with braces names. Raises: JobError, one of them is no file of the tree."""
    hint = 'such as "train-{0000..0146}.tar", relative to the job\'s root, or absolute below the source'
    if not spec.pattern:
        raise JobError('job field "pattern" is missing: the layout "braces" expands it', hint, "pattern")
    paths, found = Paths(tree, links, spec.root), list[int]()
    try:
        for name in expanded(spec.pattern):
            found.append(paths.file(encode(name)))
            if found[-1] < 0:
                raise JobError(f"pattern {spec.pattern!r}: {name!r} is not a file", hint, "pattern")
            if len(found) > MOST_BRACED:
                raise JobError(f"pattern {spec.pattern!r} names more than {MOST_BRACED:,} files", hint, "pattern")
    except ValueError as error:
        raise JobError(f"pattern {spec.pattern!r}: {error}", hint, "pattern") from None
    return np.array(found, dtype=np.int64)


# -- the layout "manifest"
#
# It is for data sets that are listed in a file of their own (CSV, JSON, a database), which the user writes down as one
# sample a line. A sample of several files (an image and its mask) names them in the order in which they are read, with
# tabs between; so a name with a tab in it cannot be written. Paths are relative to the job's root, or absolute below
# the source. A line that names no file of the tree is an error: a wrong data set would shift every sample after it.


# Each sample takes a row as wide as the sample with the most files, so one line with many would widen all of them.
MOST_FILES_PER_SAMPLE = 64


def find_listed(spec: JobSpec, tree: Tree, links: Links) -> SampleIds:
    """Return the files of each sample, shape (n_samples,), or (n_samples, most files of a sample) with several.

    Samples of fewer files than others are filled up with `NOTHING`.

    Raises:
        JobError: there is no manifest file, it cannot be read, or a line of it names no file of the tree.
    """
    path = spec.manifest_file
    if not path:
        message = 'job field "manifest_file" is missing: the layout "manifest" reads the samples from it'
        raise JobError(message, "give the absolute path of a file with one sample a line", "manifest_file")
    lines = read_lines(path, "manifest_file")
    paths = Paths(tree, links, spec.root)
    width = max(line.text.count(b"\t") + 1 for line in lines)
    if width > MOST_FILES_PER_SAMPLE:
        message = f"a sample in {path!r} has {width} files, {MOST_FILES_PER_SAMPLE} are the most"
        raise JobError(message, "write one sample a line", "manifest_file")
    ids = np.full((len(lines), width), NOTHING, dtype=np.int64)
    for at, line in enumerate(lines):
        for column, name in enumerate(line.text.split(b"\t")):
            entry = paths.file(name)
            if entry < 0:
                hint = "paths are relative to the job's root, several files of a sample have tabs between"
                raise bad_line(path, Line(line.number, name), "is not a file", hint, "manifest_file")
            ids[at, column] = entry
    return ids[:, 0] if width == 1 else ids
