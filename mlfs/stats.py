"""The counters of a mount: reads and fetches by route, stalls and errors, since the mount and in the current epoch.

In: events from the engine, on the loop. Out: frozen statistics, which `status` and `metrics` are made from. Counters
only grow, but for those of the epoch, which begin anew with each one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PAGE_CACHE = "page_cache"
# Epochs that have ended and are told of, the last ones: a job of a million short epochs stays small.
KEPT_EPOCHS = 100
ROUTES = (PAGE_CACHE, "ram", "ssd", "lmdb", "peer", "pfs")


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
    """The counts since the mount, or of one epoch; see `Span`.

    Attributes:
        reads: opens by the route that their bytes came by for the reader.
        staged: opens of files that were believed to be staged.
        taken_back: those of them whose pages the kernel had taken back, by the route that answered them.
    """

    reads: Mapping[str, Tally]
    staged: Tally
    taken_back: Mapping[str, Tally]
    fetches: Mapping[str, Tally]
    stalls: StallStatistics


@dataclass(frozen=True, slots=True)
class CounterStatistics:
    """All counters of a mount; see `Counters`."""

    all: SpanStatistics
    epoch: SpanStatistics
    by_choice: Tally
    errors: Mapping[str, int]
    past: tuple[SpanStatistics, ...] = ()


@dataclass(slots=True)
class CountAndBytes:
    """How many events there were, and how many bytes they moved."""

    count: int = 0
    bytes: int = 0

    def add(self, size_bytes: int, count: int = 1) -> None:
        """Count an event, or several, that moved `size_bytes`."""
        self.count += count
        self.bytes += size_bytes

    def add_bytes(self, size_bytes: int) -> None:
        """More bytes of an event that was counted before."""
        self.bytes += size_bytes

    def statistics(self) -> Tally:
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
        return StallStatistics(self.count, self.total_s, self.worst_s)


@dataclass(slots=True)
class Span:
    """Counts that are made both since the mount and in one epoch.

    Attributes:
        reads: opens, by where their bytes were when the open came. `page_cache`: they were staged ahead. `ram`, `ssd`,
            `lmdb`, `pfs`: they were fetched from there while the reader waited. Bytes are whole files, but for files
            that are read by ranges: those count what was handed out.
        taken_back: of the opens that count as `page_cache`, those whose pages the kernel had taken back, by the route
            that answered them. Apart, since counters that metrics are made from must only grow.
        fetches: samples that were fetched from each place, ahead of the reader or on demand, and bytes that it gave.
    """

    reads: dict[str, CountAndBytes] = field(default_factory=_by_route)
    taken_back: dict[str, CountAndBytes] = field(default_factory=_by_route)
    fetches: dict[str, CountAndBytes] = field(default_factory=_by_route)
    stalls: Stalls = field(default_factory=Stalls)

    def noted(self) -> dict[str, Any]:
        """These counts as JSON may have them."""
        stalls = self.stalls
        return {
            **{
                name: {route: [one.count, one.bytes] for route, one in getattr(self, name).items() if one.count}
                for name in ("reads", "taken_back", "fetches")
            },
            "stalls": [stalls.count, stalls.total_s, stalls.worst_s],
        }

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> Span:
        """The counts that were noted."""
        span = cls(stalls=Stalls(*noted["stalls"]))
        for name in ("reads", "taken_back", "fetches"):
            getattr(span, name).update({route: CountAndBytes(*one) for route, one in noted[name].items()})
        return span

    def statistics(self) -> SpanStatistics:
        staged = self.reads[PAGE_CACHE].statistics()
        taken_back = {route: tally.statistics() for route, tally in self.taken_back.items()}
        reads = {
            route: Tally(tally.count + taken_back[route].count, tally.bytes + taken_back[route].bytes)
            for route, tally in self.reads.items()
        }
        gone = [sum(tally.count for tally in taken_back.values()), sum(tally.bytes for tally in taken_back.values())]
        # Some were opened in the epoch before: those are not among this one's.
        reads[PAGE_CACHE] = Tally(max(0, staged.count - gone[0]), max(0, staged.bytes - gone[1]))
        return SpanStatistics(
            reads,
            staged,
            taken_back,
            {route: tally.statistics() for route, tally in self.fetches.items()},
            self.stalls.statistics(),
        )


class Counters:
    """All counters of a mount.

    Attributes:
        by_choice: the fetches from the PFS of samples that a tier holds, which had become slower than the PFS.
        past: the epochs that have ended, in the order of time. The first of several jobs that enters an epoch ends the
            one before.
    """

    def __init__(self) -> None:
        self.all = Span()
        self.epoch = Span()
        self.past: deque[Span] = deque(maxlen=KEPT_EPOCHS)
        self.errors: dict[str, int] = {}
        self.by_choice = CountAndBytes()

    def read(self, route: str, size_bytes: int, opens: int = 1) -> None:
        """An open was served by `route`, or several."""
        for span in (self.all, self.epoch):  # without further calls: each staged open passes here
            reads = span.reads[route]
            reads.count += opens
            reads.bytes += size_bytes

    def handed_out(self, route: str, size_bytes: int) -> None:
        """Bytes of an open that was counted before came from `route`, for a reader, and went to him."""
        self.all.reads[route].add_bytes(size_bytes)
        self.epoch.reads[route].add_bytes(size_bytes)

    def gave(self, route: str, size_bytes: int) -> None:
        """Bytes came from `route` of a file of which not all was fetched."""
        self.all.fetches[route].add_bytes(size_bytes)
        self.epoch.fetches[route].add_bytes(size_bytes)

    def taken_back(self, route: str, opens: int, size_bytes: int) -> None:
        """A read that counts as one from the page cache was really served by `route`."""
        for span in (self.all, self.epoch):
            span.taken_back[route].add(size_bytes, opens)

    def fetch(self, route: str, size_bytes: int, by_choice: bool = False, samples: int = 1) -> None:
        """Samples were fetched from `route`. `by_choice`: from the PFS, although a slower tier holds them now."""
        if by_choice:
            self.by_choice.add(size_bytes, samples)
        self.all.fetches[route].add(size_bytes, samples)
        self.epoch.fetches[route].add(size_bytes, samples)

    def stall(self, seconds: float) -> None:
        """Count a reader's wait."""
        self.all.stalls.add(seconds)
        self.epoch.stalls.add(seconds)

    def error(self, what: str) -> int:
        """Count a failure of the kind `what`; returns how many of its kind there were, this one included."""
        self.errors[what] = self.errors.get(what, 0) + 1
        return self.errors[what]

    def statistics(self) -> CounterStatistics:
        errors, past = dict(self.errors), tuple(span.statistics() for span in self.past)
        return CounterStatistics(
            self.all.statistics(), self.epoch.statistics(), self.by_choice.statistics(), errors, past
        )

    def noted(self) -> dict[str, Any]:
        """The counts but for those of epochs that have ended, for the process that serves the mount after this one."""
        by_choice = [self.by_choice.count, self.by_choice.bytes]
        return {"all": self.all.noted(), "epoch": self.epoch.noted(), "by_choice": by_choice, "errors": self.errors}

    def go_on(self, noted: Mapping[str, Any], past: Iterable[Mapping[str, Any]]) -> None:
        """Count on from what another process has noted. Args: past: of the epochs that had ended."""
        self.all, self.epoch = Span.of(noted["all"]), Span.of(noted["epoch"])
        self.by_choice = CountAndBytes(*noted["by_choice"])
        self.errors.update(noted["errors"])
        self.past.extend(map(Span.of, past))

    def begin_epoch(self) -> None:
        """A job's first rank entered its next epoch."""
        if any(tally.count for tally in self.epoch.reads.values()):  # what was fetched before anybody read is no epoch
            self.past.append(self.epoch)
        self.epoch = Span()
