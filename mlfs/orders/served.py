"""Orders that mlfs serves in place of the sampler's own: dealt by where samples lie, or shuffled where they lie.

In: the sampler's own ("true") order, the job with its nodes, the samples' sizes. Out: an `Order`. Made by
`mlfs.orders.streams` for a job with `serve`.

A served order is a pure function of the job's fields and the tree. Which node keeps which sample follows from `nodes`
alone (`mlfs.served.partition`), and the plan of a running cluster goes by the same partition. So all nodes compute the
same order, and it goes on as it is when a node is lost: its samples then come from elsewhere.

- locality (Yang and Cong 2019, V): each global batch holds exactly the samples of the true order's, dealt to the ranks
  of the nodes that keep them; each rank has as many as before.
- opportunistic (DeepIO 2018, III): the samples of the true order's epoch, each as often, shuffled anew in rounds
  (`mlfs.served.rounds`), and each global batch dealt by location as above.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.job.ranks import ranks_in
from mlfs.orders.layouts.layout import NOTHING
from mlfs.orders.mt19937 import randperm
from mlfs.orders.order import EPOCHS_KEPT, Indices, Order
from mlfs.orders.polars import splitmix64
from mlfs.served.locality import Ids, Nodes, deal_to_ranks
from mlfs.served.partition import footprints, partition_by_hash
from mlfs.served.refill import Refill, refill_of
from mlfs.served.rounds import Rounds, in_rounds, published_level, rounds_for

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# A small CNN with batch normalization learned as well from this level, on a tree sorted by class; with 0.8 it lost
# thirteen points in its first epochs (docs/served-orders.md, "What it does to learning").
LEVEL = 0.9
# Samples that are dealt at once: some hundred megabytes of intermediate arrays.
SAMPLES_AT_ONCE = 1 << 21

Sizes = npt.NDArray[np.int64]


class ServedOrder:
    """The order of a job that mlfs serves.

    Args:
        true: the sampler's own order. sizes_bytes: by dataset index. entries: by dataset index, where in the tree the
            sample lies; -1 for nowhere.

    Attributes:
        kept: by dataset index, the node that keeps the sample, and in which of its classes.
        tree: a hash of all that the order rests on in the tree: nodes whose trees differ in that serve other orders.
        figures: what `status` shows of an opportunistic order, once an epoch is known; all are alike in that.

    Raises:
        JobError: the job has no nodes.
    """

    def __init__(self, true: Order, spec: JobSpec, sizes_bytes: Sizes, entries: Sizes) -> None:
        if spec.nodes is None:
            hint = "a mount fills it in: give --json-file MOUNT/.mlfs/jobs/NAME.json of a job that is registered there"
            raise JobError('job field "nodes" is missing: a served order is dealt to nodes', hint, "nodes")
        self._true = true
        self._spec = spec
        self._sizes_bytes = sizes_bytes
        self._entries = entries
        self._ranks_of = [list(ranks_in(node.ranks)) for node in spec.nodes]
        numbers = [node.node for node in spec.nodes]
        kept = partition_by_hash(
            sizes_bytes, numbers, [node.keeps_bytes for node in spec.nodes], np.maximum(entries, 0)
        )
        self.kept = kept
        places = np.full(max(numbers) + 2, -1, dtype=np.int16)
        places[numbers] = np.arange(len(numbers), dtype=np.int16)
        # By dataset index, and at last for the places in which nothing is read: which of the job's nodes, -1 for none.
        self._holder: Nodes = places[np.append(kept.node, np.int16(-1))]
        rests_on = hashlib.sha256(self._holder.data)
        for numbers_by_index in (sizes_bytes, entries):
            rests_on.update(np.ascontiguousarray(numbers_by_index).data)
        self.tree = rests_on.hexdigest()[:16]
        self.figures: Mapping[str, float] = {}
        self._dealt = lru_cache(maxsize=EPOCHS_KEPT)(self._deal)
        self._cut = lru_cache(maxsize=EPOCHS_KEPT)(self._cut_epoch)

    def around(self, true: Order, spec: JobSpec) -> Order:
        """The same of another job that reads these samples; its true order, if none is served."""
        return true if spec.serve is None else ServedOrder(true, spec, self._sizes_bytes, self._entries)

    def stream_length(self, epoch: int) -> int:
        return self._true.stream_length(epoch)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        stream = self._dealt(epoch)[:, rank].reshape(-1)
        return stream[stream >= 0].astype(np.int64)

    def refill(self, epoch: int, ranks: Sequence[int], entries: Sequence[Sizes], files: int) -> Refill | None:
        """A node's fetches in the order of the tree; None where the nodes keep all, or there are no rounds.

        Args:
            entries: what each of the node's ranks reads, so many files for each sample.
        """
        if self._spec.nodes is None or self._spec.serve != "opportunistic" or not (cut := self._cut(epoch)[1]).away:
            return None
        places, rooms, batch = [], [], self._batch_size(epoch)
        # A batch that two rounds share counts to the one that has more of it.
        ends = np.rint(np.cumsum(cut.sizes)[:-1] / (batch * self._spec.world_size)).astype(np.int64) * batch
        for rank, read in zip(ranks, entries, strict=True):
            indices = self.rank_stream(epoch, rank)[: len(read) // files]
            away, room = np.zeros(len(read), dtype=np.bool_), np.zeros(len(read), dtype=np.int64)
            away[: len(indices) * files] = np.repeat(self._holder[indices] < 0, files)
            room[: len(indices) * files : files] = footprints(self._sizes_bytes[indices])
            places.append(np.where(away, read, NOTHING))
            rooms.append(room)
        smallest_bytes = min(node.buffer_bytes for node in self._spec.nodes)  # half of a node's staging window
        return refill_of(places, rooms, np.unique(np.append(0, ends)) * files, smallest_bytes)

    def _deal(self, epoch: int) -> Ids:
        """All ranks' batches of an epoch, shape (T, R, b), -1 where nothing is read."""
        ids, holder = self._batches(epoch), self._holder
        if self._spec.serve == "opportunistic":
            elements, cut = self._cut(epoch)
            sequence, reader = in_rounds(
                self._away(elements), cut, len(self._ranks_of), partial(_permute, self._spec.seed, epoch)
            )
            ids[ids >= 0] = elements[sequence]
            holder = holder.copy()
            away = reader >= 0
            holder[elements[away]] = reader[away]
        # While they are dealt, each node has room for as many ranks as the node with the most.
        places = len(self._ranks_of) * max(map(len, self._ranks_of)) * ids.shape[2]
        rows = max(1, SAMPLES_AT_ONCE // places)
        for start in range(0, len(ids), rows):
            ids[start : start + rows] = deal_to_ranks(ids[start : start + rows], self._ranks_of, holder)
        return ids

    def _batches(self, epoch: int) -> Ids:
        """The true order's batches in the same shape."""
        world, batch = self._spec.world_size, self._batch_size(epoch)
        steps = -(-self._true.stream_length(epoch) // batch)
        ids = np.full((world, steps * batch), -1, dtype=np.int32)
        for rank in range(world):
            stream = self._true.rank_stream(epoch, rank)
            ids[rank, : len(stream)] = stream
        return np.ascontiguousarray(ids.reshape(world, steps, batch).transpose(1, 0, 2))

    def _batch_size(self, epoch: int) -> int:
        """The batch size of each rank. One that is more than an epoch has is the whole epoch: no memory is taken for
        the rest."""
        return min(self._spec.batch_size, max(1, self._true.stream_length(epoch)))

    def _cut_epoch(self, epoch: int) -> tuple[Ids, Rounds]:
        """The samples of an epoch, each as often as the true order reads it, and how they are cut in rounds."""
        assert self._spec.nodes is not None
        ids = self._batches(epoch)
        elements = np.sort(ids[ids >= 0])
        away = self._holder[elements] < 0
        away_bytes = int(footprints(self._sizes_bytes[elements[away]]).sum())
        level = LEVEL if self._spec.level is None else self._spec.level
        buffers = sum(node.buffer_bytes for node in self._spec.nodes)
        count = int(away.sum())
        cut = rounds_for(len(elements) - count, count, away_bytes, buffers, len(self._spec.nodes), level)
        if not self.figures:
            published = published_level(len(elements), cut.rounds)
            levels = {"level_reached": round(cut.level, 4), "published_level": round(published, 4)}
            self.figures = levels | {"rounds": cut.rounds, "kept": round(1 - count / max(1, len(elements)), 4)}
        return elements, cut

    def _away(self, elements: Ids) -> npt.NDArray[np.int64]:
        """The positions of the samples that no node keeps, as they lie in the tree."""
        away = np.flatnonzero(self._holder[elements] < 0)
        return away[np.argsort(self._entries[elements[away]], kind="stable")]


def _permute(seed: int, epoch: int, n: int, draw: int) -> npt.NDArray[np.int32]:
    """A permutation that all nodes draw alike: torch's, with a seed that is a hash of the job's, the epoch and the
    draw, so that no two of them are shuffled alike."""
    return randperm(n, splitmix64(splitmix64(seed, epoch + 1), draw + 1))  # of which it takes the low word
