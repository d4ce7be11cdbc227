"""What the mount measures of itself while it runs: bandwidth by route and number of lanes, and how long jobs have read.

In: finished batches of the prefetch lanes, on the loop. Out: smoothed rates, for `status`, to refine a calibration
(mlfs.measure.speeds) and to choose routes (mlfs.engine.routes). Sizes and times only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mlfs.measure.refine import Measured
from mlfs.plan.circuit_breaker import Pace

SMOOTHING = 0.1
FEWEST_BATCHES = 8
# A batch counts as if it had taken at most so many times longer, or shorter, than was to be expected.
MOST_TIMES = 8.0


@dataclass(slots=True)
class LaneRate:
    """Bytes a second, smoothed: the mean bytes of a batch over its mean seconds; from how many batches.

    Attributes:
        total_bytes: of all batches.
    """

    mean_bytes: float = 0.0
    mean_s: float = 0.0
    batches: int = 0
    total_bytes: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Of one lane."""
        return self.mean_bytes / self.mean_s if self.mean_s > 0 else 0.0

    def add(self, size_bytes: float, wall_s: float) -> None:
        """Take one batch in: the mean of the first ones, then a moving one. One that hung does not upset it."""
        if self.batches >= FEWEST_BATCHES:
            expected_s = size_bytes / self.bytes_per_s
            wall_s = min(max(wall_s, expected_s / MOST_TIMES), expected_s * MOST_TIMES)
        self.batches += 1
        self.total_bytes += size_bytes
        weight = max(SMOOTHING, 1 / self.batches)
        self.mean_bytes += weight * (size_bytes - self.mean_bytes)
        self.mean_s += weight * (wall_s - self.mean_s)


def size_class(size_bytes: float) -> int:
    """Samples of one class are within four times of each other: what is compared shall be of a size."""
    return int(size_bytes).bit_length() // 2


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
        self._paces: dict[str, dict[int, LaneRate]] = {}
        self._samples: dict[str, LaneRate] = {}
        self._reading: dict[str, Reading] = {}

    def batch(
        self, route: str, lanes: int, size_bytes: int, wall_s: float, samples: int = 1, pace_lanes: int = 0
    ) -> None:
        """A batch of one of `lanes` working lanes is done. Calls that took no time are not counted.

        Args:
            pace_lanes: how many lanes give the like together, 0 unless the route has more to do: only then it tells
                how much it can give.
        """
        if not (size_bytes > 0 and wall_s > 0 and lanes > 0):
            return
        self._routes.setdefault(route, {}).setdefault(lanes, LaneRate()).add(size_bytes, wall_s)
        if pace_lanes:
            kind = size_class(size_bytes / max(1, samples))
            self._paces.setdefault(route, {}).setdefault(kind, LaneRate()).add(size_bytes * pace_lanes, wall_s)
            self._samples.setdefault(route, LaneRate()).add(size_bytes / max(1, samples), wall_s / max(1, samples))

    def measured(self, route: str) -> list[Measured]:
        """What the route gives by lanes, ascending; only from enough batches."""
        lanes = sorted(self._routes.get(route, {}).items())
        return [Measured(n, n * rate.bytes_per_s, rate.batches) for n, rate in lanes if rate.batches >= FEWEST_BATCHES]

    def paces(self, route: str) -> dict[int, Pace]:
        """What all lanes of the route gave together, lately and while more waited, by classes of sizes."""
        return {
            kind: Pace(rate.bytes_per_s, rate.total_bytes, rate.batches)
            for kind, rate in self._paces.get(route, {}).items()
        }

    def sample(self, route: str) -> tuple[float, float] | None:
        """Mean bytes of a sample of the route, and the seconds it takes a lane lately; None before any was measured."""
        seen = self._samples.get(route)
        return None if seen is None else (seen.mean_bytes, seen.mean_s)

    def forget_pace(self, route: str) -> None:
        """Measure the route's pace anew."""
        self._paces.pop(route, None)
        self._samples.pop(route, None)

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
