"""Counts who read what from the PFS and who gave what to others, epoch by epoch, in a cluster run in detail.

In: each sample that has landed on a node, and where it came from. Out: bytes by epoch, and by epoch and node. A fetch
runs ahead of its reader, often across the end of an epoch, so the clock does not tell which epoch it is for: the order
does. A node's first fetch of a sample is for the first epoch in which it reads the sample, its second for the next. (A
read that finds the pages of the epoch before needs no fetch; the fetch after it then counts for an epoch too early.)
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from mlfs.plan.node_reads import Nodes, Readers

FROM_PFS = -1
"""Stands for the PFS where a node's number says where bytes came from."""


class SimulatedLedger:
    """The bytes that nodes read from the PFS and gave to others, by epoch.

    Args:
        sizes: bytes by sample. owner: the node that owns each sample, below 0 for none. readers: shape (E, F), the node
            that reads the sample in each epoch.

    Attributes:
        pfs_bytes: by epoch. given_bytes: by epoch and node, what it gave to other nodes.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], owner: Nodes, readers: Readers, nodes: int) -> None:
        self.pfs_bytes = [0] * len(readers)
        self.given_bytes = np.zeros((len(readers), nodes), dtype=np.int64)
        self._sizes, self._owner, self._readers = sizes, owner, readers
        self._fetched: defaultdict[tuple[int, int], int] = defaultdict(int)

    def landed(self, node: int, sample: int, origin: int) -> None:
        """A sample has landed on a node; it came from that node, or `FROM_PFS`."""
        if origin == node:
            return
        if origin == FROM_PFS and self._owner[sample] == node:
            # The owner fetches for whoever reads the sample first.
            self.pfs_bytes[self._epoch_of_fetch(sample, self._owner[sample], anybody=True)] += int(self._sizes[sample])
            return
        epoch = self._epoch_of_fetch(sample, node)
        if origin == FROM_PFS:
            self.pfs_bytes[epoch] += int(self._sizes[sample])
        else:
            self.given_bytes[epoch, origin] += int(self._sizes[sample])

    def _epoch_of_fetch(self, sample: int, node: int, anybody: bool = False) -> int:
        """The epoch that this fetch of a node is for: the earliest that no fetch before it was for."""
        column = self._readers[:, sample]
        nobody = np.iinfo(column.dtype).max
        epochs = np.flatnonzero(column != nobody if anybody else column == node)
        done = self._fetched[node, sample]
        self._fetched[node, sample] += 1
        return int(epochs[min(done, len(epochs) - 1)]) if len(epochs) else 0

    def load(self, epoch: int) -> float:
        """The busiest node's bytes given in an epoch, over the mean of all nodes that own anything; 0 if none gave."""
        owners = np.bincount(self._owner[self._owner >= 0], minlength=self.given_bytes.shape[1]) > 0
        given = self.given_bytes[epoch][owners]
        return float(given.max() / given.mean()) if len(given) and given.any() else 0.0
