"""How many lanes a storage class shall use: as few as give the best rate.

Pure but for its own state. In: finished batches with the time, and whether work was waiting. Out: the number of lanes
allowed. Called by the prefetcher. A slow source wants many lanes to hide its latency; one that answers from memory is
limited by this process's interpreter, where more lanes only fight each other (measured: 16 lanes a tenth of one).
"""

from __future__ import annotations

PERIOD_S = 0.02
FEWEST_SAMPLES = 32
HOLD_S = 3.0
GAIN = 1.15
LOSS = 0.95


class LaneGovernor:
    """Climbs by doubling while the rate grows, and comes down by halving while it does not fall.

    Attributes:
        allowed: lanes that may work now, 1..most.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = min(2, most)
        self._best_rate = 0.0
        self._tried_from = 0  # lanes before the last change, 0 when none is on trial
        self._go_up = True
        self._hold_until = 0.0
        self._since: float | None = None
        self._samples = 0

    def idle(self) -> None:
        """Nothing was waiting: the period says nothing about the source."""
        self._since = None

    def done(self, samples: int, now_s: float) -> None:
        """A batch is finished while more work is waiting."""
        if self._since is None:
            self._since, self._samples = now_s, 0
            return
        self._samples += samples
        passed = now_s - self._since
        if passed < PERIOD_S or self._samples < max(FEWEST_SAMPLES, 2 * self.allowed):
            return
        self._judge(self._samples / passed, now_s)
        self._since, self._samples = now_s, 0

    def _judge(self, rate: float, now_s: float) -> None:
        if not self._tried_from:
            self._best_rate = rate
            if now_s >= self._hold_until:
                self._try(self.allowed * 2 if self._go_up else self.allowed // 2)
            return
        raised = self.allowed > self._tried_from
        if rate >= self._best_rate * (GAIN if raised else LOSS):
            self._best_rate = rate
            self._try(self.allowed * 2 if raised else self.allowed // 2)
            return
        self.allowed, self._tried_from = self._tried_from, 0
        self._go_up = not raised
        self._hold_until = now_s + (0.0 if raised and self.allowed == 2 else HOLD_S)

    def _try(self, lanes: int) -> None:
        lanes = max(1, min(self.most, lanes))
        if lanes == self.allowed:
            self._tried_from = 0
            self._go_up = lanes == 1
            return
        self._tried_from, self.allowed = self.allowed, lanes
