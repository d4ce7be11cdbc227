"""Makes room in this node's memory by giving up the copies that are needed furthest ahead (Belady's rule).

Pure. In: what jobs read next, as far as their orders are at hand. Out: copies to evict. Called by
`mlfs.plan.scheduler.scheduler`, where the plan says that this node evicts (`Plan.evicts_by`): for samplers that draw
with replacement (docs/decisions/reuse-distance.md). Every other job keeps what it has, as evicting never helps it.

Copies go in rounds: looking at all samples' next needs takes about 90 ms a million samples, so each round frees a
part of the room. What is staged already needs no copy for its next read: needs are counted from where the look-ahead
is. A copy that a fetch is about to take its bytes from stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from mlfs.plan.scheduler.commands import Command, Evict
from mlfs.plan.scheduler.followed import EpochStreams
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.look_ahead import Uses
from mlfs.plan.scheduler.states import SampleTable, State

Ids = npt.NDArray[np.integer]
Needs = npt.NDArray[np.int64]

ROUND_SHARE = 0.03
"""The share of a place's room that a round frees. Half of it stands empty on average, which costs hits; with less there
are more rounds."""
NOT_NEEDED = np.iinfo(np.int64).max
"""The need of a sample that is not read in any epoch whose order is at hand."""


def needs(samples: int, streams: Iterable[tuple[Ids, int]]) -> Needs:
    """How far ahead each sample is needed next, shape (samples,), `NOT_NEEDED` for those that are not.

    Args:
        streams: what is read from now on, and how far ahead the first of it is.
    """
    result = np.full(samples, NOT_NEEDED, dtype=np.int64)
    for ids, ahead in streams:
        inside = np.flatnonzero(ids >= 0)[::-1]
        own = np.full(samples, NOT_NEEDED, dtype=np.int64)
        own[ids[inside]] = inside + ahead  # of several the last one stays, which is the nearest
        np.minimum(result, own, out=result)
    return result


def furthest_first(held: Ids, needed: Needs, reads: Ids) -> Ids:
    """The samples that are held, the one needed furthest ahead first.

    Args:
        reads: how often each sample is read in the whole run. Of those that are not needed in any epoch at hand the one
            that is read least goes first.
    """
    return held[np.lexsort((reads[held], -needed[held]))]


class Evicting:
    """See the module."""

    def __init__(self, table: SampleTable, keeping: Keeping, out: list[Command]) -> None:
        self._table = table
        self._keeping = keeping
        self._out = out
        self._under_way = False

    def make_room(self, uses: Mapping[str, Uses]) -> None:
        """Evict if this node does, and its place is nearly full."""
        place, plan = self._keeping.evicts_from, self._keeping.plan
        if not place or self._under_way or plan is None or plan.evicts_by is None:
            return
        wanted = int(ROUND_SHARE * self._keeping.capacity_bytes(place))
        if 2 * self._keeping.free_bytes(place) > wanted:
            return
        table = self._table
        held = np.flatnonzero(np.frombuffer(table.held_by, dtype=np.uint8) == place)
        needed = needs(len(table.held_by), _streams(uses))
        victims: list[int] = []
        freed = 0
        for sample in furthest_first(held, needed, plan.evicts_by).tolist():
            if freed >= wanted:
                break
            if table.state[sample] not in (State.QUEUED, State.FETCHING):
                victims.append(sample)
                freed += self._keeping.footprint_bytes(place, sample)
        if victims:
            self._under_way = True
            for sample in victims:
                self._keeping.lost(sample)
            self._out.append(Evict(place, victims))

    def evicted(self, place: int, used_bytes: int) -> None:
        """The place has given up what it was told to."""
        self._under_way = False
        self._keeping.uses(place, used_bytes)


def _streams(uses: Mapping[str, Uses]) -> Iterable[tuple[Ids, int]]:
    """What each rank of each job has still to be looked at, and how far ahead of its look-ahead that is."""
    for of in uses.values():
        for rank, cursor in enumerate(of.cursors):
            for index in of.job.epochs.at_hand.values():
                yield from _of_rank(index, rank, cursor)


def _of_rank(index: EpochStreams, rank: int, cursor: int) -> Iterable[tuple[Ids, int]]:
    begin = max(0, cursor - index.base)
    if begin < index.length:
        yield index.ids[rank][begin:], index.base + begin - cursor
