"""The result of every sampler: the order in which each rank reads the data set, by dataset index.

In: a job, the number of samples, and a way from a path to a dataset index. Out: an `Order`. Implemented by the modules
of `mlfs.orders` and by other packages (entry point group `mlfs.orders`), used by `mlfs.orders.streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mlfs.job import JobSpec

Indices = npt.NDArray[np.int64]

# From a path (bytes, relative to the job's root or absolute) to its dataset index, -1 for what is not a sample.
Resolve = Callable[[bytes], int]

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
