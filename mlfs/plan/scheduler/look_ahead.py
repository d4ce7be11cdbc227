"""Looks ahead along each rank's stream, and counts the predicted uses that it has come to.

Pure. In: a job's streams and how far its ranks are. Out: samples to come, in the order of need; samples whose counted
use is over. The look-ahead goes across jobs and ranks, the nearest need first. Need is the distance to the rank's own
reader, so a rank that stands still does not hold up the others. In a job whose order mlfs serves in rounds, the samples
that the source gives for the next round are looked at before their turn, in the order of the tree (`Refilling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import JobRun
from mlfs.follow.progress import Given
from mlfs.follow.shape import worker_and_turn
from mlfs.plan.scheduler.states import SampleTable, State
from mlfs.served.refill import Refill

# The most samples of a rank that are looked at before the needs of all ranks are compared again: enough for a usual
# batch, so that comparing costs little, and not so many that a huge batch keeps the other ranks waiting.
LOOK_SAMPLES = 256


class Ahead(NamedTuple):
    """Samples that lie in the page cache for a rank, from its next read on without a gap, and their bytes."""

    samples: int = 0
    bytes: int = 0


class Uses:
    """The predicted uses of one job that are counted ahead: between each rank's reader and its cursor.

    Args:
        number: that of the job's record.

    Attributes:
        cursors: by local rank, the linear position that is looked at next.
        looked: positions that were looked at so far.

    Invariants: a rank's cursor is at or above its frontier; a position's `_counted` byte is 1 exactly while its use
    counts in `SampleTable.pending`, which the caller updates by what the methods here return. Positions beyond a cursor
    are counted only where they are refilled.
    """

    def __init__(self, run: JobRun, number: int) -> None:
        self.run, self.number = run, number
        self.cursors = [rank.frontier for rank in run.ranks.progress]
        self.looked = 0
        self._counted: dict[int, list[bytearray]] = {}
        self._refilling = Refilling()

    def coming(self, rank: int, window_bytes: int) -> Iterator[tuple[int, int]]:
        """(sample, epoch) of what is refilled now, for any rank, and of this rank's next batch.

        Positions that were read or counted already are left out. When the caller asks for the next one, the look-ahead
        is past a position, and its use is counted ahead.
        """
        index = self.run.epochs.index_at(self.cursors[rank])
        if index is None:
            return
        in_rounds = any(at_hand.refill is not None for at_hand in self.run.epochs.at_hand.values())
        offset = self.cursors[rank] - index.base
        progress, marks = self.run.ranks.progress[rank], self._marks(index)[rank]
        floor, done = progress.floor, progress.done
        most = self.run.batch_files
        if len(self.cursors) == 1:  # no other rank is behind it: as far as it may be looked at
            most = max(most, progress.frontier + self.run.epochs.first_length - self.cursors[rank])
        stop = offset + max(1, min(most, LOOK_SAMPLES))
        for sample in index.ids[rank][offset:stop].tolist():
            position = self.cursors[rank]
            if in_rounds:
                before = self.looked
                yield from self.refilled(position, window_bytes)
                if self.looked - before == LOOK_SAMPLES:
                    return  # enough for one look, and more may be due
            is_over = position < floor or position in done or (in_rounds and marks[position - index.base])
            if sample >= 0 and not is_over:
                yield sample, index.epoch
                marks[position - index.base] = 1
            self.cursors[rank] = position + 1
            self.looked += 1

    def refilled(self, cursor: int, window_bytes: int) -> Iterator[tuple[int, int]]:
        """The samples to be refilled when the look-ahead is at a position, LOOK_SAMPLES at most."""
        at_hand, ranks = self.run.epochs.at_hand, self.run.ranks
        frontier = max(rank.frontier for rank in ranks.progress)
        for _ in range(LOOK_SAMPLES):
            due = self._refilling.next_due(at_hand, frontier, cursor, window_bytes)
            if due is None:
                return
            index, rank, offset = due
            marks, sample = self._marks(index)[rank], int(index.ids[rank][offset])
            is_over = rank in ranks.silent or ranks.progress[rank].is_done(index.base + offset)
            if sample >= 0 and not is_over and not marks[offset]:
                yield sample, index.epoch
                marks[offset] = 1
            self._refilling.go_on(index.epoch)
            self.looked += 1

    def line_of(self, rank: int, position: int) -> tuple[int, int, int]:
        """A name that is the same for all that one worker of a rank reads, as far as is known."""
        index = self.run.epochs.index_at(position)
        x = position - index.base - index.begin if index is not None else 0
        return self.number, rank, worker_and_turn(self.run.matcher.shape, x)[0]

    def next_of(self, rank: int, window_bytes: int) -> int:
        """The sample that would be looked at next if it were the rank's turn, -1 for none in its epoch.

        Nothing changes by it.
        """
        twin = copy(self)
        twin.cursors, twin._refilling = self.cursors[:], self._refilling.copy()
        index = self.run.epochs.index_at(self.cursors[rank])
        while index is not None and self.run.epochs.index_at(twin.cursors[rank]) is index:
            for sample, _ in twin.coming(rank, window_bytes):
                return sample
        return -1

    def _marks(self, index: EpochIndex) -> list[bytearray]:
        """By rank and place in the epoch, whether its use is counted ahead."""
        marks = self._counted.get(index.epoch)
        if marks is None:
            marks = self._counted[index.epoch] = [bytearray(index.length) for _ in index.ids]
        return marks

    def ahead(self, table: SampleTable) -> tuple[Ahead, ...]:
        """The samples that are staged ahead of each rank."""
        return tuple(self._ahead_of(rank, table) for rank in range(len(self.cursors)))

    def _ahead_of(self, rank: int, table: SampleTable) -> Ahead:
        """The same of one rank. A position that was read out of turn leaves no gap, as it is not read again."""
        samples, total_bytes = 0, 0
        for _, ids in self._to_come(rank):
            are_there = table.are_at_hand(ids)
            without_gap = ids if are_there.all() else ids[: int(are_there.argmin())]
            samples += len(without_gap)
            total_bytes += sum(map(table.sizes.__getitem__, without_gap.tolist()))
            if len(without_gap) < len(ids):
                break
        return Ahead(samples, total_bytes)

    def _to_come(self, rank: int) -> Iterator[tuple[NDArray[np.integer], NDArray[np.integer]]]:
        """The positions from a rank's reader to its cursor that are not read yet, and their samples, by epoch."""
        progress, cursor = self.run.ranks.progress[rank], self.cursors[rank]
        position = progress.frontier
        while position < cursor and (index := self.run.epochs.index_at(position)) is not None:
            stop = min(cursor, index.base + index.length)
            ids = np.asarray(index.ids[rank])[position - index.base : stop - index.base]
            are_to_come = ids >= 0
            are_to_come[[at - position for at in progress.done if position <= at < stop]] = False
            yield position + np.flatnonzero(are_to_come), ids[are_to_come]
            position = stop

    def staged(self, table: SampleTable, most: int) -> list[tuple[float, int]]:
        """At most so many samples of each rank that are staged, as (steps until it is read, sample)."""
        found: list[tuple[float, int]] = []
        for rank, progress in enumerate(self.run.ranks.progress):
            enough = len(found) + most
            for positions, ids in self._to_come(rank):
                staged = table.in_state(ids, State.STAGED).nonzero()[0][: enough - len(found)]
                steps = (positions[staged] - progress.frontier) / self.run.batch_files
                found += zip(steps.tolist(), ids[staged].tolist(), strict=True)
                if len(found) == enough:
                    break
        return found

    def passed(self, rank: int, positions: Sequence[int], samples: Sequence[int] = ()) -> list[int]:
        """Positions of an epoch were read. Returns the samples of those whose use had been counted ahead.

        Args:
            samples: those of all of them, where they are at hand.
        """
        self.cursors[rank] = max(self.cursors[rank], self.run.ranks.progress[rank].frontier)
        index = self.run.epochs.index_at(positions[0])
        counted = self._counted.get(index.epoch) if index is not None else None
        if index is None or counted is None:
            return []
        base, marks = index.base, counted[rank]
        samples = samples or [index.ids[rank].item(position - base) for position in positions]
        over = [sample for sample, position in zip(samples, positions, strict=True) if marks[position - base]]
        for position in positions:
            marks[position - base] = 0
        return over

    def given_up(self, given: Iterable[tuple[int, Given]]) -> list[int]:
        """Positions were given up, by rank. Returns the samples whose uses had been counted ahead."""
        samples: list[int] = []
        for rank, (low, high) in given:
            for index in self.run.epochs.at_hand.values():
                first, last = max(low, index.base) - index.base, min(high, index.base + index.length) - index.base
                counted = self._counted.get(index.epoch)
                if first < last and counted is not None:
                    marks = np.frombuffer(counted[rank], dtype=np.uint8)[first:last]
                    places = np.flatnonzero(marks)
                    marks[places] = 0
                    samples += index.ids[rank][first:last][places].tolist()
        return samples

    def forget_epoch(self, index: EpochIndex) -> list[int]:
        """An epoch is not needed any more. Returns the samples of uses that were counted ahead and never came."""
        self._refilling.forget_epoch(index.epoch)
        counted = self._counted.pop(index.epoch, None)
        if counted is None:
            return []
        samples: list[int] = []
        for ids, marks in zip(index.ids, counted, strict=True):
            samples += ids[np.frombuffer(marks, dtype=np.uint8) != 0].tolist()
        return samples

    def leave_rank(self, rank: int, start: int) -> list[int]:
        """Nobody reads for a rank here: its look-ahead begins anew. Returns the samples of its counted uses."""
        samples = self.given_up([(rank, (start, self.run.epochs.end))])  # what was refilled lies beyond the cursor
        self.cursors[rank] = start
        return samples

    def release(self) -> list[int]:
        """Count nothing ahead any more. Returns the samples of all uses that were counted, one a use."""
        samples: list[int] = []
        for index in self.run.epochs.at_hand.values():
            samples += self.forget_epoch(index)
        self._counted.clear()
        self._refilling.begin_anew()
        self.cursors = [rank.frontier for rank in self.run.ranks.progress]
        return samples


