"""By which route a sample is fetched that a tier holds: from there, or from the source where the tier has become slow.

In: paces measured by the prefetch lanes, how long readers waited. Out: `left`, a flag a tier, which fetches look at,
and a few samples that are tried from a tier that is left. When is decided in mlfs.plan.circuit_breaker (pure). The RAM
class is never left. What is fetched by choice is counted (`Fetched.by_choice`), and `status` says so.

Loop only, but that worker threads read `left` and take entries out of `tried` (atomic steps both). A tier that is left
keeps what it holds and gets nothing new. If the source fails, tiers are used as if they had not been left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from mlfs.measure.rates import Rates, size_class
from mlfs.plan.circuit_breaker import FEWEST_BATCHES, Evidence, Pace, Use, in_common, judge

log = logging.getLogger("mlfs.engine")

JUDGE_EVERY_S = 1.0
TRIED_AT_ONCE = 32


class Routes:
    """See the module.

    Args:
        names: of the tiers. kinds: of the same. rates: as measured. pools: of the tiers' lanes.
        known_source: what an earlier measurement says of the source, by class of sizes: stands in until it is measured.

    Attributes:
        left: 1 for a tier that is passed over, by index.
        found: what the last judgement of a tier was about.
        tried: entries that are fetched from a tier that is left, to see how it does now.
    """

    def __init__(
        self, names: Sequence[str], kinds: Sequence[str], rates: Rates, source: str,
        known_source: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.left = bytearray(len(names))
        self.tried: set[int] = set()
        self.uses = [Use() for _ in names]
        self.found: list[Evidence | None] = [None] * len(names)
        self._names = names
        self._kinds = kinds
        self._rates = rates
        self._source = source
        self._known_source = known_source or {}
        self._to_try = 0
        self._batches = [0] * len(names)
        self._judged_s = self._waited_s = 0.0

    def passes_over(self, entry: int, tier: int) -> bool:
        """Whether the entry's fetch leaves out the tier that holds it. From any thread."""
        return bool(self.left[tier]) and entry not in self.tried

    def from_tier(self, entry: int, tier: int, now_s: float) -> bool:
        """Whether to queue the entry for the tier that holds it; else for the source."""
        if not self.left[tier]:
            return True
        if self.uses[tier].may_try(now_s) and not self._trying():
            self.uses[tier] = self.uses[tier].begin_try(now_s)
            self._rates.forget_pace(_pool(tier))
            self._batches[tier] = 0
            self.tried.clear()
            self._to_try = TRIED_AT_ONCE
        if self.uses[tier].trying_s is None or not self._to_try:
            return False
        self._to_try -= 1
        self.tried.add(entry)
        return True

    def tries(self, pool: str) -> bool:
        """Whether a tier that was left is being tried, by its lanes' pool."""
        return any(use.trying_s is not None and _pool(tier) == pool for tier, use in enumerate(self.uses))

    def come_back(self, now_s: float) -> None:
        """The source failed or hangs: all tiers are used again, until it is measured anew."""
        if any(self.left):
            self._known_source = {}
            self._rates.forget_pace(self._source)
        for tier in range(len(self.left)):
            if self.left[tier]:
                log.warning("%s is used again: the source does not answer", self._names[tier])
                self._change(tier, self.uses[tier].come_back(now_s))

    def judge(self, now_s: float, waited_s: float) -> None:
        """Think it over, once a second at most. `waited_s`: how long readers have waited since the mount."""
        passed = now_s - self._judged_s
        if passed < JUDGE_EVERY_S:
            return
        waited = (waited_s - self._waited_s) / passed
        self._judged_s, self._waited_s = now_s, waited_s
        source: dict[int, Pace] | None = None
        for tier, kind in enumerate(self._kinds):
            if kind == "ram":
                continue
            if source is None:
                source = self._source_paces()
            found = self._evidence(tier, source, waited)
            self.found[tier] = found or self.found[tier]
            self._change(tier, judge(self.uses[tier], found, now_s))

    def _source_paces(self) -> dict[int, Pace]:
        known = {kind: Pace(rate, 1.0, 1 << 20) for kind, rate in self._known_source.items()}
        return known | self._rates.paces(self._source)

    def _evidence(self, tier: int, source: Mapping[int, Pace], waited: float) -> Evidence | None:
        paces = self._rates.paces(_pool(tier))
        batches = sum(pace.batches for pace in paces.values())
        new = batches - self._batches[tier]
        if new >= FEWEST_BATCHES and not self.left[tier]:  # else it goes on counting: a very slow tier gives few
            self._batches[tier] = batches
        rates = in_common(paces, source)
        sample = self._rates.sample(_pool(tier))
        if rates is None or sample is None:
            return None
        return Evidence(*rates, *sample, new, waited)

    def _trying(self) -> bool:
        return any(use.trying_s is not None for use in self.uses)

    def _change(self, tier: int, use: Use) -> None:
        before, self.uses[tier] = self.uses[tier], use
        if before.trying_s is not None and use.trying_s is None:
            self.tried.clear()
            self._to_try = 0
        if before.left == use.left:
            return
        self.left[tier] = use.left
        found = self.found[tier]
        rates = f"{found.tier_bytes_per_s / 1e6:.1f} and {found.source_bytes_per_s / 1e6:.1f} MB/s" if found else ""
        said = "is slow: its samples come from the source" if use.left else "is used again"
        log.warning("%s %s (it and the source gave %s)", self._names[tier], said, rates)


def known_source(bytes_per_s: float, mean_sample_bytes: float) -> dict[int, float]:
    """What a calibration says of the source: it was measured with samples of the source's mean size."""
    if not (bytes_per_s > 0 and mean_sample_bytes >= 1):
        return {}
    return {size_class(mean_sample_bytes): bytes_per_s}


def _pool(tier: int) -> str:
    return f"tier{tier}"
