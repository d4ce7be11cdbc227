"""Says at which occurrences of a sample a process can be, when it opens the sample now.

Pure. In: an occurrence, how far each rank is, the shape of the loader. Out: whether it is near, too far ahead, a place
where a process may begin, or so many turns ahead in a stream that a process reads. Used by `mlfs.follow.tracker`.
"""

from __future__ import annotations

import numpy as np

from mlfs.follow.epoch_index import Occurrence
from mlfs.follow.progress import RankProgress
from mlfs.follow.shape import Shape, worker_and_turn
from mlfs.follow.worker_stream import WorkerStream

MOST_SKIPPED = 8
"""Samples in a row that a script may leave out (a broken file, a filter) without its process being lost. More of them,
and a process with another order would too often seem to have left something out."""
LEAST_LAG = 256
"""A position is never given up before its rank is so far beyond it: a few batches of any size."""
BATCHES_OF_LAG = 16
"""Batches of each worker, where the shape is known: more than workers are handed ahead (torch: 2 unless told)."""
LONG_SLACK = 8
"""Where threads overtake each other by more turns, they are counted at once."""
GUESSED_WORKERS = 64
"""Batches, where the shape is not known: one for each of as many workers as a machine may have."""


def lag_of(shape: Shape, batch_size: int, stream_length: int) -> int:
    """How far behind its rank's frontier a position may be read; what lies further behind is given up."""
    guessed = GUESSED_WORKERS * batch_size
    known = BATCHES_OF_LAG * shape.workers * shape.batch + shape.slack
    return max(1, min(max(LEAST_LAG, guessed, known), stream_length))


class Reach:
    """Says what can be opened next. Reads the ranks' progress, and changes nothing.

    Args:
        ranks: how far each rank is.
        shape: of the loader.
        lag: see `lag_of`.
        stream_length: samples of a rank's epoch.
    """

    def __init__(self, ranks: list[RankProgress], shape: Shape, lag: int, stream_length: int) -> None:
        self._ranks = ranks
        self._shape = shape
        self._lag = lag
        self._stream_length = stream_length
        self._skip = max(1, min(MOST_SKIPPED, stream_length // 16))

    def is_near(self, occurrence: Occurrence) -> bool:
        """Whether it is unread, and about where its rank is."""
        progress = self._ranks[occurrence.rank_index]
        near = abs(occurrence.position - progress.frontier) <= self._lag
        return near and not progress.is_done(occurrence.position)

    def is_far_ahead(self, occurrence: Occurrence) -> bool:
        """Whether it lies further ahead than its rank can be, unless nobody saw the rank's opens for a while."""
        return occurrence.position > self._ranks[occurrence.rank_index].frontier + self._lag

    def is_in_current_epoch(self, occurrence: Occurrence) -> bool:
        """Whether its rank reads its epoch, or has read the one before to the end."""
        return occurrence.epoch.base <= self._ranks[occurrence.rank_index].frontier

    def preference(self, occurrence: Occurrence) -> tuple[bool, int, int]:
        """A sort key: what is likelier to be read now comes first.

        An epoch is read to its end before the next one begins: unread, then the earlier epoch, then the nearer.
        """
        progress, position = self._ranks[occurrence.rank_index], occurrence.position
        return progress.is_done(position), occurrence.epoch.epoch, abs(position - progress.frontier)

    def may_begin(self, occurrence: Occurrence, is_vacant: bool = False) -> bool:
        """Whether a process may begin there: at the start of a worker's stream, in this epoch of the rank or the next.

        A process may begin at any batch that is about to be read where whoever is free takes the next one.

        Args:
            is_vacant: whether nobody reads that worker's stream, though some opens may have been taken for its own.
        """
        progress, shape = self._ranks[occurrence.rank_index], self._shape
        _, epoch, offset = occurrence
        position, x = epoch.base + offset, offset - epoch.begin
        if x < 0 or epoch.base + epoch.length <= progress.floor:
            return False  # before what is read of the epoch, or the rank has left the epoch
        if not shape.workers:
            unread = not progress.is_done(position)
            return unread and x % shape.batch == 0 and position < progress.floor + shape.slack
        # A position that was read is no obstacle by itself: an open that may be of two ranks may have been taken for
        # this one's. It is when the next one was read as well: then this is another pass over what was read. The
        # frontier is compared because opens that fit nothing mark positions as read, but don't move the frontier.
        follower = position + (1 if shape.batch > 1 else shape.workers)
        passed = progress.frontier > follower and self._stream_length > MOST_SKIPPED
        if passed and not is_vacant and progress.is_done(position) and progress.is_done(follower):
            return False
        is_soon = epoch.base <= progress.frontier + epoch.length
        return is_soon and self._turns_before(x, occurrence, shape.slack) < shape.slack

    def turns_ahead(self, stream: WorkerStream, occurrence: Occurrence) -> int:
        """How many turns ahead it lies in the stream, or in the same worker's stream of the next epoch.

        -1 when the process of the stream cannot be there. An occurrence in the next epoch counts as further ahead than
        any in this one while the process has not read this epoch to its end.
        """
        if occurrence.epoch is stream.index:
            return stream.turns_ahead(occurrence, self._skip)
        follows = occurrence.epoch.epoch == stream.index.epoch + 1 and occurrence.rank_index == stream.rank_index
        frontier = self._ranks[stream.rank_index].frontier
        is_doubtful = stream.entered_at >= 0 and stream.index.base > frontier
        if not follows or is_doubtful or stream.continued or not self._shape.workers:
            return -1
        x = occurrence.x
        if x < 0 or worker_and_turn(self._shape, x)[0] != stream.worker:
            return -1
        # One turn more than the slack: the first place of the next epoch may have been left out.
        turns = self._turns_before(x, occurrence, self._shape.slack + 1)
        if turns > self._shape.slack:
            return -1
        return turns if stream.ended else self._stream_length + turns

    def _turns_before(self, x: int, occurrence: Occurrence, most: int) -> int:
        """The turns of the same worker that come before it in its epoch: all of the last few that read something, as a
        script may have samples in memory, or on another mount. Args: x: its own. most: of which nobody asks for more.
        """
        shape, index, turns = self._shape, occurrence.epoch, 0
        ids = index.ids[occurrence.rank_index]
        if shape.slack > LONG_SLACK and (shape.batch == 1 or shape.workers <= 1):
            step = max(1, shape.workers)
            last = ids[index.begin + x % step : index.begin + x : step][-most:]
            if np.count_nonzero(last >= 0) == len(last):  # as nearly always
                return len(last)
        while turns < most:
            x -= 1 if shape.workers <= 1 or x % shape.batch else 1 + (shape.workers - 1) * shape.batch
            if x < 0:
                break
            turns += ids.item(index.begin + x) >= 0
        return turns
