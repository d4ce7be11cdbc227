"""Learns how many batches each worker of a loader is handed ahead (torch's prefetch_factor), from who opened what when.

Pure; times are passed in. In: one rank's opens of an epoch's beginning, and the loader's shape. Out: bounds, which meet
in one number where the opens prove it. Used by `mlfs.follow.loader_watch`, shown in the status.

torch/utils/data/dataloader.py, _try_put_index and _process_data: batch b is handed to worker b mod W once batch b - P*W
was given to the training loop, which takes the batches in order. So, with c batches given to the loop:

- a batch b that is being opened shows that P*W >= b + 1 - c. Nobody sees c, but two things bound it: how many batches
  were read to their end, and how many the loop can have taken since the first one at the pace that it keeps.
- a worker that waits behind its batch b, because the loop is slower than loading, shows that P*W <= b + W - c.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.follow.shape import Shape

Numbers = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

MOST_OPENS = 1 << 16
"""Opens of an epoch that are kept, 1.5 MiB: more than any loader's workers open before they first wait."""
MOST_EPOCHS = 32
"""Epochs that are looked at. Where the loop is always faster than loading, no further epoch tells more."""
SHORTEST_WAIT_S = 0.05
"""No wait is shorter: a busy machine holds a process up for some hundredths of a second at any time."""
WAIT_RATIO = 3.0
"""A wait is so many times longer than what it usually takes from one open to the next."""
WAIT_SHARE = 0.4
"""And at least this share of the usual pause between two batches of a worker, which is a wait if most of them are."""
MOSTLY = 0.75
WAITS_IN_A_ROW = 3
"""A worker begins to wait where it waits this often in a row, and from there on behind most of its batches. A single
pause may be a slow file or a busy machine."""
PACE_QUANTILE = 0.25
"""The loop's pace is a quick step of it, not its quickest: the bound that it gives must hold for nearly every step."""
PACE_MARGIN = 0.3
"""Steps by which the loop may be ahead of its pace."""
PACE_SPEEDUP = 1.1
"""How much faster than its pace the loop may have been at first."""
FEWEST_STEPS = 4
"""Steps below which no pace is told."""


class Depth(NamedTuple):
    """Bounds of the batches that each worker is handed ahead. at_most: None while no worker was seen to wait."""

    at_least: int = 1
    at_most: int | None = None

    @property
    def exact(self) -> int | None:
        """The number, None when the opens don't prove one."""
        return self.at_least if self.at_least == self.at_most else None

    def narrowed(self, other: Depth) -> Depth:
        """The range that both allow; this one's alone where they contradict each other."""
        tops = [top for top in (self.at_most, other.at_most) if top is not None]
        both = Depth(max(self.at_least, other.at_least), min(tops, default=None))
        return both if both.at_most is None or both.at_least <= both.at_most else self


class _Batch(NamedTuple):
    """A batch that was opened: its number, the indexes of its first and last open, how many opens, whether it was read
    to its end."""

    number: int
    first: int
    last: int
    opens: int
    whole: bool


_Part = list[_Batch]
"""The batches of one worker, in order."""


