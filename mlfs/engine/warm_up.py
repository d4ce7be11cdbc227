"""Chooses the samples that a warm-up brings to this node's places, and their order.

In: what `mlfs warmup` names: paths, a job with epochs, or nothing. Out: sample numbers in the order of need, each once.
Called by mountd.control, in a worker thread: an epoch's order may take a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.streams import JobStreams
from mlfs.tree.samples import Samples

SampleIds = npt.NDArray[np.integer[Any]]


def of_tree(samples: Samples) -> SampleIds:
    """All of them, in the order of the tree."""
    return samples.ids


def of_paths(samples: Samples, paths: Sequence[bytes]) -> SampleIds:
    """The samples of files, and of all files below directories. Raises JobError for a path that is not there."""
    found: list[int] = []
    manifest = samples.manifest
    for path in paths:
        entry = manifest.find(path)
        if entry < 0:
            shown = path.decode(errors="surrogateescape")
            raise JobError(f"there is no {shown!r} in the mount", "give files or directories of the mount", "paths")
        pending = [entry]
        while pending:
            entry = pending.pop()
            if manifest.is_dir(entry):
                pending += reversed(manifest.children(entry))
            elif manifest.is_file(entry):
                found += samples.blocks_of(entry) or samples.of_file(entry)
    return _each_once(np.array(found, dtype=np.int64))


def of_epochs(streams: JobStreams, ranks: Sequence[int], epochs: Sequence[int]) -> SampleIds:
    """The samples that ranks read in these epochs, in the order in which they read them side by side."""
    for epoch in epochs:
        if not 0 <= epoch < streams.spec.epochs:
            raise JobError(f"there is no epoch {epoch}", f"the job has epochs 0 to {streams.spec.epochs - 1}", "epochs")
    read = [np.stack([streams.epoch_ids(epoch, rank) for rank in ranks], axis=1).ravel() for epoch in epochs]
    ids = np.concatenate(read) if read else np.empty(0, np.int64)
    return _each_once(ids[ids >= 0])


def _each_once(ids: npt.NDArray[np.int64]) -> SampleIds:
    """In the same order, without what has come before."""
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]
