"""Finds the data sets that the files read may belong to: a directory, and a layout by which a framework numbers files.

In: first reads as entries, the tree. Out: `Candidate`s, each with its reads as dataset indices. Called by
`mlfs.explain.inference` in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import takewhile, zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.explain.fields import JOB_NAME
from mlfs.explain.question import FEWEST_SAMPLES, DataSet, places_of
from mlfs.explain.usual import MOST_FOR_LOOPS
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts import layout_names
from mlfs.orders.layouts.rows import ROWS
from mlfs.orders.order import Indices
from mlfs.tree.manifest import Manifest

SampleIds = npt.NDArray[np.int32]
MakeSamples = Callable[[JobSpec], npt.NDArray[np.int64]]

# Each candidate multiplies the hypotheses that every seed is compared with.
MOST_CANDIDATES = 8
# The root of a data set, a part of it (`train`), and two more.
_MOST_ROOTS = 4
# A candidate must have half of the files read: the others may be of another data set, or be no samples.
_LEAST_SHARE = 0.5
# Sorting the names of more files in every way would keep the interpreter from the daemon's loop for too long.
_MOST_FILES_FOR_ALL_LAYOUTS = 2_000_000
_LIKELY_LAYOUTS = ("imagefolder", "sorted")


class Candidate(NamedTuple):
    """A data set that the files read may belong to.

    Attributes:
        fields: those of a job that name the data set. ids: the entry of each dataset index.
        data_set: the reads as dataset indices.
    """

    fields: dict[str, object]
    ids: SampleIds
    data_set: DataSet


def candidates(
    manifest: Manifest, heads: Sequence[Sequence[int]], make_samples: MakeSamples, directories: Sequence[int]
) -> list[Candidate]:
    """The likeliest first, each numbering of the same files once.

    Args:
        directories: from the root down to the deepest one that the data set may be.
    """
    found: list[Candidate] = []
    known: list[SampleIds] = []
    layouts = list(_LIKELY_LAYOUTS)
    if manifest.n_files <= _MOST_FILES_FOR_ALL_LAYOUTS:
        layouts += [name for name in layout_names() if name not in (*_LIKELY_LAYOUTS, *ROWS)]
    roots = [manifest.path(entry).decode("utf-8", "surrogateescape") for entry in reversed(directories)]
    for root in roots[:_MOST_ROOTS]:
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
                found.append(Candidate(fields, ids, data_set._replace(groups=_groups(manifest, ids))))
    return found


def _groups(manifest: Manifest, ids: SampleIds) -> npt.NDArray[np.int32] | None:
    """The directories of samples, if there are several; None for samples of several files, or elsewhere."""
    if ids.ndim > 1 or len(ids) > MOST_FOR_LOOPS or np.min(ids) < 0:
        return None
    groups = manifest.parent[ids].astype(np.int32)
    return groups if np.any(groups != groups[0]) else None


def candidates_apart(
    manifest: Manifest, heads: Sequence[Sequence[int]], needed: int, make_samples: MakeSamples
) -> list[Candidate]:
    """The same, where processes may read different data sets: in each directory with those that read there.

    Args:
        needed: reads by which a process shows the directory that it reads.
    """
    chains = {tuple(_common_directory(manifest, head)) for head in heads if len(head) >= needed}
    while len(chains) > _MOST_ROOTS:  # the classes of one data set, say: what holds them is asked about
        longest = max(map(len, chains))
        chains = {chain[:-1] if len(chain) == longest else chain for chain in chains}
    make_once, of_each = cache(make_samples), []
    for chain in sorted(chains, key=len, reverse=True):
        inside = [head for head in heads if 2 * sum(chain[-1] in _directories(manifest, e) for e in head) > len(head)]
        of_each.append(candidates(manifest, inside, make_once, chain))
    found: list[Candidate] = []
    for of_one in zip_longest(*of_each):  # the likeliest of each directory first
        for candidate in of_one:
            if candidate is None or len(found) == MOST_CANDIDATES:
                continue
            same = next((at for at, other in enumerate(found) if np.array_equal(other.ids, candidate.ids)), None)
            if same is None:
                found.append(candidate)
            elif len(candidate.data_set.heads) > len(found[same].data_set.heads):
                found[same] = candidate
    return found


def part_of(candidate: Candidate, part: Mapping[str, object], make_samples: MakeSamples) -> Candidate:
    """A part of a data set.

    Args:
        part: the fields of a job that say which.
    """
    fields = candidate.fields | dict(part)
    ids = make_samples(parse_job(fields | {"name": JOB_NAME, "epochs": 1})).astype(np.int32)
    return candidate._replace(fields=fields, ids=ids)


def _common_directory(manifest: Manifest, entries: Sequence[int]) -> list[int]:
    """The deepest directory that holds all of these files, as the directories from the root down to it."""
    directories = {manifest.parent_view[entry] for entry in entries}
    chains = [[*_directories(manifest, one)[::-1], one] for one in directories]
    same = takewhile(lambda level: len(set(level)) == 1, zip(*chains, strict=False))
    return [level[0] for level in same] or [0]


def _directories(manifest: Manifest, entry: int) -> list[int]:
    """The directories that an entry lies in, the deepest first."""
    parents, found = manifest.parent_view, []
    while entry:
        entry = parents[entry]
        found.append(entry)
    return found


def as_indices(heads: Sequence[Sequence[int]], ids: SampleIds | Indices) -> DataSet:
    """The reads as dataset indices. A file that is no sample is left out, one that is several counts as the first."""
    index_of = places_of(ids, (entry for head in heads for entry in head))
    return DataSet(len(ids), tuple(tuple(index_of[entry] for entry in head if entry in index_of) for head in heads))
