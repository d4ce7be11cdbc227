"""Makes room on this node by giving up copies: those that no job reads any more, and those needed furthest ahead.

Pure. In: what jobs read next, as far as their orders are at hand. Out: copies to evict. Called by
`mlfs.plan.scheduler.scheduler`. Copies that no job reads (an earlier job's) go from any place of a node without peers
that is full, some at a time. Copies needed furthest ahead (Belady's rule) go from its memory where the plan says
that this node evicts (`Plan.evicts_by`; `mlfs.plan.next_use`, docs/decisions/reuse-distance.md). Otherwise what is kept
stays: for orders that read each sample once an epoch evicting gains nothing.

Copies go in rounds, one at a time: looking at all samples' next needs takes about 90 ms a million samples, so each
round frees a part of the room. A sample that is staged already needs no copy for its next read, so needs are counted
from where the look-ahead is. A copy that a fetch is about to take its bytes from stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from mlfs.follow.epoch_index import EpochIndex
from mlfs.plan.scheduler.commands import Command, Evict
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.states import SampleTable, State

Ids = npt.NDArray[np.integer]
Distances = npt.NDArray[np.int64]

ROUND_SHARE = 0.03
"""The share of a place's room that a round frees. Half of it stands empty on average, which costs hits; with less there
are more rounds."""
LARGEST_UNREAD_ROUND_BYTES = 256 << 20
"""What a round frees at most of copies that nobody reads: room for some files of the largest size. So a small job on a
large disk takes little from the next job that could have read them."""
NOT_NEEDED = np.iinfo(np.int64).max
"""The need of a sample that is not read in any epoch whose order is at hand."""
BUSY = (State.QUEUED, State.FETCHING)
"""A fetch is about to take the copy's bytes."""


def distances(samples: int, streams: Iterable[tuple[Ids, int]]) -> Distances:
    """How far ahead each sample is needed next, shape (samples,), `NOT_NEEDED` for those that are not.

    Args:
        streams: what is read from now on, and how far ahead the first of it is.
    """
    result = np.full(samples, NOT_NEEDED, dtype=np.int64)
    for ids, ahead in streams:
        inside = np.flatnonzero(ids >= 0)[::-1]
        read = ids[inside]
        # The last of several assignments to a sample stays, which is the nearest.
        result[read] = np.minimum(result[read], inside + ahead)
    return result


def furthest_first(held: Ids, needed: Distances, reads: Ids) -> Ids:
    """The samples that are held, the one needed furthest ahead first.

    Args:
        reads: how often each sample is read in the whole run. Among those that are not needed in any epoch at hand the
            one that is read least goes first.
    """
    return held[np.lexsort((reads[held], -needed[held]))]


class Evicting:
    """Chooses the copies that make room, place by place, one round at a time."""

    def __init__(self, table: SampleTable, keeping: Keeping, out: list[Command]) -> None:
        self._table = table
        self._keeping = keeping
        self._out = out
        self._under_way: set[int] = set()  # places that are about to give copies up

    def make_room(self, jobs: Mapping[int, JobRecord]) -> None:
        """Evict from each place that is nearly full what no job reads, or else what the plan lets go."""
        for place in self._keeping.stores:
            if place in self._under_way:
                continue
            free_bytes = self._keeping.free_bytes(place)
            share_bytes = max(1, int(ROUND_SHARE * self._keeping.capacity_bytes(place)))
            unread_bytes = min(share_bytes, LARGEST_UNREAD_ROUND_BYTES)
            # A place of few large samples may have more than half of a round free, and room for none of them.
            lacking_bytes = self._keeping.lacking_bytes(place)
            lacks = free_bytes < lacking_bytes
            if (lacks or 2 * free_bytes <= unread_bytes) and self._evict_unread(
                place, max(unread_bytes, lacking_bytes)
            ):
                continue
            if (lacks or 2 * free_bytes <= share_bytes) and place == self._keeping.evicts_from:
                self._evict_furthest(place, max(share_bytes, lacking_bytes), jobs)

    def _evict_unread(self, place: int, wanted_bytes: int) -> bool:
        """Evict copies that no job reads.

        Returns:
            False where the place has none of them, or nobody knows what will be read. True otherwise, also where none
            was evicted yet: a place is looked through a part at a time.
        """
        unread, victims, freed = self._keeping.unread(place), [], 0
        if unread is None:
            return False
        while unread and freed < wanted_bytes:
            sample = unread.pop()
            if self._table.held_by[sample] == place and self._table.state[sample] not in BUSY:
                victims.append(sample)
                freed += self._keeping.footprint_bytes(place, sample)
        if victims:
            self._evict(place, victims)
        return True

    def _evict_furthest(self, place: int, wanted_bytes: int, jobs: Mapping[int, JobRecord]) -> None:
        """Evict the copies that are needed furthest ahead."""
        table, plan = self._table, self._keeping.plan
        state = np.frombuffer(table.state, dtype=np.uint8)
        held = np.frombuffer(table.held_by, dtype=np.uint8) == place
        evictable = np.flatnonzero(held & ~np.isin(state, BUSY))
        if plan is None or plan.evicts_by is None or not len(evictable):
            return  # the room is promised to fetches under way: looking at what is needed would not change that
        needed = distances(len(table.held_by), _streams(jobs))
        victims: list[int] = []
        freed = 0
        for sample in furthest_first(evictable, needed, plan.evicts_by).tolist():
            if freed >= wanted_bytes:
                break
            victims.append(sample)
            freed += self._keeping.footprint_bytes(place, sample)
        self._evict(place, victims)

    def _evict(self, place: int, victims: list[int]) -> None:
        self._under_way.add(place)
        for sample in victims:
            self._keeping.lost(sample)
        self._out.append(Evict(place, victims))

    def evicted(self, place: int, used_bytes: int) -> None:
        """Note that the place has given up the copies that it was told to."""
        self._under_way.discard(place)
        self._keeping.uses(place, used_bytes)


def _streams(jobs: Mapping[int, JobRecord]) -> Iterable[tuple[Ids, int]]:
    """The rest of each rank's stream in the epochs at hand, and how far it lies ahead of the rank's look-ahead."""
    for job in jobs.values():
        for rank, cursor in enumerate(job.uses.cursors):
            for index in job.run.epochs.at_hand.values():
                yield from _of_rank(index, rank, cursor)


def _of_rank(index: EpochIndex, rank: int, cursor: int) -> Iterable[tuple[Ids, int]]:
    begin = max(0, cursor - index.base)
    if begin < index.length:
        yield index.ids[rank][begin:], index.base + begin - cursor
