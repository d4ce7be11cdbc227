"""Counters of a mount: reads by route, fetches by route, stalls, errors; for all time and for the current epoch.

In: events from the engine, on the loop. Out: plain dicts for `status` and `metrics`. Monotone but for the epoch's part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROUTES = ("page_cache", "ram", "ssd", "lmdb", "pfs")


@dataclass(slots=True)
class Tally:
    """How many, and how many bytes."""

    count: int = 0
    bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one of `size_bytes`."""
        self.count += 1
        self.bytes += size_bytes


def _tallies() -> dict[str, Tally]:
    return {route: Tally() for route in ROUTES}


@dataclass(slots=True)
class Stalls:
    """Waits of readers for bytes that were not there yet."""

    count: int = 0
    total_s: float = 0.0
    worst_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one wait."""
        self.count += 1
        self.total_s += seconds
        self.worst_s = max(self.worst_s, seconds)

    def as_dict(self) -> dict[str, float]:
        """For status."""
        return {"count": self.count, "total_s": round(self.total_s, 6), "worst_s": round(self.worst_s, 6)}


@dataclass(slots=True)
class Span:
    """What is counted both for all time and for one epoch.

    Attributes:
        reads: opens by where the bytes were when the open came: `page_cache` staged ahead, `ram` kept by the RAM class,
            `ssd`, `lmdb`, `pfs` fetched with the reader waiting.
        fetches: samples fetched by where from (`ssd`, `lmdb`, `pfs`), ahead of the reader or on demand.
    """

    reads: dict[str, Tally] = field(default_factory=_tallies)
    fetches: dict[str, Tally] = field(default_factory=_tallies)
    stalls: Stalls = field(default_factory=Stalls)

    def as_dict(self) -> dict[str, object]:
        """For status."""
        return {
            "reads": {route: {"reads": t.count, "bytes": t.bytes} for route, t in self.reads.items()},
            "fetches": {r: {"count": t.count, "bytes": t.bytes} for r, t in self.fetches.items() if t.count},
            "stalls": self.stalls.as_dict(),
        }


class Counters:
    """All counters of a mount.

    Attributes:
        by_choice: of the fetches from the PFS, those of samples that a tier holds.
    """

    def __init__(self) -> None:
        self.all = Span()
        self.epoch = Span()
        self.errors: dict[str, int] = {}
        self.by_choice = Tally()

    def read(self, route: str, size_bytes: int) -> None:
        """An open was served by `route`."""
        self.all.reads[route].add(size_bytes)
        self.epoch.reads[route].add(size_bytes)

    def fetch(self, route: str, size_bytes: int, by_choice: bool = False) -> None:
        """A sample was fetched from `route`; `by_choice`: from the PFS though a tier, which is slower, holds it."""
        if by_choice:
            self.by_choice.add(size_bytes)
        self.all.fetches[route].add(size_bytes)
        self.epoch.fetches[route].add(size_bytes)

    def stall(self, seconds: float) -> None:
        """A reader waited."""
        self.all.stalls.add(seconds)
        self.epoch.stalls.add(seconds)

    def error(self, what: str) -> int:
        """Count a failure of a kind; returns how many of it there were."""
        self.errors[what] = self.errors.get(what, 0) + 1
        return self.errors[what]

    def begin_epoch(self) -> None:
        """A job's first rank entered its next epoch."""
        self.epoch = Span()
