"""The counters of a mount: reads and fetches by route, stalls and errors, since the mount and in the current epoch.

In: events from the engine, on the loop. Out: plain dicts for `status` and `metrics`. Counters only grow, but for those
of the epoch, which begin anew with each one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROUTES = ("page_cache", "ram", "ssd", "lmdb", "peer", "pfs")


@dataclass(slots=True)
class CountAndBytes:
    """How many events there were, and how many bytes they moved."""

    count: int = 0
    bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count an event that moved `size_bytes`."""
        self.count += 1
        self.bytes += size_bytes


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

    def as_dict(self) -> dict[str, float]:
        """The part of `status`."""
        return {"count": self.count, "total_s": round(self.total_s, 6), "worst_s": round(self.worst_s, 6)}


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

    def as_dict(self) -> dict[str, object]:
        """The part of `status`."""
        return {
            "reads": {route: {"reads": t.count, "bytes": t.bytes} for route, t in self.reads.items()},
            "fetches": {r: {"count": t.count, "bytes": t.bytes} for r, t in self.fetches.items() if t.count},
            "stalls": self.stalls.as_dict(),
        }


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

    def begin_epoch(self) -> None:
        """A job's first rank entered its next epoch."""
        self.epoch = Span()