def nearest(uses: Iterable[Uses]) -> tuple[Uses, int] | None:
    """The job and the rank whose next sample to look at is needed soonest, in steps; None when there is none."""
    best: tuple[Uses, int] | None = None
    least = float("inf")
    for of in uses:
        run = of.run
        if not run.predicting or run.finished:
            continue
        frontiers = [rank.frontier for rank in run.ranks.progress]
        limit, silent, end = max(1, run.epochs.first_length), run.ranks.silent, run.epochs.end
        # A rank that cannot be looked at now counts as one that was looked at as far as is allowed.
        open_ends = []
        low = high = 0  # the epoch that the rank before is in: mostly that of the next rank, too
        for rank, (frontier, cursor) in enumerate(zip(frontiers, of.cursors, strict=True)):
            looks = cursor < end and rank not in silent
            if looks and not low <= cursor < high:
                index = run.epochs.index_at(cursor)
                low, high = (0, 0) if index is None else (index.base, index.base + index.length)
                looks = index is not None
            open_ends.append(cursor if looks else frontier + limit)
        rank = next_rank(frontiers, open_ends, limit)
        if rank < 0:
            continue
        steps = (of.cursors[rank] - frontiers[rank]) / run.batch_files
        if steps < least:
            best, least = (of, rank), steps
    return best


