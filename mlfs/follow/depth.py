"""How many batches each worker of a loader is handed ahead: torch's prefetch_factor, from who opened what when.

Pure; times are passed in. In: one rank's opens of an epoch's beginning, and the loader's shape. Out: bounds; they are
one number where the opens prove it. Kept by the engine's job, shown in the status.

torch/utils/data/dataloader.py, _try_put_index and _process_data: batch b is handed to worker b mod W once batch b - P*W
was given to the training loop, which takes the batches in turns. So, with c batches given to the loop:

- a batch b that is being opened says P*W >= b + 1 - c. c is no more than the batches that were read to their end, and
  no more than the loop can have taken since the first one at the pace that it is seen to keep;
- a worker that waits behind its batch b, because the loop is slower than loading, says P*W <= b + W - c.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.follow.shape import Shape

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

MOST_OPENS = 1 << 16
MOST_EPOCHS = 32
SHORTEST_WAIT_S = 0.05
WAIT_RATIO = 3.0
WAIT_SHARE = 0.4
MOSTLY = 0.75
WAITS_IN_A_ROW = 3
PACE_QUANTILE = 0.25
PACE_MARGIN = 0.3
FEWEST_STEPS = 4


class Depth(NamedTuple):
    """Batches that each worker is handed ahead. at_most: None while no worker is known to wait."""

    at_least: int = 1
    at_most: int | None = None

    @property
    def exact(self) -> int | None:
        """The number, None when the opens don't prove one."""
        return self.at_least if self.at_least == self.at_most else None

    def narrowed(self, other: Depth) -> Depth:
        """What both say together; what was known before where they contradict each other."""
        tops = [top for top in (self.at_most, other.at_most) if top is not None]
        both = Depth(max(self.at_least, other.at_least), min(tops, default=None))
        return both if both.at_most is None or both.at_least <= both.at_most else self


class _Batch(NamedTuple):
    """A batch that was opened: its number, its first and last open, how many, and whether it was read to its end."""

    number: int
    first: int
    last: int
    opens: int
    whole: bool


