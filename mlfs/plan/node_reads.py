"""Counts how often each node reads each sample: the arrays with which owners are chosen.

Pure. In: the reader of each sample in each epoch. Out: each node's samples with their counts. Called by
`mlfs.plan.owners` and the policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

# Samples; their owners or holders; the classes in which they lie; and who reads them, by epoch and sample, where the
# largest value of the dtype stands for nobody.
Ids = npt.NDArray[np.int32]
Nodes = npt.NDArray[np.int16]
Storages = npt.NDArray[np.int8]
Readers = npt.NDArray[np.unsignedinteger[Any]]

# A sample that no node and no class keeps lies at the source only.
PFS = -1


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
