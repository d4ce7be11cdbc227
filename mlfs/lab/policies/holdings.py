"""Copies that several nodes may keep of one sample.

Pure. In: what a node holds, and what is wanted. Out: where each of the wanted is among what is held. Called by the
policies whose nodes each keep what they read themselves (NoPFS, Lobster, mlfs).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfs.plan.node_reads import Ids


class Finder:
    """Finds a node's own copies among many samples: a scratch array by sample, cleaned after each use."""

    def __init__(self, n_samples: int) -> None:
        self._slot = np.full(n_samples + 1, -1, dtype=np.int32)

    def slots(self, held: Ids, wanted: Ids) -> npt.NDArray[np.int32]:
        """Index into `held` of each wanted sample, -1 where it is not held; any shape. Id -1 is never held."""
        self._slot[held] = np.arange(len(held), dtype=np.int32)
        found: npt.NDArray[np.int32] = self._slot[wanted]
        self._slot[held] = -1
        return found


def first_of_each(values: Ids) -> npt.NDArray[np.bool_]:
    """Which of the values (any shape) stand where their value comes first: all of them in a permutation."""
    flat = values.ravel()
    ordered = np.sort(flat)
    if (ordered[1:] != ordered[:-1]).all():
        return np.ones(values.shape, dtype=bool)
    mask = np.zeros(len(flat), dtype=bool)
    mask[np.unique(flat, return_index=True)[1]] = True
    return mask.reshape(values.shape)
