"""The sampler "explicit": the order that a file tells, one path or dataset index a line.

In: a job's order_file and world_size, and a way from paths to indices. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`. Source: none; it is for scripts whose order mlfs cannot compute but the user can write down.

"{epoch}" in the path is replaced by the epoch, "{rank}" by the rank. With "{rank}" a file is one rank's stream, without
it is the whole world's, and rank r takes lines r, r + world_size, ... with nothing padded or cut. The first line
decides whether a file holds indices (decimal digits) or paths; a path of digits alone can be written as "./123".
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.order_file import Line, count_lines, read_lines

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_MAX_DIGITS = 18  # fits an int64


class ExplicitOrder:
    """The lines of the files, as dataset indices. A file is read when its epoch is first asked for."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        self._template = spec.order_file or ""
        self._per_rank = "{rank}" in self._template
        self._world_size = spec.world_size
        self._n_samples = n_samples
        self._resolve = resolve
        files = spec.world_size if self._per_rank else 1
        self._file = lru_cache(maxsize=EPOCHS_KEPT * files)(self._load)
        # Whoever adds up the lengths of all epochs should not have every path of every epoch looked up.
        self._count = lru_cache(maxsize=None)(count_lines)

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most; counts the lines of the epoch's files."""
        if self._per_rank:
            return max(self._count(self._path(epoch, rank)) for rank in range(self._world_size))
        return -(-self._count(self._path(epoch, 0)) // self._world_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order; JobError names the file and the line that cannot be used."""
        indices = self._file(self._path(epoch, rank))
        return indices if self._per_rank else indices[rank :: self._world_size]

    def _path(self, epoch: int, rank: int) -> str:
        return self._template.replace("{epoch}", str(epoch)).replace("{rank}", str(rank))

    def _load(self, path: str) -> Indices:
        lines = read_lines(path)
        read = self._read_index if lines.first.text.isdigit() else self._read_path
        indices = np.fromiter((read(path, line) for line in lines), dtype=np.int64, count=len(lines))
        indices.flags.writeable = False  # every caller gets a view of it
        return indices

    def _read_index(self, path: str, line: Line) -> int:
        if line.text.isdigit() and len(line.text) <= _MAX_DIGITS and int(line.text) < self._n_samples:
            return int(line.text)
        allowed = f"must be an index from 0 to {self._n_samples - 1}, like the first line"
        raise _bad_line(path, line, allowed, "")

    def _read_path(self, path: str, line: Line) -> int:
        index = -1 if self._resolve is None else self._resolve(line.text)
        if index < 0:
            hint = 'is the path relative to the job\'s root? "layout": "sorted" takes every file as a sample'
            raise _bad_line(path, line, "is not the path of a sample", hint)
        return index


def _bad_line(path: str, line: Line, what: str, hint: str) -> JobError:
    text = line.text[:80].decode("utf-8", "surrogateescape")
    return JobError(f"order file {path!r}, line {line.number}: {text!r} {what}", hint, "order_file")
