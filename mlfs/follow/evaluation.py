"""Notices that a job evaluates, between epochs or within one: its own processes read in the order of the directories.

Pure. In: reads of the job's own processes, how far its ranks are. Out: whether each read is the job's training's, the
evaluation's, or waits for those that follow to tell. Used by `mlfs.follow.job`: what evaluation reads is fetched ahead
in that order, and says nothing of the prediction.

An evaluation does not shuffle, so each of its processes reads the next file of the listing, or one a little further. It
begins when a rank has come to the end of an epoch; or in the middle of one, by a read that does not come as predicted,
of a process that has come so until now or that is new. A few plain steps in a row are no chance; the reads until then
wait. A process that does not go on like this, twice in a row, or that reads what training reads next, has done with it.
Each worker jumps over the others' batches where workers take batches in turns: one such step waits for the next one.
"""

from __future__ import annotations

from enum import Enum, auto

from mlfs.follow.epochs_at_hand import Timeline
from mlfs.follow.evidence import Read
from mlfs.follow.plain_order import LONGEST_STEP

STEPS_TOLD = 4
"""Steps of a process that show an evaluation: in a shuffled epoch of 100 samples so many come once in ten thousand."""
MOST_PROCESSES = 64
"""Processes that may evaluate: eight ranks with as many workers each. A few reads of each may wait."""
MOST_PASSES = 3
"""Passes over the files, or over parts of them, that one evaluation makes: more jumps back, and these are runs of files
in an order of their own, which is the training's."""
RANKS_READ_ON = 64
"""Reads of the ranks within an epoch since the last one of an evaluation there, after which that has ended."""
TRAINS_AGAIN = 4
"""Samples of the next epoch that a rank reads before it is past the end: one or two may seem to be read by chance."""


class Purpose(Enum):
    """The purpose of a read, as far as it is known."""

    TRAINING = auto()
    EVALUATION = auto()
    WAITS = auto()


class _Chain:
    """A process that may evaluate.

    Attributes:
        last: what it read last. steps: how many plain steps it took. jumped: whether its last step was none.
        passes: how often it began anew, further in front. at: how much the ranks had read at its last read.
        waiting: its reads that wait.
    """

    __slots__ = ("at", "jumped", "last", "passes", "steps", "waiting")

    def __init__(self, read: Read, jumped: bool, at: int) -> None:
        self.last, self.steps, self.passes, self.jumped, self.at = read.sample, 0, 1, jumped, at
        self.waiting = [read]


class Evaluation:
    """Notices when a job's own processes evaluate. One object is for one run of the script.

    Args:
        timeline: the linear positions of all epochs.

    Attributes:
        may_come: whether a rank is at the end of an epoch, a process may evaluate, or reads are due, so that all reads
            must be shown to `read`, and not only those that don't come as predicted.
    """

    def __init__(self, timeline: Timeline, start_epoch: int) -> None:
        self.may_come = False
        self._timeline = timeline
        self._first_end = timeline.base(start_epoch + 1)
        self._ends: dict[int, int] = {}  # by rank: where the epoch ends that it reads, or has read last
        self._at_end: set[int] = set()
        self._chains: dict[int, _Chain] = {}
        self._training: set[int] = set()  # processes that have shown, since a rank came to an end, not to evaluate
        self._due: list[Read] = []
        self._is_sure = False
        self._trained = 0  # reads of the ranks within an epoch while processes may evaluate
        self._last_at = 0  # how many there were at the last read that may be an evaluation's

    @property
    def may_have_begun(self) -> bool:
        """Whether a process may evaluate, or reads are due: else a read that comes as predicted says nothing of it."""
        return bool(self._chains or self._due)

    def rank_came_to(self, rank_index: int, frontier: int, batch: int) -> None:
        """A rank has read, and reads next at `frontier`. Args: batch: the last one may be left out."""
        end = self._ends.get(rank_index, self._first_end)
        if frontier > end + TRAINS_AGAIN:
            end = self._ends[rank_index] = self._timeline.base(self._timeline.epoch_of(frontier) + 1)
            self._at_end.discard(rank_index)
            if self.may_come and not self._at_end:
                self._end_all()
        if frontier < end - batch:
            if self._chains and not self._at_end:
                self._trained += 1
                if self._trained > self._last_at + RANKS_READ_ON:
                    self._end_all()
            return
        if rank_index not in self._at_end:
            self._at_end.add(rank_index)
            self._training.clear()
            self.may_come = True

    def read(self, read: Read, fits: bool, departs: bool) -> Purpose:
        """A read of one of the job's own processes.

        Args:
            fits: whether it comes as predicted. departs: whether all that the process has read until now came so.
        """
        chain = self._chains.get(read.process)
        if chain is None:
            trains = read.process in self._training if self._at_end else not departs
            if fits or trains or len(self._chains) >= MOST_PROCESSES:
                return Purpose.TRAINING
            self._chains[read.process] = _Chain(read, self._is_sure, self._trained)
            self._last_at, self.may_come = self._trained, True
            return Purpose.WAITS
        goes_on, chain.at = self._trained <= chain.at + RANKS_READ_ON, self._trained
        self._last_at = self._trained
        step, chain.last = read.sample - chain.last, read.sample
        is_plain = 0 <= step <= LONGEST_STEP
        chain.passes = chain.passes + (step < 0) if goes_on else 1
        if not is_plain and (fits or chain.jumped or not self._is_sure or chain.passes > MOST_PASSES):
            self._trains(read.process)
            return Purpose.TRAINING
        chain.jumped = not is_plain
        chain.steps += step > 0 and is_plain
        chain.waiting.append(read)
        if chain.steps >= STEPS_TOLD and not self._is_sure:
            self._is_sure = True
            for other in self._chains.values():
                other.waiting.clear()
        if chain.jumped or not self._is_sure:
            return Purpose.WAITS
        chain.waiting.clear()
        return Purpose.EVALUATION

    def take_due(self) -> list[Read]:
        """The reads that waited, and turned out to be the training's; they are due no more."""
        due, self._due = self._due, []
        self.may_come = bool(self._at_end or self._chains)
        return due

    def _trains(self, process: int) -> None:
        self._due += self._chains.pop(process).waiting
        self._training.add(process)
        self._is_sure = self._is_sure and bool(self._chains)

    def _end_all(self) -> None:
        """All ranks read on."""
        if self._is_sure:  # it evaluated to the end
            self._chains.clear()
            self._is_sure = False
        for process in list(self._chains):
            self._trains(process)
        self.may_come = bool(self._due or self._at_end)