def depth_of(process: Numbers, x: Numbers, seconds: Seconds, shape: Shape, length: int) -> Depth:
    """Bounds of the depth.

    Args:
        process, x, seconds: of each open, in the order of time: who, how far behind the epoch's beginning, when.
        shape: of the loader; workers 1 or more.
        length: samples of the epoch (of files, where a sample is several).
    """
    workers = shape.workers
    lanes = [_batches(process, x, lane, shape, length) for lane in range(workers)]
    if not all(lanes) or any(lane[0].number != number for number, lane in enumerate(lanes)):
        return Depth()  # the epoch's beginning was not seen
    least = _behind_the_slowest(lanes) if workers > 1 else 1
    least = max(1, -(-least // workers))
    threshold_s = _shortest_wait(lanes, seconds)
    waits = [_first_wait(lane, seconds, threshold_s) for lane in lanes]
    starts = [at for at, _ in waits if at is not None]
    if len(starts) < workers:
        return Depth(least)
    # A loop asks for its first batch at once; where that is not so, only the first worker's count tells.
    given = 1 if workers == 1 else 0
    most = min((lane[at].number + workers - given) // workers for lane, at in zip(lanes, starts, strict=True))
    paced = _at_the_loops_pace(lanes, starts, seconds) if all(at_once for _, at_once in waits) else 1
    both = Depth(max(least, -(-paced // workers)), most)
    return both if both.at_least <= most else Depth(least)


def _batches(process: Numbers, x: Numbers, lane: int, shape: Shape, length: int) -> list[_Batch]:
    """One worker's batches in order; opens of its samples by other processes are left out."""
    own = np.flatnonzero((x >= 0) & (x // shape.batch % shape.workers == lane))
    if not len(own):
        return []
    processes, counts = np.unique(process[own], return_counts=True)
    own = own[process[own] == processes[counts.argmax()]]
    numbers, first, count = np.unique(x[own] // shape.batch, return_index=True, return_counts=True)
    last = len(own) - 1 - np.unique((x[own] // shape.batch)[::-1], return_index=True)[1]
    whole = count >= np.minimum(shape.batch, length - numbers * shape.batch)
    whole[:-1] = True  # a worker that reads its next batch has read this one, whatever of it was left out
    rows = zip(  # as _Batch has them
        numbers.tolist(), own[first].tolist(), own[last].tolist(), count.tolist(), whole.tolist(), strict=True,
    )  # fmt: skip
    return [_Batch(*row) for row in rows]


def _behind_the_slowest(lanes: list[list[_Batch]]) -> int:
    """The least P*W by the places alone: how far ahead of the oldest batch that was not read a batch was opened."""
    batches = sorted(batch for lane in lanes for batch in lane)
    never = 1 << 62
    read = np.full(batches[-1].number + 1, -1, dtype=np.int64)  # left out altogether: no obstacle
    for batch in batches:
        read[batch.number] = batch.last if batch.whole else never
    up_to = np.maximum.accumulate(read)
    return max(batch.number - int(np.searchsorted(up_to, batch.first)) + 1 for batch in batches)


def _shortest_wait(lanes: list[list[_Batch]], seconds: Seconds) -> float:
    """What counts as a wait between two batches of a worker.

    Far more than it takes from one open to the next where nobody waits, and not far less than most waits: on a busy
    machine a worker is held up for a moment at any time.
    """
    within = [
        (seconds[batch.last] - seconds[batch.first]) / (batch.opens - 1)
        for lane in lanes
        for batch in lane
        if batch.opens > 1
    ]
    between = [seconds[b.first] - seconds[a.last] for lane in lanes for a, b in pairwise(lane)]
    usual_s = max(float(np.median(within)) if within else 0.0, min(between, default=0.0))
    return max(SHORTEST_WAIT_S, WAIT_RATIO * usual_s, WAIT_SHARE * float(np.median(between)) if between else 0.0)


def _first_wait(lane: list[_Batch], seconds: Seconds, threshold_s: float) -> tuple[int | None, bool]:
    """Behind which of its batches a worker waited first, and then behind most; None: it did not.

    And whether it had never waited before.
    """
    waits = [bool(seconds[after.first] - seconds[before.last] >= threshold_s) for before, after in pairwise(lane)]
    for at in range(len(waits) + 1 - WAITS_IN_A_ROW):
        if all(waits[at : at + WAITS_IN_A_ROW]) and sum(waits[at:]) >= MOSTLY * len(waits[at:]):
            return at, not any(waits[:at])
    return None, False


def _at_the_loops_pace(lanes: list[list[_Batch]], starts: list[int], seconds: Seconds) -> int:
    """The least P*W, if the loop's first steps were not much faster than those for which the workers waited."""
    waited = sorted(batch for lane, at in zip(lanes, starts, strict=True) for batch in lane[at + 1 :])
    steps = [seconds[b.first] - seconds[a.first] for a, b in pairwise(waited) if b.number == a.number + 1]
    pace_s = float(np.quantile(steps, PACE_QUANTILE)) if len(steps) >= FEWEST_STEPS else 0.0
    if pace_s <= 0.0:
        return 1
    begin_s = seconds[lanes[0][0].last]
    asked_ahead = 1 if len(lanes) > 1 else 0  # accelerate and Lightning take one batch more than they use
    least = 1
    for lane, at in zip(lanes, starts, strict=True):
        for batch in lane[: at + 1]:
            passed_s = seconds[batch.first] - begin_s
            given = 1 + asked_ahead + int(1.1 * passed_s / pace_s + PACE_MARGIN) if passed_s >= 0 else 0
            least = max(least, batch.number + 1 - given)
    return least


class DepthWatch:
    """Keeps an epoch's first opens of one rank until they have told the depth; a few epochs at most.

    Attributes:
        epoch: whose opens are kept; -1 when none are any more.
        rank_index: the rank whose opens are kept, -1 before any.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.rank_index = -1
        self._left = MOST_EPOCHS
        self._known = Depth()
        self._whole = True
        self._process, self._x, self._seconds = array("q"), array("q"), array("d")

    def missed(self) -> None:
        """An open of which nobody knows when it came: this epoch tells nothing."""
        self._whole = False

    def opened(self, rank_index: int, x: int, process: int, at_s: float) -> None:
        """An open of the epoch, `x` places behind its beginning."""
        if self.rank_index < 0:
            self.rank_index = rank_index
        if rank_index == self.rank_index and self._whole and len(self._x) < MOST_OPENS:
            self._process.append(process)
            self._x.append(x)
            self._seconds.append(at_s)

    def depth(self, shape: Shape, length: int) -> Depth:
        """What is known by now. Args: as of `depth_of`; a shape whose batch is not known tells nothing."""
        if not self._whole or not self._x or shape.workers < 1 or not shape.batch:
            return self._known
        x, process, seconds = np.array(self._x), np.array(self._process), np.array(self._seconds)
        kept = np.sort(np.unique(x, return_index=True)[1])  # opened again: no second time
        return self._known.narrowed(depth_of(process[kept], x[kept], seconds[kept], shape, length))

    def next_epoch(self, epoch: int, shape: Shape, length: int) -> None:
        """The rank has come to another epoch: keep what is known, and that epoch's opens if they are still needed."""
        self._known = self.depth(shape, length)
        self._left -= 1
        self.epoch = epoch if self._known.exact is None and self._left > 0 else -1
        self._whole = self.epoch >= 0
        self._process, self._x, self._seconds = array("q"), array("q"), array("d")
