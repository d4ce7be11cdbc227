"""Warming up: this node's places get copies of samples before anybody reads them.

Pure. In: samples in the order of need (`mlfs warmup`), ends of their fetches. Out: fetches by lanes of the source that
have nothing else to do, which bring copies and no pages. Only samples are fetched for which a place has room: nothing
that is kept is given up for another one, and what the plan of the jobs keeps room for stays free (`Keeping.promise`).

A sample that a job or a reader is having fetched at that moment is left to them and looked at again. So each sample is
counted once: it was there already, was fetched, has no room, is not to be kept here, or failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.plan.scheduler.config import LARGEST_KEPT_BYTES, SOURCE
from mlfs.plan.scheduler.events import Landed
from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.states import SampleTable, State

# Samples of which it is looked at once which are there already. It is one operation of numpy, which costs little.
CHUNK = 4096
# Batches that one step looks for: what is refused costs time, too, and a driver has readers to serve between two steps.
LOOKS_A_STEP = 16
# After so many samples in a row for which no place has room the places are full: what is left is not looked at.
FULL_AFTER = 256


class WarmingState(StrEnum):
    """The stage of a warm-up."""

    NONE = "none"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the samples: how many, and their bytes."""

    samples: int = 0
    bytes: int = 0

    def plus(self, samples: int, size_bytes: int) -> Part:
        """The sum with more samples."""
        return Part(self.samples + samples, self.bytes + size_bytes)


@dataclass(frozen=True, slots=True)
class WarmingStatistics:
    """A warm-up.

    Attributes:
        run: its number, 0 before the first one.
        whole: all that was asked for. there: what a place held when its turn came. fetched: what was brought.
        no_room: what no place has room for. not_kept: what is not for this node's places: it is too large, the plan of
            the jobs keeps the room for other samples, or it lies in the page cache and was not to be kept.
        failed: what could not be read or written. under_way: samples that lanes have.
    """

    run: int = 0
    state: WarmingState = WarmingState.NONE
    whole: Part = field(default_factory=Part)
    there: Part = field(default_factory=Part)
    fetched: Part = field(default_factory=Part)
    no_room: Part = field(default_factory=Part)
    not_kept: Part = field(default_factory=Part)
    failed: Part = field(default_factory=Part)
    under_way: int = 0


