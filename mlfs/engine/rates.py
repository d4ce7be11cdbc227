"""What the mount measures of itself while it runs: bandwidth by route and number of lanes, and how long jobs have read.

In: finished batches of the prefetch lanes, on the loop. Out: smoothed rates, for `status` and to refine a calibration.
Sizes and times only; nothing here decides anything about bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SMOOTHING = 0.1
FEWEST_BATCHES = 8


@dataclass(slots=True)
class LaneRate:
    """Bytes a second of one lane while so many worked, smoothed; from how many batches."""

    bytes_per_s: float = 0.0
    batches: int = 0

    def add(self, bytes_per_s: float) -> None:
        """Take one batch in: the mean of the first ones, then a moving one."""
        self.batches += 1
        weight = max(SMOOTHING, 1 / self.batches)
        self.bytes_per_s += weight * (bytes_per_s - self.bytes_per_s)


class Measured(NamedTuple):
    """All lanes of a route together, while `lanes` of them worked."""

    lanes: int
    bytes_per_s: float


class Rates:
    """See the module."""

    def __init__(self) -> None:
        self._routes: dict[str, dict[int, LaneRate]] = {}
        self._reading: dict[str, tuple[int, float, float]] = {}

    def batch(self, route: str, lanes: int, size_bytes: int, wall_s: float) -> None:
        """A batch of one of `lanes` working lanes is done. Calls that took no time are not counted."""
        if size_bytes > 0 and wall_s > 0 and lanes > 0:
            self._routes.setdefault(route, {}).setdefault(lanes, LaneRate()).add(size_bytes / wall_s)

    def measured(self, route: str) -> list[Measured]:
        """What the route gives by lanes, ascending; only from enough batches."""
        lanes = sorted(self._routes.get(route, {}).items())
        return [Measured(n, n * rate.bytes_per_s) for n, rate in lanes if rate.batches >= FEWEST_BATCHES]

    def routes(self) -> list[str]:
        """Every route that something was fetched by."""
        return sorted(self._routes)

    def job_read(self, name: str, observed: int, now_s: float) -> None:
        """A job has read `observed` samples by now. Its time counts from the first read to the last."""
        before, first_s, _ = self._reading.get(name, (0, now_s, now_s))
        if observed < before:
            first_s = now_s  # registered again
        if observed != before:
            self._reading[name] = (observed, first_s, now_s)

    def reading_s(self, name: str) -> float:
        """How long a job has been reading."""
        _, first_s, last_s = self._reading.get(name, (0, 0.0, 0.0))
        return last_s - first_s
