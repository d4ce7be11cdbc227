"""Tells whether a node without peers does better to evict by next use than to keep what it reads most.

Pure. In: what its jobs read in some epochs, of a sample of the data set; the room; the copies that a plan keeps. Out:
how many of these reads the source answers under either rule. `mlfs.engine.planner` takes the better one;
docs/decisions/reuse-distance.md compares both with other rules.

Looking at one sample in some, chosen by a hash of their numbers, with as large a part of the room, gives the share of
reads that are answered nearly as well as looking at all (Waldspurger et al., Efficient MRC Construction with SHARDS,
FAST 2015, Section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.scheduler.evicting import ROUND_SHARE, distances, furthest_first
from mlfs.plan.scheduler.keeping import LARGEST_SHARE
from mlfs.served.partition import footprints

Ids = npt.NDArray[np.integer[Any]]
Bytes = npt.NDArray[np.integer[Any]]

LOOKED_AT = 2000
"""Of a job that reads more samples, so many to twice as many are looked at: shares of reads are right within some two
percent. All samples of a smaller job are looked at."""
MOST_READS = 24_000
"""Reads that are looked at, of all jobs together, which take half a second of a core. Of one job that reads each sample
once an epoch they are six to twelve epochs. Of several jobs fewer samples are looked at."""
WORTH_IT = 0.98
"""Evicting has to leave the source at most so much of its reads: what is looked at is a part, and copies that stay cost
no work."""


class Reads(NamedTuple):
    """A job's reads of the samples that are looked at.

    Attributes:
        ids: their numbers, in the order of the reads. at: by read, how many reads of the job are before it. ends: by
            epoch, how many of `ids` are read by its end.
        one_in: one sample in so many is looked at, a power of two: who looks at fewer looks at some of the same.
    """

    ids: Ids
    at: npt.NDArray[np.int64]
    ends: Sequence[int]
    one_in: int = 1

    def but_for(self, one_in: int) -> Reads:
        """The reads of fewer samples."""
        chosen = is_looked_at(self.ids, one_in)
        before = np.concatenate([[0], np.cumsum(chosen)])
        return Reads(self.ids[chosen], self.at[chosen], before[list(self.ends)].tolist(), one_in)


class Missed(NamedTuple):
    """The number of reads that the source answers. reads: of how many."""

    kept: int
    evicting: int
    reads: int

    @property
    def evicting_wins(self) -> bool:
        """Whether the source is to answer clearly less."""
        return self.evicting < WORTH_IT * self.kept


class Gathering:
    """Collects what a job reads of the samples that are looked at, epoch by epoch, until that is enough.

    Args:
        samples: how many the job reads.
    """

    def __init__(self, samples: int) -> None:
        self._one_in = 1 << max(0, (samples // LOOKED_AT).bit_length() - 1)
        self._ids: list[Ids] = []
        self._at: list[npt.NDArray[np.int64]] = []
        self._ends: list[int] = []
        self._before = 0

    @property
    def enough(self) -> bool:
        """Whether no further epoch is looked at."""
        return bool(self._ends) and self._ends[-1] >= MOST_READS

    def add(self, ranks: Sequence[Ids]) -> None:
        """One more epoch. Args: what each rank of this node reads, in order; below 0 for no sample."""
        if self.enough:
            return
        at = np.concatenate([np.arange(len(ids)) * len(ranks) + rank for rank, ids in enumerate(ranks)])
        ids = np.concatenate(list(ranks))
        chosen = is_looked_at(ids, self._one_in) & (ids >= 0)
        order = np.argsort(at[chosen], kind="stable")
        self._ids.append(ids[chosen][order])
        self._at.append(at[chosen][order] + self._before)
        self._ends.append((self._ends[-1] if self._ends else 0) + int(chosen.sum()))
        self._before += len(ids)

    def gathered(self) -> Reads:
        """The arrays that were collected."""
        nothing = np.empty(0, dtype=np.int64)
        return Reads(
            np.concatenate([nothing, *self._ids]), np.concatenate([nothing, *self._at]), tuple(self._ends), self._one_in
        )


def is_looked_at(ids: Ids, one_in: int) -> npt.NDArray[np.bool_]:
    """Whether each sample is one of those that are looked at: one in so many, spread over the data set."""
    hashed = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    chosen: npt.NDArray[np.bool_] = np.equal(hashed % np.uint64(one_in), 0)
    return chosen


def missed(
    jobs: Sequence[Reads], sizes_bytes: Bytes, room_bytes: int, kept: npt.NDArray[np.bool_], read: npt.NDArray[np.bool_]
) -> Missed:
    """How many of some jobs' reads, side by side, the source answers under either rule.

    Args:
        sizes_bytes: by sample, of the whole data set. room_bytes: for all of it. kept: by sample, whether a plan
            keeps it. read: whether any of the jobs reads it.
    """
    one_in, takes = _one_in(jobs), footprints(sizes_bytes)
    looked_at = np.flatnonzero(read & is_looked_at(np.arange(len(takes)), one_in))
    sizes = takes[looked_at]
    room = int(room_bytes * int(sizes.sum()) / max(1, int(takes[read].sum())))
    streams = [one.but_for(one_in) for one in jobs]
    streams = [one._replace(ids=np.searchsorted(looked_at, one.ids)) for one in streams]
    reads = np.concatenate([one.ids for one in streams])
    owner = np.repeat(np.arange(len(streams)), [len(one.ids) for one in streams])
    order = np.argsort(np.concatenate([one.at for one in streams]), kind="stable")
    return Missed(
        _missed_keeping(reads[order], sizes, room, kept[looked_at]),
        missed_evicting(streams, owner[order].tolist(), sizes, room),
        len(reads),
    )


def _one_in(jobs: Sequence[Reads]) -> int:
    """One sample in how many is looked at, so that the reads of all jobs together are few enough."""
    one_in, reads = max(one.one_in for one in jobs), np.concatenate([one.ids for one in jobs])
    # The last epoch of a job may go beyond the most.
    while np.count_nonzero(is_looked_at(reads, one_in)) > MOST_READS + 2 * LOOKED_AT:
        one_in *= 2
    return one_in


def _missed_keeping(reads: Ids, sizes: Bytes, room: int, kept: npt.NDArray[np.bool_]) -> int:
    """Misses where what the plan names stays once it was read, and what else comes first while there is room."""
    spare = room - int(sizes[kept].sum())
    held = np.zeros(len(sizes), dtype=np.bool_)
    misses = 0
    for sample in reads.tolist():
        if held[sample]:
            continue
        misses += 1
        if kept[sample]:
            held[sample] = True
        elif sizes[sample] <= spare:
            held[sample] = True
            spare -= int(sizes[sample])
    return misses


def missed_evicting(streams: Sequence[Reads], owner: Sequence[int], sizes: Bytes, room: int) -> int:
    """Misses under the rule of `mlfs.plan.scheduler.evicting`: by this epoch and the next one, in rounds.

    Args:
        streams: of each job. owner: by read, in order, the job's number. sizes: by sample. room: for all of them.
    """
    counts = np.bincount(np.concatenate([one.ids for one in streams]), minlength=len(sizes))
    held = np.zeros(len(sizes), dtype=np.bool_)
    cursors = [0] * len(streams)
    used = misses = 0
    wanted = max(1, int(ROUND_SHARE * room))
    for job in owner:
        sample = int(streams[job].ids[cursors[job]])
        cursors[job] += 1
        if held[sample]:
            continue
        misses += 1
        if used + sizes[sample] > room and sizes[sample] <= LARGEST_SHARE * room:
            needed = distances(len(sizes), [(_ahead(one, at), 0) for one, at in zip(streams, cursors, strict=True)])
            victims = furthest_first(np.flatnonzero(held), needed, counts)
            freed = np.cumsum(sizes[victims])
            gone = victims[: int(np.searchsorted(freed, max(wanted, sizes[sample]))) + 1]
            held[gone] = False
            used -= int(sizes[gone].sum())
        if used + sizes[sample] <= room:
            held[sample] = True
            used += int(sizes[sample])
    return misses


def _ahead(one: Reads, cursor: int) -> Ids:
    """A job's reads from here to the end of the next epoch: as far as orders are at hand."""
    epoch = int(np.searchsorted(one.ends, cursor, side="right"))
    return one.ids[cursor : one.ends[min(len(one.ends) - 1, epoch + 1)] if one.ends else 0]
