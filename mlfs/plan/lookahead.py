"""All reads to come: who reads which sample in which epoch, when it is read next, and how far apart the reads are.

Pure. In: the ranks' access streams, epoch by epoch, and which node each rank runs on. Out: arrays by sample: readers
by epoch, frequencies, first use, next uses, reuse distances. `mlfs.plan.owners` places by the readers;
scripts/bench_plan.py measures both.

`Readers` holds one or two bytes for each read: 115 MB for 1.3 million samples, 90 epochs and 16 nodes, 2.6 GB for 14.2
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
# Reads of samples that were read before in the epoch, as padding at its end makes them. Up to so many are noted one by
# one, which is quicker than the pass over the whole epoch that finds any number of them.
_FEW = 64


class EpochStreams(Protocol):
    """What is needed of a job. `mlfs.orders.streams.JobStreams` has it."""

    @property
    def epochs(self) -> int:
        """How many epochs the job has."""

    def epoch_ids(self, epoch: int, rank: int) -> Ids:
        """The samples that a rank reads in an epoch, in read order; a negative id is no sample of this data set."""


class Readers:
    """Which node reads each sample in each epoch.

    Attributes:
        by_epoch: shape (epochs, samples): the node that reads the sample in that epoch, `nobody` for none. Of several
            reads in one epoch (padding, repeated augmentation) one is here and the others are in `more`.
        more: further reads, shape (k, 3): epoch, sample, node.
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
        """How many samples there are."""
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

    def frequency_at(self, node: int) -> npt.NDArray[np.uint16]:
        """How often a node reads each sample in the epochs that were added, shape (n_samples,)."""
        counts = np.zeros(self.n_samples, dtype=np.uint16)
        for row in self.by_epoch[: self.filled]:
            counts += row == node
        np.add.at(counts, self.more[self.more[:, 2] == node, 1], 1)
        return counts


def read_epochs(
    streams: EpochStreams, node_of_rank: Sequence[int], n_samples: int, epochs: Iterable[int] | None = None
) -> Iterator[Readers]:
    """The readers of a job. They are yielded after each epoch, so that a plan can begin with the first one.

    Args:
        streams: the job.
        node_of_rank: the node of each rank, 0 .. n_nodes-1.
        n_samples: more than every id.
        epochs: which ones are wanted, in that order (default: all).
    """
    wanted = list(range(streams.epochs) if epochs is None else epochs)
    readers = Readers(n_samples, max(node_of_rank) + 1, len(wanted))
    for epoch in wanted:
        readers.add([(node, streams.epoch_ids(epoch, rank)) for rank, node in enumerate(node_of_rank)])
        yield readers


def first_uses(epochs: Iterable[Ids], n_samples: int) -> Ids:
    """The linear position of each sample's first read in a stream, `NEVER` for a sample that is not read."""
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
    """The next uses of one epoch of a stream.

    Attributes:
        epoch: which one it is.
        base: the linear position of its first read.
        next_use: for each read, the linear position of the same sample's next read, `NEVER` for none.
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
    """When each read's sample is read next, in a pass from the last epoch back to the first.

    The pass holds one number for each sample, whatever the number of epochs.

    Args:
        epoch_ids: gives the stream of an epoch; negative ids are no samples of this data set.
        lengths: the length of the stream in each epoch.
    """
    upcoming = np.full(n_samples, NEVER, dtype=np.int64)
    base = sum(lengths)
    for epoch in range(len(lengths) - 1, -1, -1):
        ids = epoch_ids(epoch)
        base -= len(ids)
        yield EpochUses(epoch, base, _step_back(ids, base, upcoming))


def _step_back(ids: Ids, base: int, upcoming: Ids) -> Ids:
    """The next use of every read of an epoch. Afterwards `upcoming` has each sample's first read in this epoch."""
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
