"""The order in which each rank reads the data set, by dataset index: the contract of all samplers, made by name.

In: a job, the number of samples, and a way from a path to a dataset index. Out: an `Order`. Implemented by the modules
of `mlfs.orders` and by other packages (entry point group `mlfs.orders`). Which samplers there are, the built-in ones
and those that other packages add, is `mlfs.job.names`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.job.names import sampler_factories, sampler_names
from mlfs.job.refusals import refuse

if TYPE_CHECKING:
    from mlfs.job import JobSpec

Indices = npt.NDArray[np.int64]

# From a path (bytes, relative to the job's root or absolute) to its dataset index, -1 for what is not a sample.
Resolve = Callable[[bytes], int]


@runtime_checkable
class KnowsFiles(Protocol):
    """A way from paths to indices that also says what files hold."""

    def files(self) -> Indices:
        """A number for the file of each sample, by dataset index."""

    def counts(self) -> Indices | None:
        """The samples of their library that each file holds, by dataset index; None where the layout does not say."""


# How many epochs a sampler keeps: all ranks share an epoch's permutation, and two epochs meet at a boundary.
EPOCHS_KEPT = 2


class Order(Protocol):
    """One job's order of reads: deterministic, lazy (an epoch is made when asked for), callable from any thread."""

    def stream_length(self, epoch: int) -> int:
        """Samples that each rank reads in the epoch; where ranks differ, those of the rank that reads most."""

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices that a rank reads in the epoch, in read order, shape (<= stream_length(epoch),).

        Every index is in 0 .. n_samples - 1. May be a read-only view.

        Raises:
            JobError: the order rests on something that is not there (an order file).
        """


OrderFactory = Callable[["JobSpec", int, Resolve | None], Order]


def build_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Order:
    """Make the order of a job.

    Args:
        spec: the job; its `sampler` says which order.
        n_samples: how long the data set is; dataset indices are 0 .. n_samples - 1.
        resolve: from a path to a dataset index, for samplers that read paths.

    Raises:
        JobError: the sampler is unknown, cannot be loaded, or cannot serve this job.
    """
    point = sampler_factories().get(spec.sampler)
    if point is None:
        refuse("sampler", spec.sampler, f"one of {', '.join(sampler_names())}")
    try:
        factory = point.load()
    except Exception as error:  # whatever another package does when it is imported
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        hint = f"it comes from {point.value}; repair or remove that package"
        raise JobError(f'the sampler "{spec.sampler}" cannot be loaded: {reason}', hint, "sampler") from error
    order: Order = factory(spec, n_samples, resolve)
    return order
