"""From which place a sample is fetched, this node's copy, its owner or the source; and when a slow tier is left.

Pure. In: who holds and who owns a sample, paces measured by the lanes, how long readers waited. Out: place numbers.
When a tier is left and tried again is decided in mlfs.plan.circuit_breaker. The RAM class is never left. A tier that is
left keeps what it holds and gets nothing new; if the source fails, it is used as if it had not been left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlfs.plan.circuit_breaker import FEWEST_BATCHES, Evidence, Pace, Use, in_common, judge, size_class
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.commands import Command, Warn
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo

# Paces change over seconds; judging more often would only see the same batches again.
JUDGE_EVERY_S = 1.0
# Enough samples of a tier that was left to see how it does now, few enough that a slow one costs little.
TRIED_AT_ONCE = 32


class Rates(Protocol):
    """Measured rates of pools (mlfs.measure.rates): what is asked of them and told them here."""

    def batch(
        self, pool: int, lanes: int, size_bytes: int, wall_s: float, samples: int = 1, pace_lanes: int = 0
    ) -> None:
        """A batch is done: bytes and samples in so many seconds, while so many lanes worked."""

    def paces(self, pool: int) -> dict[int, Pace]:
        """What all lanes of the pool together gave lately, by classes of sizes."""

    def sample(self, pool: int) -> tuple[float, float] | None:
        """Mean bytes of a sample, and the seconds that it takes a lane; None before any was measured."""

    def forget_pace(self, pool: int) -> None:
        """Measure the pool's pace anew."""

    def job_read(self, name: str, observed: int, now_s: float, stall_s: float) -> None:
        """A job has read so many samples, and readers have waited so long in all."""


@dataclass(frozen=True, slots=True)
class RoutingStatistics:
    """What `status` shows: by place, whether it is left, and what the last judgement was about."""

    left: tuple[bool, ...]
    found: tuple[Evidence | None, ...]


