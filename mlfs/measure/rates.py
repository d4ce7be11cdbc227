"""The bandwidths that a mount measures while it runs, by route and number of lanes.

In: batches that prefetch lanes have finished, as sizes and times. Out: smoothed rates. `status` shows them,
mlfs.measure.speeds refines the calibration with them, and the choice between a slow tier and the source rests on them.
Called on the loop only.

A route is a place that samples are fetched from; whoever counts chooses the key that stands for it. A lane is one of
the threads that fetch by it, a batch is what a lane fetches in one go.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mlfs.measure.refine import Measured
from mlfs.plan.circuit_breaker import Pace, size_class

Route = Hashable

# The weight of a new batch in the moving means. More follows a file system that becomes slow sooner, and follows the
# noise of single batches as well.
SMOOTHING = 0.1
# A rate is told from so many batches on. The first batches of a mount meet cold caches and few lanes.
FEWEST_BATCHES = 8
# A batch counts as if it had taken at most so many times longer, or shorter, than was to be expected: one that hung for
# a minute says little about the next one.
MOST_TIMES = 8.0


@dataclass(slots=True)
class LaneRate:
    """The bandwidth of one lane: the mean bytes of a batch over its mean seconds, both smoothed.

    Attributes:
        batches: how many were counted.
        total_bytes: of all of them.
    """

    mean_bytes: float = 0.0
    mean_s: float = 0.0
    batches: int = 0
    total_bytes: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The smoothed bandwidth; 0 before anything was counted."""
        return self.mean_bytes / self.mean_s if self.mean_s > 0 else 0.0

    def add(self, size_bytes: float, wall_s: float) -> None:
        """Count a batch. The first ten are averaged, later ones enter a moving mean; outliers are cut."""
        if self.batches >= FEWEST_BATCHES:
            expected_s = size_bytes / self.bytes_per_s
            wall_s = min(max(wall_s, expected_s / MOST_TIMES), expected_s * MOST_TIMES)
        self.batches += 1
        self.total_bytes += size_bytes
        weight = max(SMOOTHING, 1 / self.batches)
        self.mean_bytes += weight * (size_bytes - self.mean_bytes)
        self.mean_s += weight * (wall_s - self.mean_s)


class Rates:
    def __init__(self) -> None:
        self._routes: dict[Route, dict[int, LaneRate]] = {}  # by number of lanes
        self._paces: dict[Route, dict[int, LaneRate]] = {}  # of all lanes together, by class of sizes
        self._samples: dict[Route, LaneRate] = {}  # of single samples

    def batch(
        self, route: Route, lanes: int, size_bytes: int, wall_s: float, samples: int = 1, pace_lanes: int = 0
    ) -> None:
        """Count a batch that one lane of the route has finished. A batch that took no time is not counted.

        Args:
            lanes: how many lanes of the route worked at that time.
            size_bytes, wall_s, samples: how much the batch was, how long it took, how many samples were in it.
            pace_lanes: how many lanes work like this one, all together being what the route can give at most; 0 when
                the route had nothing else to do, for then this batch does not tell how much it could have given.
        """
        if not (size_bytes > 0 and wall_s > 0 and lanes > 0):
            return
        self._routes.setdefault(route, {}).setdefault(lanes, LaneRate()).add(size_bytes, wall_s)
        if pace_lanes:
            kind = size_class(size_bytes / max(1, samples))
            self._paces.setdefault(route, {}).setdefault(kind, LaneRate()).add(size_bytes * pace_lanes, wall_s)
            self._samples.setdefault(route, LaneRate()).add(size_bytes / max(1, samples), wall_s / max(1, samples))

    def measured(self, route: Route) -> list[Measured]:
        """The route's bandwidth by number of lanes, ascending, where enough batches were counted."""
        lanes = sorted(self._routes.get(route, {}).items())
        return [Measured(n, n * rate.bytes_per_s, rate.batches) for n, rate in lanes if rate.batches >= FEWEST_BATCHES]

    def paces(self, route: Route) -> dict[int, Pace]:
        """Rates of all lanes of the route together while more work waited for them, by classes of sizes."""
        return {
            kind: Pace(rate.bytes_per_s, rate.total_bytes, rate.batches)
            for kind, rate in self._paces.get(route, {}).items()
        }

    def sample(self, route: Route) -> tuple[float, float] | None:
        seen = self._samples.get(route)
        return None if seen is None else (seen.mean_bytes, seen.mean_s)

    def forget_pace(self, route: Route) -> None:
        """Begin anew with `paces` and `sample` of the route: what it gave before says nothing about it now."""
        self._paces.pop(route, None)
        self._samples.pop(route, None)

    def routes(self) -> list[Route]:
        """The routes that something was fetched by, in the order in which each was used first."""
        return list(self._routes)
