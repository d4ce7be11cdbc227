"""One worker's part of a rank's stream, and how far a process has read it.

Pure. In: the shape of the loader, an epoch's streams, opens. Out: which sample the worker opens next. Used by
`mlfs.follow.tracker`: a process has one or more worker streams that it may be reading.

`mlfs.follow.shape` says which places of a rank's stream are a worker's, and what a turn is.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.follow.epoch_index import EpochIndex, Occurrence
from mlfs.follow.score import Cell
from mlfs.follow.shape import Shape, worker_and_turn


class Stretch(NamedTuple):
    """Reads of one process that are the next ones of its worker stream, one after the other, all of one epoch.

    Attributes:
        epoch: the one that they are of. cell: where they are counted.
        samples, positions, times: of each read; the positions are linear, and ascend.
    """

    process: int
    rank_index: int
    epoch: EpochIndex
    cell: Cell
    samples: list[int]
    positions: list[int]
    times: list[float]


class WorkerStream:
    """A worker stream of one rank and epoch, as one process reads it.

    Attributes:
        rank_index, index, worker: the rank, the epoch, and the worker of the rank whose stream it is.
        cell: where the opens of this rank and epoch are counted.
        turn: the oldest turn that was not opened yet.
        next_sample: the sample at `turn`; -1 when the process has read all of the stream, or cannot be known.
        next_position: the linear position of `turn`.
        entered_at: linear position at which the process began to read the stream; -1 once a second open has confirmed
            that it does.
        far: the process began further ahead than its rank can have come, so more than one further open must confirm it.
            Then `entered_at` is set as well.
        streak: opens that fitted since the process began to read the stream.
        continued: the process has gone on to its stream of the next epoch.
    """

    __slots__ = (
        "_opened_early",
        "cell",
        "continued",
        "entered_at",
        "far",
        "ids",
        "index",
        "next_position",
        "next_sample",
        "rank_index",
        "shape",
        "streak",
        "turn",
        "worker",
    )  # fmt: skip

    def __init__(
        self, shape: Shape, begun_at: Occurrence, cell: Cell, far: bool = False, confirmed: bool = False
    ) -> None:
        """The process has just opened `begun_at`: what comes next is the turn after it."""
        self.shape = shape
        self.rank_index, self.index, _ = begun_at
        self.ids = self.index.ids[self.rank_index]
        self.cell = cell
        self.entered_at = -1 if confirmed else begun_at.position
        self.far = far
        self.streak = 1 if confirmed else 0
        self.continued = False
        self.turn = self.next_sample = self.next_position = 0  # these three: as `_expect` says
        self._opened_early: set[int] = set()  # turns behind `turn` that were opened before it
        self.worker, turn = worker_and_turn(shape, begun_at.x)
        if shape.slack > 1 and shape.workers:
            # Threads begin in any order: turns before this one may still come.
            self._opened_early.add(turn)
            self._expect(max(0, turn + 1 - shape.slack))
        else:
            self._expect(turn + 1, in_new_batch=False)

    @property
    def ended(self) -> bool:
        """Whether the process has read its part of the epoch."""
        return self.next_sample < 0

    def stretch(self, process: int, most: int) -> Stretch:
        """The samples that come next, so many at most. None was opened yet: there are no times."""
        index, workers, turn = self.index, self.shape.workers, self.turn
        samples: list[int] = []
        positions: list[int] = []
        most = 1 if self._opened_early else most  # else the next but one may have been opened
        while len(samples) < most:
            offset = self._offset_of(turn)
            left = most - len(samples)
            if workers != 1:  # the only worker reads one batch behind the other, as if all were one
                left = min(left, self.shape.batch - turn % self.shape.batch)
            stop = min(offset + left, index.length)
            if stop <= offset:
                break
            samples += self.ids[offset:stop].tolist()
            positions += range(index.base + offset, index.base + stop)
            turn += stop - offset
            if not workers:
                break  # whoever is free takes the next batch
        if -1 in samples:  # not of this mount
            positions = [at for at, sample in zip(positions, samples, strict=True) if sample >= 0]
            samples = [sample for sample in samples if sample >= 0]
        return Stretch(process, self.rank_index, index, self.cell, samples, positions, [])

    def advance(self, position: int) -> None:
        """All was opened that comes next, up to a position."""
        _, turn = worker_and_turn(self.shape, position - self.index.base - self.index.begin)
        self._expect(turn + 1, in_new_batch=False)

    def comes_to(self, occurrence: Occurrence) -> None:
        """All before this occurrence was opened."""
        self._expect(worker_and_turn(self.shape, occurrence.x)[1])

    def turns_ahead(self, occurrence: Occurrence, skip: int) -> int:
        """How many turns an occurrence lies ahead of the next one; -1 when it cannot be what the process opens now.

        Up to `skip` turns may have been left out.
        """
        if occurrence.epoch is not self.index or occurrence.rank_index != self.rank_index:
            return -1
        worker, turn = worker_and_turn(self.shape, occurrence.x)
        ahead = turn - self.turn
        if worker != self.worker or not 0 <= ahead < self.slack + skip or turn in self._opened_early:
            return -1
        return ahead

    def opened(self, occurrence: Occurrence) -> None:
        """An occurrence for which `turns_ahead` is 0 or more was opened."""
        _, turn = worker_and_turn(self.shape, occurrence.x)
        if turn == self.turn:
            self._expect(turn + 1, in_new_batch=False)
            return
        self._opened_early.add(turn)
        if turn - self.turn >= self.slack:  # turns further behind than the slack were left out
            oldest = turn - self.slack + 1
            self._opened_early = {t for t in self._opened_early if t >= oldest}
            self._expect(oldest, in_new_batch=False)

    def fitted(self) -> None:
        """An open was taken for one of this stream."""
        self.streak += 1

    def confirm(self) -> int:
        """The process does read this stream. Returns the position at which it began to."""
        entered_at, self.entered_at, self.far = self.entered_at, -1, False
        return entered_at

    def leave(self) -> None:
        """The process has gone on to the next epoch, so this stream was its own."""
        self.confirm()
        self.continued = True

    @property
    def slack(self) -> int:
        """So many turns may threads overtake each other; 1 where whoever is free takes the next batch."""
        return self.shape.slack if self.shape.workers else 1

    def _expect(self, turn: int, in_new_batch: bool = True) -> None:
        """Let `turn` come next, or the first one after it that was not opened yet and is a file of the mount.

        The stream ends with its batch where whoever is free takes the next batch (no `workers`): `in_new_batch` says
        that the turn may be the first one of a batch.
        """
        workers, batch = self.shape.workers, self.shape.batch
        while True:
            while turn in self._opened_early:
                self._opened_early.remove(turn)
                turn += 1
            offset = self._offset_of(turn)
            ends = offset >= self.index.length or (workers == 0 and turn % batch == 0 and not in_new_batch)
            sample = -1 if ends else int(self.ids.item(offset))
            if ends or sample >= 0:
                break
            turn += 1
        self.turn = turn
        self.next_sample, self.next_position = sample, self.index.base + offset

    def _offset_of(self, turn: int) -> int:
        """The index in the rank's stream of one of the worker's turns."""
        workers, batch = self.shape.workers, self.shape.batch
        if workers <= 1:
            return self.index.begin + turn
        round_, within = divmod(turn, batch)
        return self.index.begin + (round_ * workers + self.worker) * batch + within
