"""Decides whence a sample is fetched: from this node's copy, its owner or the source. Passes slow tiers over.

Pure. In: who holds and who owns a sample, paces measured by the lanes, how long readers waited. Out: place numbers.
The last section says which of the places that have a sample is the cheapest, by what was measured up to a second ago.
`mlfs.plan.circuit_breaker` decides when a tier is passed over and when it is probed. The RAM class never is. A tier
that is passed over keeps what it holds and gets nothing new; when the source fails, it is used again at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mlfs.plan.circuit_breaker import (
    FEWEST_BATCHES,
    FEWEST_OF_A_SIZE,
    CircuitEvidence,
    Pace,
    Use,
    in_common,
    judge,
    size_class,
)
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.commands import Command, Warn
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo

# Paces change over seconds: more frequent judgements would only see the same batches again.
JUDGE_EVERY_S = 1.0
# Samples of one probe: enough batches for a judgement, few enough that a slow tier costs little.
PROBE_SAMPLES = 32
# All places begin alike, and share the record as long as they are: a node may have a thousand peers.
_FRESH = Use()


class MeasuredRates(Protocol):
    """Measured rates of pools, as far as routing asks for them and reports to them.

    A mount's are in `mlfs.measure.rates`. A simulated cluster measures none: its places never become slow.
    """

    def batch(
        self, pool: int, lanes: int, size_bytes: int, wall_s: float, samples: int = 1, pace_lanes: int = 0
    ) -> None:
        """A batch has ended: its bytes and samples took a lane `wall_s`, while `lanes` lanes worked."""

    def paces(self, pool: int) -> dict[int, Pace]:
        """The bandwidth of all lanes of the pool together lately, by classes of sizes."""

    def sample(self, pool: int) -> tuple[float, float] | None:
        """Mean bytes of a sample, and the seconds that it takes a lane; None before any was measured."""

    def forget_pace(self, pool: int) -> None:
        """Measure the pool's pace anew."""


@dataclass(frozen=True, slots=True)
class RoutingStatistics:
    """By place, whether it is passed over, and the evidence of the last judgement."""

    passed_over: tuple[bool, ...]
    found: tuple[CircuitEvidence | None, ...]