def depth_of(process: Numbers, x: Numbers, seconds: Seconds, shape: Shape, length: int) -> Depth:
    """Bounds of the depth.

    Args:
        process, x, seconds: of each open, in the order of time: the process, the places between the beginning of the
            epoch's reading and the sample, and when.
        shape: of the loader; workers 1 or more.
        length: samples of the epoch (of files, where a sample is several).
    """
    workers = shape.workers
    by_worker = [_batches(process, x, worker, shape, length) for worker in range(workers)]
    if not all(by_worker) or any(part[0].number != worker for worker, part in enumerate(by_worker)):
        return Depth()  # the epoch's beginning was not seen
    least = _behind_the_slowest(by_worker) if workers > 1 else 1
    least = max(1, -(-least // workers))
    threshold_s = _shortest_wait(by_worker, seconds)
    waits = [_first_wait(part, seconds, threshold_s) for part in by_worker]
    starts = [at for at, _ in waits if at is not None]
    if len(starts) < workers:
        return Depth(least)
    # P*W <= b + W - c. For c it is sure that the loop takes the batch that a single worker has read before it waits; of
    # several workers, one that is not the first may wait before the loop has taken any batch.
    given = 1 if workers == 1 else 0
    most = min((part[at].number + workers - given) // workers for part, at in zip(by_worker, starts, strict=True))
    paced = _at_the_loops_pace(by_worker, starts, seconds) if all(at_once for _, at_once in waits) else 1
    both = Depth(max(least, -(-paced // workers)), most)
    return both if both.at_least <= most else Depth(least)


def _batches(process: Numbers, x: Numbers, worker: int, shape: Shape, length: int) -> _Part:
    """The batches of one worker; opens of its samples by other processes are left out."""
    own = np.flatnonzero((x >= 0) & (x // shape.batch % shape.workers == worker))
    if not len(own):
        return []
    processes, counts = np.unique(process[own], return_counts=True)
    own = own[process[own] == processes[counts.argmax()]]
    numbers, first, count = np.unique(x[own] // shape.batch, return_index=True, return_counts=True)
    last = len(own) - 1 - np.unique((x[own] // shape.batch)[::-1], return_index=True)[1]
    whole = count >= np.minimum(shape.batch, length - numbers * shape.batch)
    whole[:-1] = True  # a worker that reads its next batch has read this one, whatever of it was left out
    rows = zip(  # in the order of _Batch's fields
        numbers.tolist(), own[first].tolist(), own[last].tolist(), count.tolist(), whole.tolist(), strict=True,
    )  # fmt: skip
    return [_Batch(*row) for row in rows]


def _behind_the_slowest(by_worker: list[_Part]) -> int:
    """The least P*W that the order of the opens shows: how far ahead of the oldest unread batch one was opened."""
    batches = sorted(batch for part in by_worker for batch in part)
    never = 1 << 62
    read = np.full(batches[-1].number + 1, -1, dtype=np.int64)  # -1: left out altogether, so nobody waits for it
    for batch in batches:
        read[batch.number] = batch.last if batch.whole else never
    up_to = np.maximum.accumulate(read)
    return max(batch.number - int(np.searchsorted(up_to, batch.first)) + 1 for batch in batches)


def _shortest_wait(by_worker: list[_Part], seconds: Seconds) -> float:
    """The least pause between two batches of a worker that counts as a wait.

    It is far more than it takes from one open to the next where nobody waits, and not far less than most waits are.
    """
    within = [
        (seconds[batch.last] - seconds[batch.first]) / (batch.opens - 1)
        for part in by_worker
        for batch in part
        if batch.opens > 1
    ]
    between = [seconds[b.first] - seconds[a.last] for part in by_worker for a, b in pairwise(part)]
    usual_s = max(float(np.median(within)) if within else 0.0, min(between, default=0.0))
    return max(SHORTEST_WAIT_S, WAIT_RATIO * usual_s, WAIT_SHARE * float(np.median(between)) if between else 0.0)


def _first_wait(part: _Part, seconds: Seconds, threshold_s: float) -> tuple[int | None, bool]:
    """After which of its batches a worker began to wait after most of them, None when it did not.

    The second value says whether it had not waited at all before that.
    """
    waits = [bool(seconds[after.first] - seconds[before.last] >= threshold_s) for before, after in pairwise(part)]
    for at in range(len(waits) + 1 - WAITS_IN_A_ROW):
        if all(waits[at : at + WAITS_IN_A_ROW]) and sum(waits[at:]) >= MOSTLY * len(waits[at:]):
            return at, not any(waits[:at])
    return None, False


def _at_the_loops_pace(by_worker: list[_Part], starts: list[int], seconds: Seconds) -> int:
    """The least P*W, supposing that the loop's first steps were not much faster than those that the workers waited for.

    Args:
        starts: after which of its batches each worker began to wait.
    """
    waited = sorted(batch for part, at in zip(by_worker, starts, strict=True) for batch in part[at + 1 :])
    steps = [seconds[b.first] - seconds[a.first] for a, b in pairwise(waited) if b.number == a.number + 1]
    pace_s = float(np.quantile(steps, PACE_QUANTILE)) if len(steps) >= FEWEST_STEPS else 0.0
    if pace_s <= 0.0:
        return 1
    begin_s = seconds[by_worker[0][0].last]
    asked_ahead = 1 if len(by_worker) > 1 else 0  # accelerate and Lightning take one batch more than they use
    least = 1
    for part, at in zip(by_worker, starts, strict=True):
        for batch in part[: at + 1]:
            passed_s = seconds[batch.first] - begin_s
            given = 1 + asked_ahead + int(PACE_SPEEDUP * passed_s / pace_s + PACE_MARGIN) if passed_s >= 0 else 0
            least = max(least, batch.number + 1 - given)
    return least


class DepthWatch:
    """Keeps the first opens of one rank, epoch by epoch, until they have shown the depth or a limit is reached.

    Attributes:
        epoch: the epoch whose opens are kept; -1 when no more are.
        rank_index: the rank whose opens are kept, -1 before any.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.rank_index = -1
        self._left = MOST_EPOCHS
        self._known = Depth()
        # What was said last, and of how many opens, of which shape and length.
        self._last_depth: tuple[int, Shape, int, Depth] | None = None
        self._whole = True
        self._process, self._x, self._seconds = array("q"), array("q"), array("d")

    def missed(self) -> None:
        """An open came at a time that is not known: this epoch tells nothing."""
        self._whole = False

    def opened(self, rank_index: int, x: Sequence[int], process: int, times: Sequence[float]) -> None:
        """Opens of the epoch by a process, so many places behind its beginning, and when."""
        if self.rank_index < 0:
            self.rank_index = rank_index
        room = MOST_OPENS - len(self._x)
        if rank_index == self.rank_index and self._whole and room > 0:
            self._process.extend([process] * len(x[:room]))
            self._x.extend(x[:room])
            self._seconds.extend(times[:room])

    def depth(self, shape: Shape, length: int) -> Depth:
        """The depth as it is known by now. Args: as of `depth_of`; a shape whose batch is not known tells nothing."""
        if not self._whole or not self._x or shape.workers < 1 or not shape.batch:
            return self._known
        if self._last_depth is not None and self._last_depth[:3] == (len(self._x), shape, length):
            return self._last_depth[3]
        order = np.argsort(self._seconds, kind="stable")  # opens of several processes come in batches of each
        x, process, seconds = (np.array(seen)[order] for seen in (self._x, self._process, self._seconds))
        kept = np.sort(np.unique(x, return_index=True)[1])  # opened again: no second time
        depth = self._known.narrowed(depth_of(process[kept], x[kept], seconds[kept], shape, length))
        self._last_depth = len(self._x), shape, length, depth
        return depth

    def next_epoch(self, epoch: int, shape: Shape, length: int) -> None:
        """The rank has come to another epoch: keep what is known, and that epoch's opens if they are still needed."""
        self._known, self._last_depth = self.depth(shape, length), None
        self._left -= 1
        self.epoch = epoch if self._known.exact is None and self._left > 0 else -1
        self._whole = self.epoch >= 0
        self._process, self._x, self._seconds = array("q"), array("q"), array("d")
