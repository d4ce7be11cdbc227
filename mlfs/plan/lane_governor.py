"""How many lanes a storage class shall use: as few as give the best rate.

Pure but for its own state. In: finished batches with their times, and whether work was waiting. Out: the number of
lanes allowed. Called by the prefetcher. A slow source wants many lanes to hide its latency; one that answers from
memory is limited by this process's interpreter, where more lanes only fight each other (measured: 16 lanes a tenth of
one).
"""

from __future__ import annotations

PERIOD_S = 0.02
FEWEST_SAMPLES = 16
HOLD_S = 3.0
GAIN = 1.15
WAITING = 0.25


class LaneGovernor:
    """Doubles while the lanes mostly wait and the rate grows by it; goes back to fewer when it does not.

    Attributes:
        allowed: lanes that may work now, 1..most.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = min(2, most)
        self._rate_before = 0.0
        self._tried_from = 0  # lanes before the last change, 0 when none is on trial
        self._hold_until = 0.0
        self._since: float | None = None
        self._samples = 0
        self._cpu_s = 0.0
        self._wall_s = 0.0

    def begin_with(self, lanes: int) -> None:
        """Begin with as many lanes as were measured to be enough; 0 when nothing was measured. Goes on from there."""
        if lanes:
            self.allowed = max(1, min(lanes, self.most))

    def idle(self) -> None:
        """Nothing was waiting: the period says nothing about the source."""
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
            self._judge(self._samples / passed, self._cpu_s < WAITING * self._wall_s, now_s)
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._since, self._samples, self._wall_s, self._cpu_s = now_s, 0, 0.0, 0.0

    def _judge(self, rate: float, waits: bool, now_s: float) -> None:
        if self._tried_from:
            tried_from, self._tried_from = self._tried_from, 0
            if rate < GAIN * self._rate_before:
                self.allowed = tried_from
                self._hold_until = now_s + HOLD_S
                return
        if not waits:
            self.allowed = max(2, self.allowed // 2)
        elif now_s >= self._hold_until and self.allowed < self.most:
            self._rate_before, self._tried_from = rate, self.allowed
            self.allowed = min(self.most, 2 * self.allowed)