class Routing:
    """See the module.

    Args:
        known_source: what an earlier measurement says of the source, by class of sizes: it stands in until the source
            is measured.
    """

    def __init__(
        self, places: Sequence[PlaceInfo], rates: Rates, known_source: Mapping[int, float], out: list[Command]
    ) -> None:
        self._places = tuple(places)
        self._rates = rates
        self._out = out
        self._known_source = dict(known_source)
        self._left = [False] * len(places)
        self._lost_peers: set[int] = set()
        self._peer_of_node = {place.node: number for number, place in enumerate(places) if place.node >= 0}
        self._uses = [Use() for _ in places]
        self._found: list[Evidence | None] = [None] * len(places)
        self._batches = [0] * len(places)
        self._tried: set[int] = set()  # samples that are fetched from a tier that is left, to see how it does now
        self._to_try = 0
        self._judged_s = self._waited_s = 0.0

    def statistics(self) -> RoutingStatistics:
        """Frozen figures."""
        return RoutingStatistics(tuple(self._left), tuple(self._found))

    @property
    def left(self) -> Sequence[bool]:
        """By place, whether it is passed over for the source."""
        return self._left

    def is_left(self, place: int) -> bool:
        """Whether a tier is passed over for the source."""
        return self._left[place]

    def for_reader(self, sample: int, held_by: int, owner: int) -> int:
        """The place for a reader who waits: this is no time to try how a tier does now."""
        self._tried.discard(sample)
        return SOURCE if held_by and self._left[held_by] else self._near(held_by, owner)

    def ahead(self, sample: int, held_by: int, owner: int, now_s: float) -> int:
        """The place for a prefetch. A few may try a tier that is left."""
        if not held_by or not self._left[held_by]:
            return self._near(held_by, owner)
        if self._uses[held_by].may_try(now_s) and not any(use.trying_s is not None for use in self._uses):
            self._uses[held_by] = self._uses[held_by].begin_try(now_s)
            self._rates.forget_pace(held_by)
            self._batches[held_by] = 0
            self._tried.clear()
            self._to_try = TRIED_AT_ONCE
        if self._uses[held_by].trying_s is None or not self._to_try:
            return SOURCE
        self._to_try -= 1
        self._tried.add(sample)
        return held_by

    def _near(self, held_by: int, owner: int) -> int:
        """The node's own copy, else the owner's, else the source."""
        if held_by:
            return held_by
        peer = self._peer_of_node.get(owner, SOURCE)
        return SOURCE if peer in self._lost_peers else peer

    def joined(self, places: Sequence[PlaceInfo]) -> None:
        """Peers are places from now on."""
        first = len(self._places)
        self._places = (*self._places, *places)
        self._left += [False] * len(places)
        self._uses += [Use() for _ in places]
        self._found += [None] * len(places)
        self._batches += [0] * len(places)
        self._peer_of_node.update({place.node: number for number, place in enumerate(places, first)})

    def is_elsewhere(self, owner: int) -> bool:
        """Whether an owner is another node."""
        return owner in self._peer_of_node

    def peer_lost(self, place: int, lost: bool) -> None:
        """A peer does not answer any more, or does again."""
        (self._lost_peers.add if lost else self._lost_peers.discard)(place)

    def tries(self, place: int) -> bool:
        """Whether a tier that was left is being tried."""
        return self._uses[place].trying_s is not None

    def come_back(self, now_s: float) -> None:
        """The source failed or hangs: all tiers are used again, until it is measured anew."""
        if any(self._left):
            self._known_source = {}
            self._rates.forget_pace(SOURCE)
        for place, left in enumerate(self._left):
            if left:
                self._out.append(Warn(f"{self._places[place].name} is used again: the source does not answer"))
                self._change(place, self._uses[place].come_back(now_s), say=False)

    def judge(self, now_s: float, waited_s: float) -> None:
        """Think it over, once a second at most. `waited_s`: how long readers have waited in all."""
        passed = now_s - self._judged_s
        if passed < JUDGE_EVERY_S:
            return
        waited = (waited_s - self._waited_s) / passed
        self._judged_s, self._waited_s = now_s, waited_s
        source: dict[int, Pace] | None = None
        for place, info in enumerate(self._places):
            if info.kind not in (PlaceKind.SSD, PlaceKind.LMDB):
                continue
            if source is None:
                known = {kind: Pace(rate, 1.0, 1 << 20) for kind, rate in self._known_source.items()}
                source = known | self._rates.paces(SOURCE)
            found = self._evidence(place, source, waited)
            self._found[place] = found or self._found[place]
            self._change(place, judge(self._uses[place], found, now_s))

    def _evidence(self, place: int, source: Mapping[int, Pace], waited: float) -> Evidence | None:
        paces = self._rates.paces(place)
        batches = sum(pace.batches for pace in paces.values())
        new = batches - self._batches[place]
        if new >= FEWEST_BATCHES and not self._left[place]:  # else it goes on counting: a very slow tier gives few
            self._batches[place] = batches
        rates = in_common(paces, source)
        sample = self._rates.sample(place)
        if rates is None or sample is None:
            return None
        return Evidence(*rates, *sample, new, waited)

    def _change(self, place: int, use: Use, say: bool = True) -> None:
        before, self._uses[place] = self._uses[place], use
        if before.trying_s is not None and use.trying_s is None:
            self._tried.clear()
            self._to_try = 0
        if before.left == use.left:
            return
        self._left[place] = use.left
        if say:
            found = self._found[place]
            rates = f"{found.tier_bytes_per_s / 1e6:.1f} and {found.source_bytes_per_s / 1e6:.1f} MB/s" if found else ""
            said = "is slow: its samples come from the source" if use.left else "is used again"
            self._out.append(Warn(f"{self._places[place].name} {said} (it and the source gave {rates})"))


def known_source(bytes_per_s: float, mean_sample_bytes: float) -> dict[int, float]:
    """What a calibration says of the source, by class of sizes: it was measured with samples of the mean size."""
    if not (bytes_per_s > 0 and mean_sample_bytes >= 1):
        return {}
    return {size_class(mean_sample_bytes): bytes_per_s}
