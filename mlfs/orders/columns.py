"""A number for each sample, by which orders weigh or group: of a file that the user gives, or of the tree.

In: a job's weights_file, column_file and column; how long the data set is; what knows the tree. Out: an array by
dataset index. Called by `mlfs.orders.composed`, `mlfs.orders.torch_samplers` and `mlfs.explain.word_search`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.draws import Column
from mlfs.orders.order import Resolve
from mlfs.orders.order_file import read_weights

if TYPE_CHECKING:
    from mlfs.job import JobSpec


@runtime_checkable
class KnowsTheTree(Protocol):
    """A `Resolve` that can say something of each sample, as that of `mlfs.orders.streams` can."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes by dataset index."""

    def directories(self) -> npt.NDArray[np.int64]:
        """A number for the directory of each sample, by dataset index."""


def weights_of(path: str) -> Column:
    """The weights that a file has.

    Raises:
        JobError: the file cannot be read, or these are no weights.
    """
    weights = read_weights(path)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        message = f"the weights file {path!r}: weight {bad[0]} (from 0) is {weights[bad[0]]}"
        raise JobError(message, "weights are numbers, 0 or more", "weights_file")
    total = weights.sum()
    if not 0 < total < np.inf:
        raise JobError(f"the weights file {path!r}: the weights add up to {total}", "", "weights_file")
    return weights


def weights_for(spec: JobSpec, n_samples: int) -> Column:
    """The job's weights, one a sample. Raises: JobError."""
    return _one_a_sample(weights_of(str(spec.weights_file)), n_samples, str(spec.weights_file), "weights_file")


def column_of(spec: JobSpec, n_samples: int, resolve: Resolve | None) -> Column | None:
    """The column by which the job groups; None where it names none. Raises: JobError."""
    if spec.column_file is not None:
        read = read_weights(spec.column_file, "column_file")
        return _one_a_sample(read, n_samples, spec.column_file, "column_file")
    if spec.column is None:
        return None
    if not isinstance(resolve, KnowsTheTree):
        raise JobError(f'job field "column" is "{spec.column}", and no tree is known', "give column_file", "column")
    return (resolve.sizes() if spec.column == "size" else resolve.directories()).astype(np.float64)


def _one_a_sample(column: Column, n_samples: int, path: str, field: str) -> Column:
    if len(column) == n_samples:
        return column
    what = "weights" if field == "weights_file" else "numbers"
    message = f"the {field.replace('_', ' ')} {path!r} has {len(column)} {what} for {n_samples} samples"
    raise JobError(message, f"write one {what[:-1]} for each sample, in the data set's order", field)
