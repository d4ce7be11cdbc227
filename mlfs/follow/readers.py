"""The processes that read for a job, and what is known of each.

Pure. In: what each process opened. Out: the worker streams that it may be reading, the likeliest first; the ranks that
the processes of one parent read for. Used by `mlfs.follow.tracker`.
"""

from __future__ import annotations

from collections import OrderedDict

from mlfs.follow.worker_stream import WorkerStream

REMEMBERED_PARENTS = 4096
"""Parent processes that are remembered; each rank has one, and a script that is started again has others."""
STREAMS_OF_A_READER = 6
"""Worker streams that a process may be reading: the same entry may occur in three epochs, and for two ranks in each."""
SURE_STREAK = 8
"""Predicted opens in a row that are too many for chance, even in data sets of a few samples."""


class Reader:
    """A process.

    Attributes:
        streams: the worker streams that it may be reading, the likeliest first.
        last_entry: what it opened last, -1 before anything.
        rank_index: the rank that it reads for, -1 while that is not known.
        streak: how many of its last opens were predicted, without one between them that was not.
    """

    __slots__ = ("_opened_again", "last_entry", "rank_index", "streak", "streams")

    def __init__(self) -> None:
        self.streams: list[WorkerStream] = []
        self.last_entry = -1
        self.rank_index = -1
        self.streak = 0
        self._opened_again = 0  # how often it has opened its last entry once more

    def reads_next(self, entry: int) -> WorkerStream | None:
        """The likeliest stream, if an open of the entry is simply the next one of it, and beyond doubt. Else None.

        The open is then counted for the process; the caller moves the stream on.
        """
        if not self.streams or self._opened_again:
            return None
        stream = self.streams[0]
        if stream.next_entry != entry or stream.entered_at >= 0:
            return None
        self.last_entry = entry
        self.streak += 1
        return stream

    @property
    def opened_again(self) -> int:
        """How often it has opened its last entry once more since, which was not counted."""
        return self._opened_again

    def opens_again(self) -> None:
        """It opened its last entry once more, which is not counted."""
        self._opened_again += 1

    def opens(self, entry: int, agrees: bool) -> int:
        """It opened an entry, predicted or not. Returns how often it had opened the one before once more."""
        again, self._opened_again = self._opened_again, 0
        self.last_entry = entry
        self.streak = self.streak + 1 if agrees else 0
        return again

    def reads_for(self, rank_index: int) -> bool:
        """It is now known for which rank it reads. Returns whether that was not known before."""
        first = self.rank_index < 0
        self.rank_index = rank_index
        return first

    # -- the streams that it may be reading

    def begins(self, streams: list[WorkerStream]) -> None:
        """It probably begins to read one of these."""
        self.streams = [*streams, *self.streams][:STREAMS_OF_A_READER]

    def strays(self, streams: list[WorkerStream]) -> None:
        """It might be reading one of these, though nothing but its last open says so."""
        self.streams = [*self.streams[: STREAMS_OF_A_READER - len(streams)], *streams]

    def put_first(self, stream: WorkerStream) -> None:
        """This stream is the likeliest from now on."""
        if not self.streams or self.streams[0] is not stream:
            self.streams = [stream, *(other for other in self.streams if other is not stream)]

    def put_second(self, streams: list[WorkerStream]) -> None:
        """These streams are the likeliest but for the first."""
        self.streams[1:1] = streams

    def drop_unlikely(self) -> None:
        """Keep as many streams as are worth a look."""
        del self.streams[STREAMS_OF_A_READER:]


class Families:
    """For which ranks the processes of one parent read: the workers of a rank are children of the rank's process."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[int, frozenset[int]] = OrderedDict()

    def add(self, parent: int, rank_index: int) -> None:
        """A child of the parent reads for the rank. A parent of 0 is not known, and nothing is noted."""
        known = self._ranks.get(parent, frozenset())
        if parent and rank_index not in known:
            self._ranks[parent] = known | {rank_index}
            if len(self._ranks) > REMEMBERED_PARENTS:
                self._ranks.popitem(last=False)

    def only_rank(self, parent: int) -> int:
        """The rank that all children of the parent read for, -1 when there are several or none is known."""
        known = self._ranks.get(parent, frozenset())
        return next(iter(known)) if len(known) == 1 else -1
