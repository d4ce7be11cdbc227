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


class Reading(NamedTuple):
    """A job's first and last read, and the stalls counted by then."""

    observed: int
    first_s: float
    last_s: float
    first_stall_s: float
    last_stall_s: float


class Rates:
    """See the module."""

    def __init__(self) -> None:
        self._routes: dict[str, dict[int, LaneRate]] = {}
        self._reading: dict[str, Reading] = {}

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

    def job_read(self, name: str, observed: int, now_s: float, stall_s: float) -> None:
        """A job has read `observed` samples by now, and readers have waited `stall_s` in all since the mount.

        Both are counted from the job's first read to its last.
        """
        before = self._reading.get(name)
        if before is None or observed < before.observed:  # registered, or registered again
            before = Reading(0, now_s, now_s, stall_s, stall_s)
        if observed != before.observed:
            if not before.observed:
                before = Reading(0, now_s, now_s, stall_s, stall_s)
            before = before._replace(observed=observed, last_s=now_s, last_stall_s=stall_s)
        self._reading[name] = before

    def reading_s(self, name: str) -> float:
        """How long a job has been reading."""
        reading = self._reading.get(name)
        return 0.0 if reading is None else reading.last_s - reading.first_s

    def stalled_s(self, name: str) -> float:
        """How long the mount's readers have waited in that time, all together."""
        reading = self._reading.get(name)
        return 0.0 if reading is None else reading.last_stall_s - reading.first_stall_s
