"""All reads to come: which node reads which sample in which epoch.

Pure. In: the ranks' access streams, epoch by epoch, and which node each rank runs on. Out: readers by epoch and sample,
from which `mlfs.plan.owners` places. Called by `mlfs.engine.shared_plan`.

`Readers` holds one or two bytes for each read: 115 MB for 1.3 million samples, 90 epochs and 16 nodes, 2.6 GB for 14.2
million samples and 1,024 nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.unsignedinteger[Any]]

# A rank's reads of samples that other ranks have read in the epoch already, as padding makes them. Up to so many are
# noted one by one, which is quicker than the pass over the whole epoch that finds any number of them.
_FEW = 64


class Readers:
    """Which node reads each sample in each epoch.

    Attributes:
        by_epoch: shape (epochs, samples): the node that reads the sample in that epoch, `nobody` for none.
        more: the others of several reads in one epoch (padding, repeated augmentation), shape (k, 3): epoch, sample,
            node.
        filled: how many epochs were added so far; rows of `by_epoch` from there on mean nothing yet.
    """

    def __init__(self, n_samples: int, n_nodes: int, epochs: int) -> None:
        if not 1 <= n_nodes < 2**16:
            raise ValueError(f"{n_nodes} nodes: 1 to 65535 are supported")
        dtype: type[np.uint8] | type[np.uint16] = np.uint8 if n_nodes < 2**8 else np.uint16
        self.n_nodes = n_nodes
        self.nobody = int(np.iinfo(dtype).max)
        self.by_epoch: Nodes = np.empty((epochs, n_samples), dtype=dtype)
        self.more: npt.NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)
        self.filled = 0

    @property
    def n_samples(self) -> int:
        return int(self.by_epoch.shape[1])

    def add(self, streams: Sequence[tuple[int, Ids]]) -> None:
        """Add the next epoch: (node, ids) for each rank. Negative ids are skipped."""
        epoch, row = self.filled, self.by_epoch[self.filled]
        row.fill(self.nobody)
        parts, again, read = [], [], 0
        for node, ids in streams:
            inside = ids[ids >= 0] if len(ids) and ids.min() < 0 else ids
            repeated = np.flatnonzero(row[inside] != self.nobody)
            again += [(epoch, int(sample), node) for sample in inside[repeated[:_FEW]]]
            fresh = np.delete(inside, repeated) if len(repeated) else inside
            row[fresh] = node
            read += len(inside)
            parts.append((node, inside))
        if read - np.count_nonzero(row != self.nobody) > len(again):  # many, or within one rank's stream
            self.more = np.concatenate([self.more, self._repeated(epoch, parts)])
        elif again:  # padding
            self.more = np.concatenate([self.more, np.array(again, dtype=np.int64)])
        self.filled += 1

    def _repeated(self, epoch: int, parts: list[tuple[int, Ids]]) -> npt.NDArray[np.int64]:
        """All reads of the epoch, without the one of each sample that is in `by_epoch`."""
        ids = np.concatenate([part for _, part in parts])
        nodes = np.concatenate([np.full(len(part), node, dtype=np.int64) for node, part in parts])
        kept = np.flatnonzero(self.by_epoch[epoch, ids] == nodes)
        _, first = np.unique(ids[kept], return_index=True)
        rest = np.ones(len(ids), dtype=bool)
        rest[kept[first]] = False
        return np.stack([np.full(np.count_nonzero(rest), epoch), ids[rest], nodes[rest]], axis=1).astype(np.int64)
