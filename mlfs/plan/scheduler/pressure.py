"""How large the staging window may be while the kernel takes its pages back.

Pure. In: pages that were found to be taken back, time. Out: the window's size now. What is taken back before it is read
was fetched for nothing, and is fetched again: a smaller window is read before the kernel gets to it. So each time that
pages are gone the window becomes smaller by a step; after a while in which none were, it grows by one, as the memory
may have been another job's for a moment. Called by `mlfs.plan.scheduler.scheduler`.
"""

from __future__ import annotations

import math

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
    """See the module.

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
