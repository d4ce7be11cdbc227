"""The staging window: which pages linger, which are dropped, and when; how large it is.

Pure. In: uses that are over, room that is needed. Out: `Drop` commands, at most one batch of them under way. Pages of a
sample whose use is over linger until their room is needed, as in a plain cache. A job whose reads are predicted will
need room: a quarter of the window is kept free of pages that linger, so that the look-ahead need not wait for it. A
data set that fits in the rest is pushed once, and not once an epoch. Pages of rows never linger.
"""

from __future__ import annotations

import math
from collections import deque

from mlfs.plan.scheduler.commands import Command, Drop
from mlfs.plan.scheduler.states import SampleTable, State, Verb

# Samples that are dropped at once. The hop to a thread must cost little for each of them; and a sample that was handed
# to the dropper cannot be rescued, so there must not be many.
DROP_BATCH = 64
LINGER_SHARE = 0.75
"""Where reads are predicted, pages begin to linger while less than this share of the window is in use."""
ROOM_SHARE = 1 / 16
"""So much of the window is made free at once for a look-ahead that waits: room for one sample is a batch of one."""


class Window:
    """The pages that linger, those that are on their way out, and the dropper's batch.

    Attributes:
        linger: whether no reads are predicted, so that used pages may fill the window.
        outdated: samples that are DROPPING and not to be rescued, or FETCHING and to be dropped once landed.
    """

    def __init__(self, table: SampleTable, out: list[Command]) -> None:
        self._table = table
        self._out = out
        self.linger = True
        # Lingering samples, in the order in which they began to linger. Each stands there once at most, however often
        # it is read; `_lingers` says whether it does. Some may have left RECENT since, or are open.
        self._recent: deque[int] = deque()
        self._lingers = bytearray(len(table.state))
        self._to_drop: deque[int] = deque()  # samples that became DROPPING; those that were rescued since are skipped
        self.outdated: set[int] = set()
        self._going = 0  # samples in the batch that the dropper has
        self._short = False  # somebody waits for more room than what lingered could give, until something is dropped

    @property
    def dropping(self) -> int:
        """Samples that are queued for the dropper or handed to it."""
        return len(self._to_drop) + self._going

    @property
    def is_scarce(self) -> bool:
        """Whether what is read ought to give its room to what comes."""
        table = self._table
        has_little = self._short or table.window_bytes > LINGER_SHARE * table.window_capacity_bytes
        return has_little and not self.linger

    def retire(self, *samples: int) -> None:
        """End a use of each sample. If no other one is to come and nobody has it open, its pages linger or go."""
        table, state, readers = self._table, self._table.state, self._table.readers
        is_scarce = self.is_scarce
        for sample in samples:
            if state[sample] != State.RECENT or sample in readers:
                continue
            if sample >= table.first_row:  # its tripwire is gone, so nobody would hear of its next read
                self._drop(sample)
                continue
            if is_scarce:
                self._drop(sample)
                continue
            if not self._lingers[sample]:
                self._lingers[sample] = 1
                self._recent.append(sample)
            if table.window_bytes > table.window_capacity_bytes:
                self.make_room(0)
                is_scarce = self.is_scarce

    def set_linger(self, linger: bool) -> None:
        """Set whether used pages may fill the window: not while a stream is predicted, which needs room."""
        self.linger = linger

    def make_room(self, need_bytes: int) -> None:
        """Begin to drop lingering pages, the oldest first, until the window will have `need_bytes` free."""
        table = self._table
        over = table.window_bytes + need_bytes - table.window_capacity_bytes
        if over > 0 and self._recent:
            over += 0 if self.linger else int(ROOM_SHARE * table.window_capacity_bytes)
            over -= sum(table.footprint(sample) for sample in self._to_drop if table.state[sample] == State.DROPPING)
            while self._recent and over > 0:
                over -= self._drop_oldest()
        self._short = self._short or over > 0

    def _drop_oldest(self) -> int:
        """Begin to drop the sample that lingers longest. Returns the bytes that will be free, 0 when it is in use."""
        sample = self._recent.popleft()
        self._lingers[sample] = 0
        if self._table.state[sample] != State.RECENT or sample in self._table.readers:
            return 0
        self._drop(sample)
        return self._table.footprint(sample)

    def rescue(self, sample: int) -> bool:
        """Whether a sample that is DROPPING may stay after all: an outdated one may not, nor a row, which has been read
        and has no tripwire."""
        return sample not in self.outdated and sample < self._table.first_row

    def has_changed(self, sample: int) -> None:
        """Have the pages of a sample that has changed at the source dropped, whoever needs them."""
        state = self._table.state[sample]
        if state in (State.STAGED, State.RECENT):
            self._drop(sample)
        elif state not in (State.DROPPING, State.FETCHING):
            return
        self.outdated.add(sample)

    def landed(self, sample: int, staged: bool) -> bool:
        """A fetch has ended. Returns whether its pages go again: it may have begun before the sample changed."""
        if sample not in self.outdated:
            return False
        if staged:
            self._drop(sample)
        else:
            self.outdated.discard(sample)
        return staged

    def _drop(self, sample: int) -> None:
        self._table.move(sample, Verb.LET_GO)
        self._to_drop.append(sample)

    def send(self) -> None:
        """Hand the next batch to the dropper, if it has none."""
        if self._going or not self._to_drop:
            return
        batch: list[int] = []
        while self._to_drop and len(batch) < DROP_BATCH:
            sample = self._to_drop.popleft()
            if self._table.state[sample] == State.DROPPING:
                self._table.move(sample, Verb.SEND)
                self.outdated.discard(sample)
                batch.append(sample)
        self._going = len(batch)
        if batch:
            self._out.append(Drop(tuple(batch)))

    def dropped(self, samples: tuple[int, ...]) -> None:
        self._going, self._short = 0, False
        for sample in samples:
            self._table.move(sample, Verb.GONE)


