"""Which data sets the files that were read may belong to: directories and layouts, as a framework would number them.

In: first reads as entries, the tree. Out: `Candidate`s, each with its reads as dataset indices. Called by
`mlfs.explain.inference` in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.explain.fields import JOB_NAME
from mlfs.explain.question import FEWEST_SAMPLES, DataSet
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts import layout_names
from mlfs.tree.manifest import Manifest

SampleIds = npt.NDArray[np.int32]
MakeSamples = Callable[[JobSpec], npt.NDArray[np.int64]]

MOST_CANDIDATES = 8
_MOST_ROOTS = 4
_LEAST_SHARE = 0.5
# Sorting the names of more files in every way costs the loop too much of the interpreter.
_MOST_FILES_FOR_ALL_LAYOUTS = 2_000_000
_LIKELY_LAYOUTS = ("imagefolder", "sorted")


class Candidate(NamedTuple):
    """A data set that it may be: the job fields that name it, the entry of each index, the reads as indices."""

    fields: dict[str, object]
    ids: SampleIds
    data_set: DataSet


def candidates(manifest: Manifest, heads: Sequence[Sequence[int]], make_samples: MakeSamples) -> list[Candidate]:
    """All of them, without those that number the files as an earlier one does."""
    found: list[Candidate] = []
    known: list[SampleIds] = []
    layouts = list(_LIKELY_LAYOUTS)
    if manifest.n_files <= _MOST_FILES_FOR_ALL_LAYOUTS:
        layouts += [name for name in layout_names() if name not in _LIKELY_LAYOUTS]
    for root in roots(manifest, heads):
        for layout in layouts:
            if len(found) == MOST_CANDIDATES:
                return found
            fields: dict[str, object] = {"root": root, "layout": layout}
            try:
                numbered = make_samples(parse_job(fields | {"name": JOB_NAME, "epochs": 1}))
            except JobError:
                continue  # no samples in this layout
            ids = numbered.astype(np.int32)  # kept while the search runs
            if len(ids) < FEWEST_SAMPLES or any(np.array_equal(ids, other) for other in known):
                continue
            known.append(ids)
            data_set = as_indices(heads, ids)
            read = sum(len(head) for head in heads)
            if sum(len(head) for head in data_set.heads) >= _LEAST_SHARE * read:
                found.append(Candidate(fields, ids, data_set))
    return found


def roots(manifest: Manifest, heads: Sequence[Sequence[int]]) -> list[str]:
    """The deepest directory that holds all files read, and those above it; as paths."""
    parents = manifest.parent_view
    common: list[int] | None = None
    for entry in {parents[entry] for head in heads for entry in head}:
        chain = [entry]
        while chain[-1]:
            chain.append(parents[chain[-1]])
        chain.reverse()
        if common is not None:
            same = sum(1 for _ in _while_equal(common, chain))
            chain = chain[:same]
        common = chain
    paths = [manifest.path(entry).decode("utf-8", "surrogateescape") for entry in reversed(common or [0])]
    return paths[:_MOST_ROOTS]


def _while_equal(one: list[int], other: list[int]) -> list[int]:
    same = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same.append(a)
    return same


def as_indices(heads: Sequence[Sequence[int]], ids: SampleIds) -> DataSet:
    """The reads as dataset indices; what is no sample is left out. Of a file that is several samples, the first."""
    wanted = np.unique(np.fromiter((entry for head in heads for entry in head), dtype=np.int64))
    at = np.flatnonzero(np.isin(ids, wanted))
    index_of = dict(zip(ids[at][::-1].tolist(), at[::-1].tolist(), strict=True))
    return DataSet(len(ids), tuple(tuple(index_of[entry] for entry in head if entry in index_of) for head in heads))
