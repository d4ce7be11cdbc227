"""The order of litdata's StreamingDataset over its chunks.

In: the job's seed, shuffle, physical nodes and sizes of batches; how many samples each chunk has, as the layout
"litdata" says. Out: the chunks that each rank's workers open, one of each worker in turn. Made by `mlfs.orders.order`.

Samples are dealt, and not chunks: each worker gets as many batches as any other, from chunks one behind the other, so
the chunk at a border is read on both sides of it. The order within a chunk is no concern of ours: the kernel reads it
ahead from front to back, as litdata asks it to.

Source: streaming/shuffle.py, utilities/shuffle.py, streaming/dataloader.py (epochs count from 1); litdata 0.2.76.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.job.refusals import refuse
from mlfs.orders.deal import in_turn
from mlfs.orders.litdata_resume import LoaderShape, left_to_read
from mlfs.orders.order import EPOCHS_KEPT, Indices, KnowsFiles, Resolve
from mlfs.orders.shuffle import shuffle_from_targets

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_LARGEST_SEED: Final = (1 << 32) - 1
# What is left of an epoch is dealt sample by sample, as litdata does it: about 50 bytes each while it is computed.
_MOST_LEFT: Final = 1 << 24


class LitDataOrder:
    """The order of one job.

    Shuffled, chunks are dealt in a permutation of all (FullShuffle): on several nodes (`physical_nodes`) each keeps
    from the second epoch on the chunks that it has had in the first. With `buffer_size` they are dealt as they stand,
    whole, and each worker swaps its own within a window of so many (WindowShuffle). In the epoch in which a run left
    off (`left_off`) the rest is dealt: a worker that goes to and fro between chunks has each where it comes first.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if not 0 <= spec.seed <= _LARGEST_SEED:
            refuse("seed", spec.seed, f"0 to {_LARGEST_SEED}", "numpy's RandomState takes no other")
        self._nodes = spec.physical_nodes or 1
        if spec.world_size % self._nodes:
            message = f'job field "physical_nodes" is {self._nodes}: it does not divide the ranks'
            raise JobError(message, "give the nodes that the job runs on", "physical_nodes")
        counts = resolve.counts() if isinstance(resolve, KnowsFiles) else None
        self._counts = np.ones(n_samples, np.int64) if counts is None else counts
        if len(self._counts) != n_samples:
            raise JobError(
                "litdata deals all chunks, not a part of them", 'leave "split" and "subset_file" out', "split"
            )
        self._spec, self._workers, self._batch = spec, spec.num_workers or 1, spec.group_batch or 1
        # litdata's own default: ranks that end together
        self._drop_last = spec.drop_last if "drop_last" in spec.model_fields_set else spec.world_size > 1
        self._of_epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._dealt)
        if (stop := spec.left_off) is None:
            return
        then = stop._asdict() | {"drop_last": self._drop_last, "left_off": None}
        del then["epoch"], then["done"], then["yielded"]
        self._before = LitDataOrder(spec.model_copy(update=then), n_samples, resolve)
        if self._counts.sum() > _MOST_LEFT or not self.stream_length(stop.epoch):
            message = f"what is left of epoch {stop.epoch} is nothing, or too much to be told"
            raise JobError(message, f"give --resume {stop.epoch + 1}", "resume")

    def stream_length(self, epoch: int) -> int:
        """Chunks that the rank opens that opens most."""
        lists = self._lists(epoch)
        return max(sum(map(len, lists[at : at + self._workers])) for at in range(0, len(lists), self._workers))

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The chunks that a rank's workers open."""
        return in_turn(self._lists(epoch)[rank * self._workers : (rank + 1) * self._workers], 1)

    def _lists(self, epoch: int) -> list[Indices]:
        """The chunks of each worker of each rank."""
        if self._spec.left_off is not None and self._spec.left_off.epoch == epoch:
            return self._left
        return [mine[0] for mine in self._shares(epoch)]

    def _shares(self, epoch: int) -> list[Indices]:
        return self._of_epoch(epoch if self._spec.set_epoch and self._spec.shuffle else 0)

    @cached_property
    def _left(self) -> list[Indices]:
        stop = self._spec.left_off
        assert stop is not None
        dealt = [np.repeat(*share) for share in self._before._shares(stop.epoch)]
        then = LoaderShape(stop.world_size, stop.num_workers, stop.group_batch)
        now = LoaderShape(self._spec.world_size, self._workers, self._batch)
        by_visits = self._spec.shuffle and self._spec.buffer_size is not None
        left = left_to_read(dealt, then, now, stop.done, stop.yielded, self._drop_last, by_visits)
        return [chunks[np.sort(np.unique(chunks, return_index=True)[1])] for chunks in left]

    def _dealt(self, epoch: int) -> list[Indices]:
        """The chunks of each worker of each rank, and below them how many samples of each."""
        spec, ranks = self._spec, self._spec.world_size
        if not spec.shuffle:
            return self._by_samples(np.arange(len(self._counts)), ranks)
        if spec.buffer_size is not None:
            return [
                mine[:, _within_window(mine.shape[1], spec.buffer_size, self._random(epoch, worker))]
                for worker, mine in enumerate(self._whole())
            ]
        keeps = self._nodes > 1 and epoch > 0
        lists = self._by_samples(self._random(0 if keeps else epoch).permutation(len(self._counts)), ranks)
        if not keeps:
            return lists
        again, of_node = list[Indices](), len(lists) // self._nodes
        for node in range(self._nodes):
            mine = np.concatenate([share[0] for share in lists[node * of_node : (node + 1) * of_node]])
            kept = mine[np.sort(np.unique(mine, return_index=True)[1])]
            again += self._by_samples(self._random(epoch, node).permutation(kept), ranks // self._nodes)
        return again

    def _random(self, epoch: int, *more: int) -> np.random.RandomState:
        return np.random.RandomState([self._spec.seed, epoch + 1, *more])

    def _by_samples(self, chunks: Indices, ranks: int) -> list[Indices]:
        """Chunks that are dealt to so many ranks by their samples."""
        ends = np.cumsum(self._counts[chunks])
        samples = int(ends[-1]) if len(ends) else 0
        batches, rest = divmod(samples // self._batch // ranks, self._workers)
        shares = np.full(ranks * self._workers, batches)
        shares += np.arange(len(shares)) % self._workers < rest
        shares *= self._batch
        if not self._drop_last:
            shares[rest - self._workers] += samples - int(shares.sum())  # rest < workers: one of the last rank's
        borders = np.cumsum(shares)
        begins = np.searchsorted(ends, borders - shares, side="right")
        stops = np.searchsorted(ends, borders, side="left") + 1
        lists = []
        for begin, stop, border, share in zip(begins, stops, borders, shares, strict=True):
            mine = chunks[begin : stop if share else begin]
            upto = ends[begin : begin + len(mine)]
            lists.append(
                np.stack([mine, np.minimum(upto, border) - np.maximum(upto - self._counts[mine], border - share)])
            )
        return lists

    def _whole(self) -> list[Indices]:
        """Chunks that are dealt whole, as they stand, so that workers have about as many samples."""
        workers, samples = self._spec.world_size * self._workers, int(self._counts.sum())
        lists: list[list[int]] = [[] for _ in range(workers)]
        worker, before = 0, 0
        for chunk, count in enumerate(self._counts.tolist()):
            share = (worker + 1) * samples / workers
            worker += worker < workers - 1 and bool(lists[worker]) and before + count / 2 > share
            lists[worker].append(chunk)
            before += count
        dealt = [np.stack([mine, self._counts[mine]]) for mine in (np.array(mine, dtype=np.int64) for mine in lists)]
        if not self._drop_last:
            return dealt
        least = min((int(mine[1].sum()) for mine in dealt if mine.size), default=0)
        least -= least % self._batch
        for mine in dealt:
            mine[1] = np.clip(least - (np.cumsum(mine[1]) - mine[1]), 0, mine[1])
        return [mine[:, mine[1] > 0] for mine in dealt]


def _within_window(n: int, window: int, random: np.random.RandomState) -> Indices:
    """0 .. n-1, in which each has changed places with one of the next so many."""
    if n < 2 or window < 2:
        return np.arange(n)
    partners = [random.randint(at, min(at + window, n)) for at in range(n - 1)]
    return shuffle_from_targets(np.array([*partners, n - 1])).astype(np.int64)