class Routing:
    """The choice of a place for each fetch, and the tiers that are passed over.

    Args:
        sizes: bytes by sample.
        known_source: what an earlier measurement says of the source, by class of sizes: it stands in until the source
            is measured.

    Attributes:
        passed_over: by place, whether it is passed over for the source; for others to read.
    """

    def __init__(
        self,
        places: Sequence[PlaceInfo],
        sizes: memoryview,
        rates: MeasuredRates,
        known_source: Mapping[int, float],
        out: list[Command],
    ) -> None:
        self._places = tuple(places)
        self._sizes = sizes
        self._rates = rates
        self._out = out
        self._gives: dict[int, dict[int, float]] = {}  # bytes a second by pool and class of sizes, as last measured
        self._known_source = dict(known_source)
        self.passed_over = [False] * len(places)
        self._lost_peers: set[int] = set()
        self._first_peer = next((number for number, place in enumerate(places) if place.node >= 0), SOURCE)
        self._peer_of_node = {place.node: number for number, place in enumerate(places) if place.node >= 0}
        self._uses = [_FRESH] * len(places)
        self._found: list[CircuitEvidence | None] = [None] * len(places)
        self._batches = [0] * len(places)
        self._probed: set[int] = set()  # samples that are fetched from a tier that is passed over, to measure it
        self._probes_left = 0
        self._judged_s = self._waited_s = 0.0

    def statistics(self) -> RoutingStatistics:
        return RoutingStatistics(tuple(self.passed_over), tuple(self._found))

    def for_reader(self, sample: int, held_by: int, owner: int) -> int:
        """The place for a reader who waits; such a fetch never probes."""
        self._probed.discard(sample)
        return self.nearest(sample, held_by, owner)

    def ahead(self, sample: int, held_by: int, owner: int, now_s: float) -> int:
        """The place for a prefetch. A few prefetches probe a tier that is passed over."""
        if not held_by and owner < 0:
            return SOURCE
        if not held_by or not self.passed_over[held_by]:
            return self.nearest(sample, held_by, owner)
        if self._uses[held_by].may_probe(now_s) and not any(use.probing_since_s is not None for use in self._uses):
            self._uses[held_by] = self._uses[held_by].begin_probe(now_s)
            self._rates.forget_pace(held_by)
            self._batches[held_by] = 0
            self._probed.clear()
            self._probes_left = PROBE_SAMPLES
        if self._uses[held_by].probing_since_s is None or not self._probes_left:
            return self.nearest(sample, held_by, owner)
        self._probes_left -= 1
        self._probed.add(sample)
        return held_by

    def is_nearest(self, sample: int, held_by: int, owner: int) -> bool:
        """Whether the sample is best got from the copy that a place of this node holds."""
        return bool(held_by) and self.nearest(sample, held_by, owner) == held_by

    def nearest(self, sample: int, held_by: int, owner: int) -> int:
        """The node's own copy, the owner's or the source: those that there are, and are not to be left out.

        From any thread.
        """
        has_copy = bool(held_by) and not self.passed_over[held_by]
        peer = self._peer_of_node.get(owner, SOURCE)
        has_owner = peer != SOURCE and peer not in self._lost_peers
        if not (has_copy and has_owner):  # most samples: there is nothing to choose
            return held_by if has_copy else peer if has_owner else SOURCE
        kind = size_class(self._sizes[sample])
        own = Option(held_by, self._places[held_by].kind, self._gives.get(held_by, {}).get(kind, 0.0))
        return cheapest([own, Option(peer, PlaceKind.PEER, self._gives.get(self._first_peer, {}).get(kind, 0.0))])

    def joined(self, places: Sequence[PlaceInfo]) -> None:
        """Peers are places from now on."""
        first = len(self._places)
        self._first_peer = self._first_peer or first
        self._places = (*self._places, *places)
        self.passed_over += [False] * len(places)
        self._uses += [_FRESH] * len(places)
        self._found += [None] * len(places)
        self._batches += [0] * len(places)
        self._peer_of_node.update({place.node: number for number, place in enumerate(places, first)})

    def is_elsewhere(self, owner: int) -> bool:
        """Whether an owner is another node."""
        return owner in self._peer_of_node

    def peer_lost(self, place: int, lost: bool) -> None:
        """A peer does not answer any more, or with `lost` False it does again."""
        (self._lost_peers.add if lost else self._lost_peers.discard)(place)

    def is_probed(self, place: int) -> bool:
        """Whether a probe of a tier is under way."""
        return self._uses[place].probing_since_s is not None

    def come_back(self, now_s: float) -> None:
        """The source failed or hangs: all tiers are used again until the source is measured anew."""
        if any(self.passed_over):
            self._known_source = {}
            self._rates.forget_pace(SOURCE)
        for place, was_passed_over in enumerate(self.passed_over):
            if was_passed_over:
                self._out.append(Warn(f"{self._places[place].name} is used again: the source does not answer"))
                self._change(place, self._uses[place].come_back(now_s), say=False)

    def judge(self, now_s: float, waited_s: float) -> None:
        """Judge each tier, once a second at most. `waited_s`: how long readers have waited in all."""
        passed = now_s - self._judged_s
        if passed < JUDGE_EVERY_S:
            return
        waited = (waited_s - self._waited_s) / passed
        self._judged_s, self._waited_s = now_s, waited_s
        self._gives = {place: self._measured(place) for place in self._compared()}
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

    def _compared(self) -> list[int]:
        """The pools whose paces decide between this node's copies and the owners': disks, and all peers together."""
        if not self._first_peer:
            return []
        disks = (PlaceKind.SSD, PlaceKind.LMDB)
        return [
            *(n for n, place in enumerate(self._places[: self._first_peer]) if place.kind in disks),
            self._first_peer,
        ]

    def _measured(self, pool: int) -> dict[int, float]:
        paces = self._rates.paces(pool)
        return {kind: pace.bytes_per_s for kind, pace in paces.items() if pace.batches >= FEWEST_OF_A_SIZE}

    def _evidence(self, place: int, source: Mapping[int, Pace], waited: float) -> CircuitEvidence | None:
        paces = self._rates.paces(place)
        batches = sum(pace.batches for pace in paces.values())
        new = batches - self._batches[place]
        if new >= FEWEST_BATCHES and not self.passed_over[place]:  # else the count goes on: a very slow tier gives few
            self._batches[place] = batches
        rates = in_common(paces, source)
        sample = self._rates.sample(place)
        if rates is None or sample is None:
            return None
        return CircuitEvidence(*rates, *sample, new, waited)

    def _change(self, place: int, use: Use, say: bool = True) -> None:
        before, self._uses[place] = self._uses[place], use
        if before.probing_since_s is not None and use.probing_since_s is None:
            self._probed.clear()
            self._probes_left = 0
        if before.passed_over == use.passed_over:
            return
        self.passed_over[place] = use.passed_over
        if say:
            found = self._found[place]
            rates = f"{found.tier_bytes_per_s / 1e6:.1f} and {found.source_bytes_per_s / 1e6:.1f} MB/s" if found else ""
            said = "is slow: its samples come from the source" if use.passed_over else "is used again"
            self._out.append(Warn(f"{self._places[place].name} {said} (it and the source gave {rates})"))


def known_source(bytes_per_s: float, mean_sample_bytes: float) -> dict[int, float]:
    """A calibration's bandwidth of the source, by class of sizes: it was measured with samples of the mean size."""
    if not (bytes_per_s > 0 and mean_sample_bytes >= 1):
        return {}
    return {size_class(mean_sample_bytes): bytes_per_s}


# -- the place that gives a sample soonest, as far as that is known
#
# In: the places that have the sample, nearest first, with what each was measured to give. Out: one of them. A sample
# costs its bytes over what all lanes of a place give together (NoPFS, Section 4: fetch_{i,j}; docs/model.md): the lanes
# of a place work on one queue.

FARTHER_FACTOR = 1.5
"""A place farther off must be so many times as fast as a nearer one. Measured rates differ by less from one second to
the next, and what is got over the network takes room on links that others use as well."""


class Option(NamedTuple):
    """A place that has the sample.

    Attributes:
        bytes_per_s: what all its lanes together gave lately for samples of about this size; 0 where that is not known.
    """

    place: int
    kind: PlaceKind
    bytes_per_s: float = 0.0


def cheapest(options: Sequence[Option]) -> int:
    """The place to get a sample from.

    A place farther off is taken only where both were measured. Two kinds of places are exempt from the comparison.
    Memory of this node is not left for anything. The source is taken only where nothing else has the sample, however
    fast it is: all nodes share it, each read of it comes on top of the least that a cluster can do with, and an owner
    that is slow mostly waits for the source itself. Whether the source is so much faster than a disk that this is worth
    it is judged apart, with more care (`mlfs.plan.circuit_breaker`).

    Args:
        options: nearest first, at least one.
    """
    best = options[0]
    for option in options[1:]:
        if best.kind is PlaceKind.RAM or option.kind is PlaceKind.SOURCE:
            break
        if 0 < FARTHER_FACTOR * best.bytes_per_s < option.bytes_per_s:
            best = option
    return best.place
