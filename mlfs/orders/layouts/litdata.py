"""The layout "litdata": the chunks that an index.json lists, and how many samples each has.

In: the job's root, the tree, the source. Out: entries and numbers, in the order of the list. Called by
`mlfs.orders.layouts` and `mlfs.orders.streams`. Source: streaming/config.py, streaming/writer.py (litdata 0.2.76).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.layouts.layout import Outside, ReadsSource, SampleIds, Tree, encode
from mlfs.orders.layouts.links import Links, Paths

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class Chunks(NamedTuple):
    """The chunks of a data set: their entries, and the samples of each."""

    entries: SampleIds
    counts: SampleIds


def find_chunks(spec: JobSpec, tree: Tree, links: Links, outside: Outside | None) -> Chunks:
    """Return the chunks. Raises: JobError, there is no index.json or a chunk is missing."""
    paths = Paths(tree, links, spec.root)
    index = paths.file(b"index.json")
    if index < 0:
        raise JobError('the layout "litdata" found no index.json', 'give its directory as "root"', "root")
    if not isinstance(outside, ReadsSource):
        raise JobError('the layout "litdata" reads files of the source', "register it at a mount", "layout")
    try:
        with outside.open(tree.path(index)) as content:
            chunks = json.loads(content.read())["chunks"]
        names = [str(chunk["filename"]) for chunk in chunks]
        counts = np.array([int(chunk["chunk_size"]) for chunk in chunks], dtype=np.int64)
    except (OSError, OverflowError, ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"index.json cannot be read: {error}", "it is what litdata's optimize writes", "layout"
        ) from None
    entries = np.array([paths.file(encode(name)) for name in names], dtype=np.int64)
    if not len(entries) or (entries < 0).any() or (counts <= 0).any():
        wrong = next((name for name, at, n in zip(names, entries, counts, strict=True) if at < 0 or n <= 0), None)
        message = "index.json lists no chunk" if wrong is None else f"the chunk {wrong!r} is missing, or has no samples"
        raise JobError(message, "was all of the data set copied?", "layout")
    return Chunks(entries, counts)
