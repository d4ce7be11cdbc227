"""Decides how many lanes a place uses: as few as give the best rate.

Pure but for its own state. In: finished batches with their times, and whether work was waiting. Out: the number of
lanes allowed. Called by `mlfs.plan.scheduler.pool_queue`. A slow source needs many lanes to hide its latency. One that
answers from memory is limited by this process's interpreter, for which the lanes compete: there, 16 lanes gave a tenth
of what one gave (docs/decisions/threads.md).
"""

from __future__ import annotations

PERIOD_S = 0.02
"""The least time between two judgements: several batches of 4 ms, so that the best number is found within a second."""
FEWEST_SAMPLES = 16
"""The fewest samples of a judgement: on a slow source, a rate over fewer is mostly chance."""
HOLD_S = 3.0
"""How long a number is kept after twice as many lanes gave no more: a vain trial then costs less than a hundredth."""
GAIN = 1.15
"""The rate must grow by so much for twice the lanes to stay: more than it varies from one period to the next."""
BUSY_SHARE = 0.25
"""Lanes that compute for a larger share of their time are busy: more of them would only compete for the interpreter."""


class LaneGovernor:
    """Doubles the lanes while they mostly wait and the rate grows by it, and goes back when the rate does not grow.

    Args:
        most: lanes. gain: how many times the rate must be what it was, for twice the lanes to stay; 0: they always
            stay.

    Attributes:
        allowed: lanes that may work now, 1..most.
    """

    def __init__(self, most: int, gain: float = GAIN) -> None:
        self.most = most
        self._gain = gain
        self.allowed = min(2, most)
        self._rate_before = 0.0
        self._tried_from = 0  # lanes before the last change, 0 when none is on trial
        self._hold_until = 0.0
        self._since: float | None = None
        self._samples = 0
        self._cpu_s = 0.0
        self._wall_s = 0.0

    def begin_with(self, lanes: int) -> None:
        """Begin with as many lanes as were measured to be enough; 0 when nothing was measured."""
        if lanes:
            self.allowed = max(1, min(lanes, self.most))

    def idle(self) -> None:
        """No work was waiting: this period says nothing about the place."""
        self._since = None

    def done(self, samples: int, wall_s: float, cpu_s: float, now_s: float) -> None:
        """A batch is finished while more work is waiting: it took its thread `wall_s`, of which `cpu_s` computing."""
        if self._since is None:
            self._begin(now_s)
            return
        self._samples += samples
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        passed = now_s - self._since
        if passed >= PERIOD_S and self._samples >= max(FEWEST_SAMPLES, 2 * self.allowed):
            self._judge(self._samples / passed, self._cpu_s < BUSY_SHARE * self._wall_s, now_s)
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._since, self._samples, self._wall_s, self._cpu_s = now_s, 0, 0.0, 0.0

    def _judge(self, rate: float, waits: bool, now_s: float) -> None:
        if self._tried_from:
            tried_from, self._tried_from = self._tried_from, 0
            if rate < self._gain * self._rate_before:
                self.allowed = tried_from
                self._hold_until = now_s + HOLD_S
                return
        if not waits:
            self.allowed = min(self.allowed, max(2, self.allowed // 2))
        elif now_s >= self._hold_until and self.allowed < self.most:
            self._rate_before, self._tried_from = rate, self.allowed
            self.allowed = min(self.most, 2 * self.allowed)
