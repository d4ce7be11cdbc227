"""Who reads what how often, and copies that several nodes may keep of one sample.

Pure. In: the readers by epoch. Out: each node's samples with their counts; look-ups of copies by node. Called by the
policies whose nodes each keep what they read themselves (NoPFS, Lobster, mlfs).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mlfs.plan.policies.policy import Ids, Readers


def by_node(readers: Readers, nodes: int) -> list[list[Ids]]:
    """Each node's samples of each epoch, ascending: result[epoch][node]."""
    result = []
    for row in readers:
        order = np.argsort(row, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(row, minlength=nodes)[:nodes])
        result.append(np.split(order[: ends[-1]], ends[:-1]))
    return result


def counts_by_node(readers: Readers, nodes: int) -> Iterator[tuple[int, Ids, npt.NDArray[np.int64]]]:
    """(node, its samples ascending, how often it reads each) for every node: r_k of NoPFS, Section 3.1."""
    epochs = by_node(readers, nodes)
    for node in range(nodes):
        ids, counts = np.unique(np.concatenate([epoch[node] for epoch in epochs]), return_counts=True)
        yield node, ids, counts


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