# -- how large the window may be while the kernel takes its pages back

# A step down takes so much of the window: four of them are two thirds, so that a window ten times too large fits after
# some seconds.
SHRINK = 0.75
GROW = 1.25
# The window is never smaller than that share of what was asked for: readers need something ahead of them in any case.
LEAST_SHARE = 1 / 16
# While nobody reads it stays above that share: a daemon that reclaims what is not used takes all of any window then,
# and who begins to read shall find something.
LEAST_IDLE_SHARE = 1 / 2
# Losses of a moment are one reason, and one step. The page watch looks twice a second while it finds some.
STEP_S = 1.0
# Fewer than that, and less than that share of the window, goes now and then wherever a daemon reclaims memory.
FEW_SAMPLES = 8
LITTLE_SHARE = 0.01
# After so long without a loss the window grows by a step. A reclaim that comes again costs one step's pages.
CALM_S = 20.0


class Pressure:
    """How large the staging window may be while the kernel takes its pages back.

    In: pages that were found to be taken back, time. Out: the window's size now. Pages that are taken back before they
    are read were fetched for nothing, and are fetched again: a smaller window is read before the kernel gets to it. So
    each time that pages are gone the window becomes smaller by a step; after a while in which none were, it grows by
    one, as the memory may have been another job's for a moment.

    Attributes:
        full_bytes: the window that was asked for. bytes: the window now. steps: how often it was made smaller.
    """

    def __init__(self, full_bytes: int) -> None:
        self.full_bytes = full_bytes
        self.bytes = full_bytes
        self.steps = 0
        self._reads = 0
        self._next_step_s = -math.inf
        self._calm_since_s = math.inf

    def lost(self, samples: int, lost_bytes: int, reads: int, now_s: float) -> bool:
        """Pages were taken back, of so many samples and bytes; jobs have read `reads` times so far. Whether the window
        shrinks."""
        if samples < FEW_SAMPLES and lost_bytes < LITTLE_SHARE * self.bytes:
            return False
        self._calm_since_s = now_s
        if now_s < self._next_step_s:
            return False
        self._next_step_s = now_s + STEP_S
        share = LEAST_IDLE_SHARE if reads == self._reads else LEAST_SHARE
        self._reads = reads
        before = self.bytes
        self.bytes = min(before, max(int(share * self.full_bytes), int(SHRINK * before), 1))
        self.steps += self.bytes < before
        return self.bytes < before

    def next_due_s(self) -> float:
        """When the window may grow again; infinity while it is as large as was asked for."""
        return self._calm_since_s + CALM_S if self.bytes < self.full_bytes else math.inf

    def time_passed(self, now_s: float) -> bool:
        """Whether the window grows now."""
        if now_s < self.next_due_s():
            return False
        self._calm_since_s = now_s
        self.bytes = min(self.full_bytes, int(GROW * self.bytes) + 1)
        return True