# -- how far a job's next round has been refilled

# The share of the window that one part may take. Half of it is what a round is made for, and some ranks have more than
# others; what nodes keep passes through the rest, on its way from memory, disks and peers to the readers.
MOST_OF_WINDOW = 0.75


class _Begun:
    """How far an epoch's refill is: `at` is where in its columns."""

    __slots__ = ("at", "due", "position", "rank", "refill")

    def __init__(self, refill: Refill, at: int) -> None:
        self.refill = refill
        self.at = at
        # Views that give plain numbers, for they are read one by one.
        self.rank, self.position, self.due = refill.rank.data, refill.position.data, refill.due.data

    def go_on(self) -> None:
        self.at += 1


class Refilling:
    """The progress of refilling a job's next round: what no node keeps, by its place in the tree, ahead of the readers.

    In: the refills of the epochs at hand (`mlfs.served.refill`), how far the look-ahead is. Out: which position of
    which rank is fetched next. It is there for jobs whose order mlfs serves in rounds.

    A part of an epoch that a reader has come to before the look-ahead did, as at the start of a job, is not refilled,
    nor is the part after it: what is needed soon is fetched in the order of need, and no refill competes with that. A
    refill leaves a share of the window to what is fetched in the order of need; where the window has shrunk so that it
    cannot, all is fetched in that order.
    """

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
        self._not_before = -1  # linear position: parts that begin there or before it are not refilled

    def next_due(
        self, at_hand: Mapping[int, EpochIndex], frontier: int, cursor: int, window_bytes: int
    ) -> tuple[EpochIndex, int, int] | None:
        """(epoch, rank, index in its stream) of what is to be refilled next; None when nothing is due.

        Args:
            frontier: the linear position that the fastest rank reads next. cursor: which is looked at next.
        """
        for index in at_hand.values():
            refill = index.refill
            if refill is None or refill.room_bytes > MOST_OF_WINDOW * window_bytes:
                continue
            begun = self._begun.get(index.epoch)
            if begun is None:
                begun = self._begun[index.epoch] = self._begin(index, refill, frontier)
            if begun.at < len(begun.due) and cursor - index.base >= begun.due[begun.at]:
                return index, begun.rank[begun.at], begun.position[begun.at]
        return None

    def _begin(self, index: EpochIndex, refill: Refill, frontier: int) -> _Begun:
        """Begin behind the part that readers have come to, and the one after it."""
        parts = int(np.searchsorted(refill.begins, frontier - index.base, side="right"))
        if parts and frontier < index.base + index.length:
            end = int(refill.begins[parts]) if parts < len(refill.begins) else index.length
            self._not_before = index.base + end
        parts = max(parts, int(np.searchsorted(refill.begins, self._not_before - index.base, side="right")))
        return _Begun(refill, int(refill.firsts[parts]))

    def go_on(self, epoch: int) -> None:
        """Go on behind the sample that was due next."""
        self._begun[epoch].go_on()

    def copy(self) -> Refilling:
        """A copy that stands at the same place."""
        twin = Refilling()
        twin._not_before = self._not_before
        twin._begun = {epoch: _Begun(begun.refill, begun.at) for epoch, begun in self._begun.items()}
        return twin

    def forget_epoch(self, epoch: int) -> None:
        """An epoch is not needed any more."""
        self._begun.pop(epoch, None)

    def begin_anew(self) -> None:
        """Nothing is counted ahead any more."""
        self._begun.clear()
        self._not_before = -1


# -- in which order the streams of the local ranks are fetched: whichever rank's next sample is needed soonest
#
# In: how far each rank has read, and how far its stream was looked ahead. Out: the rank whose next batch is to be
# looked at. The measure is the distance of the look-ahead to the rank's own reader, so a rank that stands still does
# not hold up the others.


def next_rank(frontiers: Sequence[int], cursors: Sequence[int], limit: int) -> int:
    """Return the index of the rank whose next sample is needed soonest, -1 when all are `limit` or more ahead.

    Args:
        frontiers: for each rank, the linear position that it reads next.
        cursors: for each rank, the linear position that is looked at next; at least its frontier.
        limit: how many samples to look ahead of a reader at most.

    The lowest of ranks that are equally far is taken, so batches of the same step are fetched in the order of ranks.
    """
    best, least = -1, limit
    for rank, (frontier, cursor) in enumerate(zip(frontiers, cursors, strict=True)):
        ahead = cursor - frontier
        if ahead < least:
            best, least = rank, ahead
    return best
