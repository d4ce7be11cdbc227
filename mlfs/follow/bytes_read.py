"""How many bytes a job reads: in an epoch here, and from the PFS.

Pure. In: the first epoch's order and the sizes, bytes that came from the PFS, samples that change their size. Out:
numbers for the status. Used by `mlfs.follow.job`.
"""

from __future__ import annotations

import math

import numpy as np

from mlfs.follow.epoch_index import EpochIndex, Ids
from mlfs.job import JobSpec


class BytesRead:
    """See the module.

    Args:
        sizes: bytes by sample.

    Attributes:
        stream_bytes: of one epoch's streams of the local ranks; 0 before an order is at hand.
        deviation_bytes: how far sizes differ in them, as a standard deviation.
        pfs_by_epoch: what came from the PFS for each epoch.
    """

    def __init__(self, spec: JobSpec, sizes: Ids) -> None:
        self.stream_bytes = 0
        self.deviation_bytes = 0.0
        self.pfs_by_epoch: dict[int, int] = {}
        self._here_of_world = len(spec.ranks), spec.world_size
        self._sizes = sizes

    def epoch_added(self, index: EpochIndex) -> None:
        """An epoch's order is at hand: the first one tells how many bytes an epoch has."""
        if self.stream_bytes:
            return
        count, squares = 0, 0.0
        for ids in index.ids:
            sizes = self._sizes[ids[ids >= 0]]
            count += len(sizes)
            self.stream_bytes += int(sizes.sum())
            squares += float(np.square(sizes, dtype=np.float64).sum())
        variance = squares / max(1, count) - (self.stream_bytes / max(1, count)) ** 2
        self.deviation_bytes = math.sqrt(max(0.0, variance))

    def resized(self, more_bytes: int) -> None:
        """A sample of the job has grown at the source, or shrunk. The ranks here read their share of it."""
        here, world = self._here_of_world
        if self.stream_bytes:
            self.stream_bytes += more_bytes * here // world

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Bytes came from the PFS for an epoch."""
        self.pfs_by_epoch[epoch] = self.pfs_by_epoch.get(epoch, 0) + size_bytes

    def by_epoch(self) -> dict[int, int]:
        """What came from the PFS for each epoch, ascending."""
        return dict(sorted(self.pfs_by_epoch.items()))

    def go_on_from(self, before: BytesRead) -> None:
        """Take over what was read from the PFS for the job that this one replaces."""
        self.pfs_by_epoch = dict(before.pfs_by_epoch)
