"""The rest of an epoch that a StreamingDataset of litdata reads behind a state that it has loaded.

In: the samples' chunks of each worker as they were dealt when the epoch began, and where the run left off. Out: those
of each worker that comes. Called by `mlfs.orders.litdata`.

With the same ranks, workers and batch each worker goes on where it was; before that it opens the first chunks of its
epoch, and has the kernel read them ahead, as every worker does that begins. With others all samples are laid in the
line in which their batches were handed out, what is done is dropped, and the rest is dealt batch by batch; with a
window it is dealt by visits of a chunk, without the rest of the chunk at the cut.

Source: streaming/elastic.py, streaming/dataset.py (__iter__, _resume, _setup_elastic_resume); litdata 0.2.76.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfs.orders.order import Indices

OPENED_FIRST = 4
"""Chunks that a worker opens at once when it begins (`keep` of enable_posix_fast)."""


class LoaderShape(NamedTuple):
    """The ranks of a run, the workers of each, and the samples of a batch."""

    ranks: int
    workers: int
    batch: int

    def worker_of(self, batch: Indices) -> Indices:
        """The workers that have the batches of these numbers: each rank has one in turn, of its next worker."""
        return batch % self.ranks * self.workers + batch // self.ranks % self.workers


def left_to_read(
    dealt: list[Indices], then: LoaderShape, now: LoaderShape, done: int, yielded: int, drop_last: bool, by_visits: bool
) -> list[Indices]:
    """The chunks that each worker opens, in their order; a chunk may stand there several times.

    Args:
        dealt: by worker of `then`, the chunk of each of its samples. done: samples of all ranks when the rest was
            dealt last. yielded: samples of each rank since. by_visits: whether there is a window.
    """
    anew = done or then != now
    if anew:
        line = _line(dealt, then)
        dealt = _visits_dealt(line, now, done, drop_last) if by_visits else _batches_dealt(line, now, done, drop_last)
    rounds, rest = divmod(yielded, now.workers * now.batch)
    skipped = [rounds * now.batch + min(max(rest - at * now.batch, 0), now.batch) for at in range(now.workers)]
    left = [mine[skipped[worker % now.workers] :] for worker, mine in enumerate(dealt)]
    if anew or not any(map(len, left)):
        return left
    first = [mine[np.sort(np.unique(mine, return_index=True)[1])[:OPENED_FIRST]] for mine in dealt]
    return [np.concatenate(of_worker) for of_worker in zip(first, left, strict=True)]


def _line(dealt: list[Indices], then: LoaderShape) -> Indices:
    places = []
    for worker, mine in enumerate(dealt):
        turn, at = np.divmod(np.arange(len(mine)), then.batch)
        rank, own = divmod(worker, then.workers)
        places.append((rank + then.ranks * (own + then.workers * turn)) * then.batch + at)
    return np.concatenate(dealt)[np.argsort(np.concatenate(places))]


def _batches_dealt(line: Indices, now: LoaderShape, done: int, drop_last: bool) -> list[Indices]:
    line = line[done - done % (now.ranks * now.batch) :]
    if drop_last:
        line = line[: len(line) - len(line) % (now.ranks * now.workers * now.batch)]
    worker_of = now.worker_of(np.arange(len(line)) // now.batch)
    return [line[worker_of == worker] for worker in range(now.ranks * now.workers)]


def _visits_dealt(line: Indices, now: LoaderShape, done: int, drop_last: bool) -> list[Indices]:
    rest, workers = line[done:], now.ranks * now.workers
    if 0 < done < len(line) and line[done - 1] == rest[0]:
        rest = rest[rest != rest[0]]
    visit_of = np.cumsum(np.diff(rest, prepend=rest[:1]) != 0)
    if drop_last and len(rest):
        visits = int(visit_of[-1]) + 1
        rest, visit_of = (of[visit_of < visits - visits % workers] for of in (rest, visit_of))
    return [rest[visit_of % workers == worker] for worker in range(workers)]
