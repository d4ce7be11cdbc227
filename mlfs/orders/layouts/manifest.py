"""The layout "manifest": a file of the user's says which files each sample is made of.

In: a job's manifest_file, a tree. Out: the entries of each dataset index. Called by `mlfs.orders.layouts`.
Source: none; it is for data sets that are listed in a file of their own (CSV, JSON, a database), which the user writes
down as one sample a line. A sample of several files (an image and its mask) names them in the order in which they are
read, with tabs between; so a name with a tab in it cannot be written.

Paths are relative to the job's root, or absolute below the source. A line that names no file of the tree is an error:
a wrong data set would shift every sample after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.layouts.layout import NOTHING, SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.paths import Paths
from mlfs.orders.order_file import read_lines

if TYPE_CHECKING:
    from mlfs.job import JobSpec

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
                shown = name[:80].decode("utf-8", "surrogateescape")
                hint = "paths are relative to the job's root, several files of a sample have tabs between"
                raise JobError(
                    f"manifest file {path!r}, line {line.number}: {shown!r} is not a file", hint, "manifest_file"
                )
            ids[at, column] = entry
    return ids[:, 0] if width == 1 else ids
