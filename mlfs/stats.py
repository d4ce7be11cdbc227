"""The counters of a mount: reads and fetches by route, stalls and errors, since the mount and in the current epoch.

In: events from the engine, on the loop. Out: frozen statistics, which `status` and `metrics` are made from. Counters
only grow, but for those of the epoch, which begin anew with each one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ROUTES = ("page_cache", "ram", "ssd", "lmdb", "peer", "pfs")


@dataclass(frozen=True, slots=True)
class Tally:
    """How many events there were, and how many bytes they moved."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StallStatistics:
    """How often readers waited, how long all together, and how long the one who waited longest."""

    count: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """What was counted since the mount, or in one epoch; see `Span`."""

    reads: Mapping[str, Tally]
    fetches: Mapping[str, Tally]
    stalls: StallStatistics


@dataclass(frozen=True, slots=True)
class CounterStatistics:
    """All counters of a mount; see `Counters`."""

    all: SpanStatistics
    epoch: SpanStatistics
    by_choice: Tally
    errors: Mapping[str, int]


@dataclass(slots=True)
class CountAndBytes:
    """How many events there were, and how many bytes they moved."""

    count: int = 0
    bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count an event that moved `size_bytes`."""
        self.count += 1
        self.bytes += size_bytes

    def statistics(self) -> Tally:
        """Frozen figures."""
        return Tally(self.count, self.bytes)


def _by_route() -> dict[str, CountAndBytes]:
    return {route: CountAndBytes() for route in ROUTES}


@dataclass(slots=True)
class Stalls:
    """The times that readers waited for bytes that were not there yet."""

    count: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one wait."""
        self.count += 1
        self.total_s += seconds
        self.worst_s = max(self.worst_s, seconds)

    def statistics(self) -> StallStatistics:
        """Frozen figures."""
        return StallStatistics(self.count, self.total_s, self.worst_s)


@dataclass(slots=True)
class Span:
    """What is counted both since the mount and in one epoch.

    Attributes:
        reads: opens, by where the bytes were when the open came. `page_cache`: they were staged ahead. `ram`: the RAM
            tier had them. `ssd`, `lmdb`, `pfs`: they were fetched from there while the reader waited.
        fetches: samples that were fetched from `ssd`, `lmdb` or `pfs`, ahead of the reader or on demand.
    """

    reads: dict[str, CountAndBytes] = field(default_factory=_by_route)
    fetches: dict[str, CountAndBytes] = field(default_factory=_by_route)
    stalls: Stalls = field(default_factory=Stalls)

    def statistics(self) -> SpanStatistics:
        """Frozen figures."""
        return SpanStatistics(
            {route: tally.statistics() for route, tally in self.reads.items()},
            {route: tally.statistics() for route, tally in self.fetches.items()},
            self.stalls.statistics(),
        )


class Counters:
    """All counters of a mount.

    Attributes:
        by_choice: the fetches from the PFS of samples that a tier holds, which had become slower than the PFS.
    """

    def __init__(self) -> None:
        self.all = Span()
        self.epoch = Span()
        self.errors: dict[str, int] = {}
        self.by_choice = CountAndBytes()

    def read(self, route: str, size_bytes: int) -> None:
        """An open was served by `route`."""
        self.all.reads[route].add(size_bytes)
        self.epoch.reads[route].add(size_bytes)

    def fetch(self, route: str, size_bytes: int, by_choice: bool = False) -> None:
        """A sample was fetched from `route`. `by_choice`: from the PFS, although a tier that is slower now holds it."""
        if by_choice:
            self.by_choice.add(size_bytes)
        self.all.fetches[route].add(size_bytes)
        self.epoch.fetches[route].add(size_bytes)

    def stall(self, seconds: float) -> None:
        """A reader waited."""
        self.all.stalls.add(seconds)
        self.epoch.stalls.add(seconds)

    def error(self, what: str) -> int:
        """Count a failure of the kind `what`; returns how many of its kind there were, this one included."""
        self.errors[what] = self.errors.get(what, 0) + 1
        return self.errors[what]

    def statistics(self) -> CounterStatistics:
        """Frozen figures."""
        errors = dict(self.errors)
        return CounterStatistics(
            self.all.statistics(), self.epoch.statistics(), self.by_choice.statistics(), errors
        )  # fmt: skip

    def begin_epoch(self) -> None:
        """A job's first rank entered its next epoch."""
        self.epoch = Span()
