"""All reads to come: who reads which sample in which epoch, when next, and how far apart.

Pure. In: the ranks' access streams, epoch by epoch, and which node each rank runs on. Out: arrays by sample: readers
by epoch, frequencies, first use, next uses, reuse distances. Called by whoever plans (mlfs.plan.owners takes the
readers) and by the benchmark.

Sizes: `Readers` holds one or two bytes a read: 115 MB for 1.3 million samples, 90 epochs and 16 nodes, 2.6 GB for 14.2
million samples and 1,024 nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.unsignedinteger[Any]]

NEVER = -1
_FEW = 64


class EpochStreams(Protocol):
    """What is needed of a job: `mlfs.orders.streams.JobStreams` is one."""

    @property
    def epochs(self) -> int:
        """How many epochs the job has."""

    def epoch_ids(self, epoch: int, rank: int) -> Ids:
        """The samples that a rank reads in an epoch, in read order; negative: none of ours."""


class Readers:
    """Which node reads each sample in each epoch.

    Attributes:
        by_epoch: shape (epochs, samples): the node that reads the sample in that epoch, `nobody` for none. Of several
            reads in one epoch (padding, repeated augmentation) one stands here, the others in `more`.
        more: further reads, shape (k, 3): epoch, sample, node.
        filled: epochs that are there, a prefix; the rest of `by_epoch` means nothing yet.
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
        """How many samples there are."""
        return int(self.by_epoch.shape[1])

    def add(self, streams: Sequence[tuple[int, Ids]]) -> None:
        """Take the next epoch: (node, ids) for each rank, ids negative for what is not ours."""
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
        """Every read of the epoch but the one of each sample that stands in `by_epoch`."""
        ids = np.concatenate([part for _, part in parts])
        nodes = np.concatenate([np.full(len(part), node, dtype=np.int64) for node, part in parts])
        kept = np.flatnonzero(self.by_epoch[epoch, ids] == nodes)
        _, first = np.unique(ids[kept], return_index=True)
        rest = np.ones(len(ids), dtype=bool)
        rest[kept[first]] = False
        return np.stack([np.full(np.count_nonzero(rest), epoch), ids[rest], nodes[rest]], axis=1).astype(np.int64)

    def frequency_at(self, node: int) -> npt.NDArray[np.uint16]:
        """How often a node reads each sample in the epochs that are there, shape (n_samples,)."""
        counts = np.zeros(self.n_samples, dtype=np.uint16)
        for row in self.by_epoch[: self.filled]:
            counts += row == node
        np.add.at(counts, self.more[self.more[:, 2] == node, 1], 1)
        return counts


def read_epochs(
    streams: EpochStreams, node_of_rank: Sequence[int], n_samples: int, epochs: Iterable[int] | None = None
) -> Iterator[Readers]:
    """The readers of a job, given out again after each epoch: the first epoch's are there at once.

    Args:
        streams: the job. node_of_rank: by rank, 0 .. n_nodes-1. n_samples: above every id.
        epochs: which ones (default: all), in that order.
    """
    wanted = list(range(streams.epochs) if epochs is None else epochs)
    readers = Readers(n_samples, max(node_of_rank) + 1, len(wanted))
    for epoch in wanted:
        readers.add([(node, streams.epoch_ids(epoch, rank)) for rank, node in enumerate(node_of_rank)])
        yield readers


def first_uses(epochs: Iterable[Ids], n_samples: int) -> Ids:
    """Linear position of each sample's first read in a stream given epoch by epoch, `NEVER` for none."""
    first = np.full(n_samples, NEVER, dtype=np.int64)
    base = 0
    for ids in epochs:
        inside = np.flatnonzero(ids >= 0)
        samples, index = np.unique(ids[inside], return_index=True)
        fresh = first[samples] == NEVER
        first[samples[fresh]] = base + inside[index[fresh]]
        base += len(ids)
    return first


class EpochUses(NamedTuple):
    """One epoch of a stream, looked at from behind.

    Attributes:
        epoch: which one. base: linear position of its first read.
        next_use: linear position of the same sample's next read, `NEVER` for none; shape of the epoch's ids.
    """

    epoch: int
    base: int
    next_use: Ids

    @property
    def reuse_distance(self) -> Ids:
        """Reads of the stream from this read of the sample to the next, `NEVER` for none."""
        here = np.arange(self.base, self.base + len(self.next_use), dtype=np.int64)
        return np.where(self.next_use == NEVER, NEVER, self.next_use - here)


def next_uses(epoch_ids: Callable[[int], Ids], lengths: Sequence[int], n_samples: int) -> Iterator[EpochUses]:
    """The backward pass: from the last epoch to the first, when each read's sample is read next.

    Holds one number a sample, whatever the number of epochs.

    Args:
        epoch_ids: the stream of an epoch, negative ids for what is not ours. lengths: its length, by epoch.
    """
    upcoming = np.full(n_samples, NEVER, dtype=np.int64)
    base = sum(lengths)
    for epoch in range(len(lengths) - 1, -1, -1):
        ids = epoch_ids(epoch)
        base -= len(ids)
        yield EpochUses(epoch, base, _step_back(ids, base, upcoming))


def _step_back(ids: Ids, base: int, upcoming: Ids) -> Ids:
    """Next use of every read of an epoch; leaves each sample's first read of it in `upcoming`."""
    result = np.full(len(ids), NEVER, dtype=np.int64)
    inside = np.flatnonzero(ids >= 0)
    order = inside[np.argsort(ids[inside], kind="stable")]
    ordered = ids[order]
    repeated = ordered[1:] == ordered[:-1]
    last = np.append(~repeated, True)[: len(order)]
    first = np.append(True, ~repeated)[: len(order)]
    result[order[last]] = upcoming[ordered[last]]
    result[order[:-1][repeated]] = base + order[1:][repeated]
    upcoming[ordered[first]] = base + order[first]
    return result