class Warming:
    """The warm-up that runs, or ran last: its samples, in their order, and what became of each.

    Attributes:
        has_more: there is more to look at, although no lane will report anything.
        under_way: samples that lanes have for it.
    """

    def __init__(self, table: SampleTable, keeping: Keeping, fetching: Fetching) -> None:
        self._table = table
        self._keeping = keeping
        self._fetching = fetching
        self._coming: npt.NDArray[np.integer[Any]] = np.empty(0, np.int64)
        self._at = 0  # of `_coming`, what is looked at next
        self._chunk: deque[int] = deque()  # samples before that which no place held
        self._later: deque[int] = deque()  # samples that others were having fetched when their turn came
        self.under_way: set[int] = set()
        self._refused = 0  # in a row, for want of room
        self._statistics = WarmingStatistics()
        self.has_more = False

    def statistics(self) -> WarmingStatistics:
        return replace(self._statistics, under_way=len(self.under_way))

    def begin(self, samples: npt.NDArray[np.integer[Any]] | None) -> None:
        """Bring these samples, each of which is named once, in this order; with None, nothing more.

        The warm-up before is stopped: samples of it that lanes have are brought to their end.
        """
        self._stop()
        if samples is None:
            return
        sizes = np.asarray(self._table.sizes)
        whole = Part(len(samples), int(sizes[samples].sum()))
        self.under_way.clear()  # what lanes have for the warm-up before counts for that one only
        self._statistics = WarmingStatistics(self._statistics.run + 1, WarmingState.RUNNING, whole)
        self._coming, self._at, self._refused = samples, 0, 0

    def _stop(self) -> None:
        self._coming, self._at, self.has_more = np.empty(0, np.int64), 0, False
        self._chunk.clear()
        self._later.clear()
        if self._statistics.state is WarmingState.RUNNING:
            self._statistics = replace(self._statistics, state=WarmingState.STOPPED)

    # -- what is fetched

    def dispatch(self) -> None:
        """Give lanes that have nothing else to do their next samples."""
        self.has_more = False
        if self._statistics.state is not WarmingState.RUNNING:
            return
        for _ in range(LOOKS_A_STEP):
            most = self._fetching.idle_lane_takes()
            if not most:
                return
            batch = self._next(most)
            if not batch:
                if not self.under_way and not self._later:
                    self._statistics = replace(self._statistics, state=WarmingState.FINISHED)
                return
            refused = self._fetching.fill(batch)
            self.under_way |= set(batch).difference(refused)
            self._refuse(refused, len(refused) == len(batch))
        self.has_more = True

    def _next(self, most: int) -> list[int]:
        """Samples that may be fetched, at most so many; none when nothing is left but what others are fetching."""
        batch: list[int] = []
        for _ in range(min(len(self._later), most)):
            self._look_at(self._later.popleft(), batch)
        while len(batch) < most and (self._chunk or self._next_chunk()):
            self._look_at(self._chunk.popleft(), batch)
        if not batch and self._later:
            self._look_at_later(batch, most)
        return batch

    def _look_at_later(self, batch: list[int], most: int) -> None:
        """Look at all that was left to others, as there is nothing else.

        Each of their ends wakes the warm-up once, and none may be to come: a look at as many as a lane takes would
        leave the rest for ever, where a lane takes fewer than have ended.
        """
        ids = np.fromiter(self._later, np.int64, len(self._later))
        states = np.frombuffer(self._table.state, dtype=np.uint8)[ids]
        is_held = np.frombuffer(self._table.held_by, dtype=np.uint8)[ids] != 0
        is_settled = is_held | ((states != State.QUEUED) & (states != State.FETCHING))
        settled = ids[is_settled].tolist()
        self._later = deque(ids[~is_settled].tolist())
        while settled and len(batch) < most:
            self._look_at(settled.pop(), batch)
        self._later.extendleft(settled)

    def _next_chunk(self) -> bool:
        """Look at some more samples; False when there are none."""
        while not self._chunk and self._at < len(self._coming):
            ids = self._coming[self._at : self._at + CHUNK]
            self._at += len(ids)
            self._chunk.extend(self._without_those_there(ids).tolist())
        return bool(self._chunk)

    def _without_those_there(self, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
        """Count the samples that a place holds already, and return the others."""
        held = np.frombuffer(self._table.held_by, dtype=np.uint8)[ids] != 0
        sizes = np.asarray(self._table.sizes)
        count = int(held.sum())
        self._statistics = replace(
            self._statistics, there=self._statistics.there.plus(count, int(sizes[ids[held]].sum()))
        )
        left: npt.NDArray[np.integer[Any]] = ids[~held]
        return left

    def _look_at(self, sample: int, batch: list[int]) -> None:
        """A sample's turn has come."""
        state, size = self._table.state[sample], self._table.sizes[sample]
        if self._table.held_by[sample] or not size:
            self._statistics = replace(self._statistics, there=self._statistics.there.plus(1, size))
        elif state in (State.QUEUED, State.FETCHING) or self._keeping.is_promised(sample):
            self._later.append(sample)
        elif state != State.ABSENT or size > LARGEST_KEPT_BYTES:
            self._statistics = replace(self._statistics, not_kept=self._statistics.not_kept.plus(1, size))
        else:
            batch.append(sample)

    def _refuse(self, samples: Sequence[int], all_of_them: bool) -> None:
        """No place takes these: for want of room, or because they are not for this node's places."""
        if not all_of_them:
            self._refused = 0
        for sample in samples:
            size = self._table.sizes[sample]
            if self._keeping.has_room(sample):
                self._statistics = replace(self._statistics, not_kept=self._statistics.not_kept.plus(1, size))
                continue
            self._refused += 1
            self._statistics = replace(self._statistics, no_room=self._statistics.no_room.plus(1, size))
        if self._refused >= FULL_AFTER:
            self._leave_the_rest()

    def _leave_the_rest(self) -> None:
        """The places are full: whatever is not there by now has no room."""
        left = np.concatenate([np.array(self._chunk, dtype=np.int64), self._coming[self._at :].astype(np.int64)])
        self._chunk.clear()
        self._at = len(self._coming)
        left = self._without_those_there(left)
        size_bytes = int(np.asarray(self._table.sizes)[left].sum())
        self._statistics = replace(self._statistics, no_room=self._statistics.no_room.plus(len(left), size_bytes))

    # -- what becomes of it

    def landed(self, landed: Landed) -> None:
        """A fetch for the warm-up has ended well. One from the source counts later, once a place keeps the sample."""
        if landed.place != SOURCE:  # a copy of an earlier mount that was not known yet
            self.under_way.discard(landed.sample)
            self._statistics = replace(self._statistics, there=self._statistics.there.plus(1, landed.size_bytes))

    def kept(self, sample: int, place: int) -> None:
        if not place:
            self.failed(sample)
        elif sample in self.under_way:
            self.under_way.discard(sample)
            self._statistics = replace(
                self._statistics, fetched=self._statistics.fetched.plus(1, self._table.sizes[sample])
            )

    def taken_back(self, sample: int) -> None:
        """A reader waits for a sample that the lane had not begun, and has it fetched himself."""
        if sample in self.under_way:
            self.under_way.discard(sample)
            self._later.append(sample)

    def failed(self, sample: int) -> None:
        """Count a sample that could not be fetched, or that no place could write."""
        if sample in self.under_way:
            self.under_way.discard(sample)
            self._statistics = replace(
                self._statistics, failed=self._statistics.failed.plus(1, self._table.sizes[sample])
            )
