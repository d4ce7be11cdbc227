"""Readers that cannot be told apart: the kernel names each reader outside of the daemon's pid namespace 0.

Pure. In: what they open, how far the ranks are. Out: the occurrence that an open is taken for, and whether it was
predicted; where the ranks are when they are found elsewhere. Used by `mlfs.follow.tracker`.

With processes, an open is predicted when it is the next one of its process (see there). Here the sample alone tells:
each belongs to one rank in an epoch. So an open is predicted when its place in the rank's stream is one that a loader
may come to now: close behind what was read to the end; or right behind a sample that was read, as a worker goes on in
its batch; or where a batch begins, not too far ahead. In a wrong order less than half of the opens seem so by chance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from enum import IntEnum

from mlfs.follow.epoch_index import EpochIndex, Occurrence, occurrences
from mlfs.follow.progress import RankProgress

NO_PID = -1
"""Stands for the process of readers whom the kernel does not name, as they are in another pid namespace. No process has
that number, and 0 is one in simulated nodes."""
NEAR = 64
"""Places behind the oldest unread one that threads may come to in any order: as many threads as a machine may have."""
NEAR_SHARE = 16
"""An epoch has so many times as many places as count as near, or chance would predict too many opens."""
FAR_AHEAD = 1024
"""Places that a loader reads ahead at least, where an epoch is long: 16 workers with two batches of 32 each."""
FEW_IN_A_BATCH = 4
"""With smaller batches, where one begins says little: then none is taken to begin half an epoch ahead."""
REPEATED = 64
"""Samples within which one that is opened again counts for nothing: a few of each of many workers."""
LOST = 256
"""Opens that fit nothing and are remembered, to find where the ranks are."""
FOUND_BY = 8
"""Opens of one rank that show where it is, if nearly all of them are predicted from there."""
FOUND_SHARE = 0.8
MOST_PATIENCE = 512
"""Opens that fit nothing between two tries to find the ranks: a wrong order must not cost a try all the time."""


class _Reason(IntEnum):
    """Why an open may come now, the strongest first."""

    FOLLOWS = 0
    """It follows a sample that was read."""
    NEAR = 1
    """It is close to where the rank is."""
    BEGINS = 2
    """A batch begins there."""
    NONE = 3


class SampleMatcher:
    """Matches reads whose process is not known, by their samples alone.

    Args:
        ranks: how far each rank is; it is read here, and moved by the tracker.
        batch: samples of a rank's batch, as far as known. length: samples of a rank's epoch.
        lag: the same as below, with readers that have names.
        epochs: the epochs at hand.

    Attributes:
        opens: how many there were. lag: how far behind its rank's frontier a position may be read.
    """

    def __init__(
        self,
        ranks: Sequence[RankProgress],
        batch: int,
        lag: int,
        length: int,
        epochs: Mapping[int, EpochIndex],
    ) -> None:
        self.opens = 0
        self._ranks = ranks
        self._batch = batch
        self._near = max(1, min(NEAR, length // NEAR_SHARE))
        self.lag = max(self._near, min(max(lag, FAR_AHEAD), length // 2))
        self._repeated = min(REPEATED, length * len(ranks) // NEAR_SHARE)
        self._epochs = epochs
        self._last: OrderedDict[int, int] = OrderedDict()
        self._lost: deque[int] = deque(maxlen=LOST)
        self._lost_in_all, self._patience = 0, FOUND_BY

    def widen_to(self, epochs: Mapping[int, EpochIndex]) -> None:
        """From now on opens may belong to these epochs."""
        self._epochs = epochs

    def fits(self, sample: int) -> bool:
        """Whether an open would be predicted; nothing is noted."""
        at = self._likeliest(sample)
        return at is not None and self._fit(at) is not _Reason.NONE

    def observe(self, sample: int) -> tuple[Occurrence | None, bool] | None:
        """An open: what it is taken for, and whether it was predicted. None: it counts for nothing."""
        at = self._likeliest(sample)
        fit = self._fit(at) if at is not None else _Reason.NONE
        agrees = fit is not _Reason.NONE
        epoch = self._last.get(sample)
        if epoch is not None and (at is None or at.epoch.epoch != epoch) and fit >= _Reason.BEGINS:
            return None  # one more open of a sample that was just read
        self.opens += 1
        self._last[sample] = at.epoch.epoch if at is not None else -1
        self._last.move_to_end(sample)
        if len(self._last) > self._repeated:
            self._last.popitem(last=False)
        if not agrees:
            self._lost.append(sample)
            self._lost_in_all += 1
        return at, agrees

    def find_ranks(self) -> list[tuple[int, Occurrence]]:
        """The ranks that lost opens show to be further ahead: these opens, by rank and from its first one on.

        Each with what it is taken for now.
        """
        if self._lost_in_all < self._patience:
            return []
        found = []
        for rank_index, progress in enumerate(self._ranks):
            for epoch in self._epochs.values():
                seen = self._lost_in(epoch, rank_index, progress.floor)
                if seen:
                    found += seen
                    break
        self._lost_in_all, self._patience = 0, FOUND_BY if found else min(MOST_PATIENCE, 2 * self._patience)
        if found:
            self._lost.clear()
        return found

    # -- one open

    def _likeliest(self, sample: int) -> Occurrence | None:
        """The occurrence that an open is of, if a loader may be at any."""
        near = (at for at in occurrences(self._epochs, sample) if self._is_unread_near(at))
        return min(near, key=self._preference, default=None)

    def _fit(self, at: Occurrence, progress: RankProgress | None = None) -> _Reason:
        """How an occurrence that is unread and not far ahead fits to what was read."""
        progress = progress or self._ranks[at.rank_index]
        position, ahead = at.position, at.position - progress.floor
        if position > progress.floor and progress.is_done(position - 1):
            return _Reason.FOLLOWS
        # So far it would have come if it had left nothing out: what it has, holds the oldest unread place back.
        in_order = progress.floor + len(progress.done)
        if ahead <= self._near or abs(position - in_order) <= self._near:
            return _Reason.NEAR
        begins = at.x % self._batch == 0 and (self._batch >= FEW_IN_A_BATCH or ahead <= self.lag // 2)
        return _Reason.BEGINS if begins else _Reason.NONE

    def _is_unread_near(self, at: Occurrence) -> bool:
        progress = self._ranks[at.rank_index]
        return at.x >= 0 and not progress.is_done(at.position) and at.position - progress.floor <= self.lag + self._near

    def _preference(self, at: Occurrence) -> tuple[bool, bool, int, int, int]:
        """A sort key. Ranks may be in different epochs, so what fits well comes first.

        The beginning of a batch says little: an epoch is read to its end before the next one begins. And what is nearer
        is likelier.
        """
        fit, floor = self._fit(at), self._ranks[at.rank_index].floor
        later = at.epoch.base > floor
        return fit > _Reason.NEAR, later, fit, at.epoch.epoch, at.position - floor

    # -- ranks that are somewhere else

    def _lost_in(self, epoch: EpochIndex, rank_index: int, floor: int) -> list[tuple[int, Occurrence]]:
        """The last lost opens, if nearly all that are of a rank's epoch come as predicted from somewhere ahead."""
        latest = list(self._lost)[-2 * FOUND_BY * len(self._ranks) :]
        mine = [
            (sample, Occurrence(rank_index, epoch, code - rank_index * epoch.length))
            for sample in latest
            for code in epoch.codes(sample)
            if code // epoch.length == rank_index
        ]
        places = [(sample, at) for sample, at in mine if at.position > floor + self._near and at.x >= 0]
        if len(places) < FOUND_BY:
            return []
        # The place where most of them lie: in another order than this one they lie anywhere, and few of them so close
        # together.
        begins = sorted(at.position for _, at in places)
        best = max(enumerate(begins), key=lambda one: bisect_right(begins, one[1] + self.lag) - one[0])[1]
        seen = [(sample, at) for sample, at in places if best <= at.position <= best + self.lag]
        progress, agreed = RankProgress(best), 0
        for _, at in seen:
            agreed += not progress.is_done(at.position) and self._fit(at, progress) is not _Reason.NONE
            progress.take((at.position,), self.lag)
        return sorted(seen, key=lambda one: one[1].position) if agreed >= max(FOUND_BY, FOUND_SHARE * len(mine)) else []
