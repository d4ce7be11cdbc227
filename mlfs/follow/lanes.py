"""What one process reads of a rank's stream: its lane.

Pure. A DataLoader with W workers and batches of B hands batch b to worker b mod W, so worker w's own stream is exactly
batches w, w + W, ... (torch/utils/data/dataloader.py, _try_put_index). That is
a lane of `Shape(B, W)`. A main process that reads by itself, or a loader that is one process of many threads, is one
lane. Threads take the lane's next sample whenever they are free: `slack` says how many places an open may come early.

In: epochs' streams. Out: which entry a process opens next. Used by `mlfs.follow.matching`.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.follow.epoch_index import EpochIndex


class Shape(NamedTuple):
    """How the processes of a rank share its stream.

    Attributes:
        batch: positions of a batch (of files, where a sample is several).
        workers: processes that take batches in turns; 0: whoever is free takes the next batch (in_order=False, pools).
        slack: places before its turn, within its lane, at which an open may come, plus 1; with `workers` 0, places
        beyond the rank's oldest unread position at which a batch may begin.
    """

    batch: int = 1
    workers: int = 1
    slack: int = 1


class Cell:
    """Opens of one epoch and rank (-1: not known), and how many of them were predicted."""

    __slots__ = ("agreed", "epoch", "observed", "rank_index")

    def __init__(self, epoch: int, rank_index: int) -> None:
        self.epoch = epoch
        self.rank_index = rank_index
        self.observed = 0
        self.agreed = 0


class Place(NamedTuple):
    """A place in a loaded epoch."""

    rank_index: int
    epoch: EpochIndex
    offset: int

    @property
    def position(self) -> int:
        """Linear position."""
        return self.epoch.base + self.offset


def lane_of(shape: Shape, x: int) -> tuple[int, int]:
    """The worker and its turn at a place `x` behind the beginning."""
    if shape.workers <= 1:
        return 0, x
    batch, within = divmod(x, shape.batch)
    round_, worker = divmod(batch, shape.workers)
    return worker, round_ * shape.batch + within


class Lane:
    """One process's way through a rank's stream of one epoch.

    Attributes:
        turn: the oldest turn that was not opened yet; `ahead` holds later ones that were.
        next_entry: the entry at `turn`, -1 when the lane has ended or what comes is not known.
        next_position: its linear position.
        first: linear position at which the process entered the lane, if that waits to be confirmed, else -1.
        streak: opens that fitted.
        continued: the process has gone on to the next epoch.
        far: entered beyond what the rank can have reached: believed only after some opens that fit.
    """

    __slots__ = (
        "ahead", "batch", "cell", "continued", "far", "first", "ids", "index", "left", "next_entry", "next_position",
        "offset", "rank_index", "shape", "streak", "turn", "worker",
    )  # fmt: skip

    def __init__(self, shape: Shape, place: Place, cell: Cell) -> None:
        """Enter behind `place`: what comes next is the turn after it."""
        self.shape = shape
        self.rank_index, self.index, _ = place
        self.ids = self.index.ids[self.rank_index]
        self.cell = cell
        self.batch = shape.batch
        self.worker, turn = lane_of(shape, place.offset - place.epoch.begin)
        self.ahead: set[int] = set()
        self.first = -1
        self.streak = 0
        self.far = False
        self.continued = False
        if shape.slack > 1 and shape.workers:
            # Threads begin in any order: turns before this one may still come.
            self.ahead.add(turn)
            self.go(max(0, turn + 1 - shape.slack))
        else:
            self.go(turn + 1, fresh_batch=False)

    @property
    def ended(self) -> bool:
        """Whether the process has read its part of the epoch."""
        return self.next_entry < 0

    def go(self, turn: int, fresh_batch: bool = True) -> None:
        """Expect `turn`, or the first one behind it that was not opened yet and lies inside of the mount."""
        workers = self.shape.workers
        length = self.index.length
        while True:
            while turn in self.ahead:
                self.ahead.remove(turn)
                turn += 1
            round_, within = divmod(turn, self.batch)
            offset = self.index.begin + turn
            if workers > 1:
                offset = self.index.begin + (round_ * workers + self.worker) * self.batch + within
            ends = offset >= length or (workers == 0 and within == 0 and not fresh_batch)
            entry = -1 if ends else int(self.ids.item(offset))
            if ends or entry >= 0:
                break
            turn += 1
        self.turn, self.offset, self.left = turn, offset, self.batch - within
        self.next_entry, self.next_position = entry, self.index.base + offset

    def advance(self) -> None:
        """The expected entry was opened."""
        left = self.left - 1
        if left and not self.ahead:
            offset = self.offset + 1
            if offset < self.index.length:
                entry = self.ids.item(offset)
                if entry >= 0:
                    self.turn += 1
                    self.offset, self.left, self.next_entry = offset, left, entry
                    self.next_position += 1
                    return
        self.go(self.turn + 1, fresh_batch=False)

    def distance(self, place: Place, skip: int) -> int:
        """How many turns `place` lies ahead of what is expected, -1 when it cannot be this lane's.

        Up to `skip` turns may have been left out.
        """
        if place.epoch is not self.index or place.rank_index != self.rank_index:
            return -1
        worker, turn = lane_of(self.shape, place.offset - place.epoch.begin)
        ahead = turn - self.turn
        slack = self.shape.slack if self.shape.workers else 1
        if worker != self.worker or not 0 <= ahead < slack + skip or turn in self.ahead:
            return -1
        return ahead

    def open(self, place: Place) -> None:
        """A place at some `distance` was opened."""
        _, turn = lane_of(self.shape, place.offset - place.epoch.begin)
        if turn == self.turn:
            self.advance()
            return
        slack = self.shape.slack if self.shape.workers else 1
        self.ahead.add(turn)
        if turn - self.turn >= slack:  # what lies further behind was left out
            oldest = turn - slack + 1
            self.ahead = {t for t in self.ahead if t >= oldest}
            self.go(oldest, fresh_batch=False)
