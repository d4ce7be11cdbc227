"""A circuit breaker for each tier: decides when its samples come from the source instead, and when no longer.

Pure; no clock. In: what a tier and the source gave lately for samples of the same sizes, how long readers waited. Out:
whether the tier is passed over. Called once a second by `mlfs.plan.scheduler.routing`.

A sample that lies in a tier could come from the source as well: NoPFS takes the fastest of the cases that apply
(Section 4; `PerformanceModel.fastest`). But everybody shares the source, and each read of a sample that a tier holds
comes on top of the bound of docs/model.md. So a tier is passed over only after ten judgements in a row found all three:
readers wait, a sample takes the tier long, and the source would win even at a third of its bandwidth. Then a few
samples probe the tier from time to time. The tier is used again once the source does not win at two thirds of its
bandwidth any more; after each probe the next one waits twice as long (docs/decisions/slow-tiers.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mlfs.plan.model import Curve, PerformanceModel, StorageClass

PASS_OVER_FACTOR = 3.0
"""The source must be so many times as fast: it is shared, and what it gives to others cannot be measured here."""
RETURN_FACTOR = 1.5
"""The source must still be so many times as fast. It is half of PASS_OVER_FACTOR, so that noise changes nothing."""
SLOW_SAMPLE_S = 0.01
"""A sample that takes a lane less is fast enough. Without this limit a source that answers from the page cache would
win against any disk whose copies are verified, and no reader would notice."""
LEAST_WAITED = 0.25
"""Share of the time that readers wait, summed over readers: below it the lanes keep up, however slow the tier is."""
JUDGEMENTS = 10
"""Judgements in a row that must agree. They are a second apart: a tier may stall for some seconds."""
FEWEST_BATCHES = 8
"""Batches that a judgement needs: the time of fewer says more about single samples than about the tier."""
FEWEST_OF_A_SIZE = 4
"""Batches that a class of sizes needs to be compared: half of FEWEST_BATCHES, as a tier mostly holds a few classes."""
FIRST_PROBE_S = 15.0
"""Wait before the first probe: longer than the ten judgements, short beside an epoch."""
MOST_PROBE_S = 960.0
"""The longest wait between probes, six doublings of the first: a tier that recovers is used within a long epoch."""
PROBE_LASTS_S = 60.0
"""A probe ends without a result when too few of the tier's samples were asked for in so long."""
CALM_S = 600.0
"""A tier that was used for so long counts as recovered: if it becomes slow again, the waits begin anew."""
LEAST_IN_COMMON = 0.5
"""Share of the tier's bytes that must be of sizes for which the source was measured as well: with less, a judgement
would be about a minority of the samples."""


def size_class(size_bytes: float) -> int:
    """A number that is the same for sizes within a factor of four. Bandwidths are compared within such a class only."""
    return int(size_bytes).bit_length() // 2


class Pace(NamedTuple):
    """The pace of all lanes of a route together lately, for samples of one class of sizes, while more work waited.

    Attributes:
        bytes: how many were seen; the weight of the size class. batches: in how many batches they came.
    """

    bytes_per_s: float
    bytes: float
    batches: int


class CircuitEvidence(NamedTuple):
    """The figures of one judgement.

    Attributes:
        tier_bytes_per_s, source_bytes_per_s: for samples of the sizes that lie in the tier.
        sample_bytes: the mean size of a sample of the tier.
        sample_s: how long such a sample takes one lane.
        batches: how many the tier gave since the judgement before.
        waited: share of the time since that judgement that readers waited, summed over readers.
    """

    tier_bytes_per_s: float
    source_bytes_per_s: float
    sample_bytes: float
    sample_s: float
    batches: int
    waited: float


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a tier.

    Attributes:
        passed_over: its samples come from the source.
        slow: judgements in a row that found it slow.
        since_s: when `passed_over` changed last.
        probe_after_s: how long to wait before the next probe.
        probing_since_s: when the probe under way began, None while there is none.
        next_probe_s: when the next probe may begin.
    """

    passed_over: bool = False
    slow: int = 0
    since_s: float = 0.0
    probe_after_s: float = FIRST_PROBE_S
    probing_since_s: float | None = None
    next_probe_s: float = math.inf

    def may_probe(self, now_s: float) -> bool:
        """Whether a probe may begin: a few samples then come from the tier."""
        return self.passed_over and self.probing_since_s is None and now_s >= self.next_probe_s

    def begin_probe(self, now_s: float) -> Use:
        """The same use, with a probe under way."""
        return replace(self, probing_since_s=now_s)

    def come_back(self, now_s: float) -> Use:
        """The tier is used from now on."""
        return replace(self, passed_over=False, slow=0, since_s=now_s, probing_since_s=None, next_probe_s=math.inf)


def in_common(tier: Mapping[int, Pace], source: Mapping[int, Pace]) -> tuple[float, float] | None:
    """Bytes a second of a tier and of the source for the tier's samples: small samples are not compared with large.

    Args:
        tier, source: by class of sizes.

    Returns:
        None unless both were measured for at least half of what the tier gave.
    """
    enough = {kind: pace for kind, pace in tier.items() if pace.batches >= FEWEST_OF_A_SIZE and pace.bytes_per_s > 0}
    both = {
        kind: (pace, source[kind])
        for kind, pace in enough.items()
        if kind in source and source[kind].batches >= FEWEST_OF_A_SIZE and source[kind].bytes_per_s > 0
    }
    total = sum(pace.bytes for pace, _ in both.values())
    if not both or total < LEAST_IN_COMMON * sum(pace.bytes for pace in enough.values()):
        return None
    tier_s = sum(pace.bytes / pace.bytes_per_s for pace, _ in both.values())
    source_s = sum(pace.bytes / other.bytes_per_s for pace, other in both.values())
    return total / tier_s, total / source_s


def source_wins(found: CircuitEvidence, factor: float) -> bool:
    """Whether the source would be the fastest of the cases even at 1/factor of its bandwidth.

    All lanes of a route work on one queue, so what a sample costs there is its bytes over what they give together.
    """
    curve, source = Curve.flat(found.tier_bytes_per_s), Curve.flat(found.source_bytes_per_s / factor)
    tier = StorageClass("tier", 0, curve, curve, 1)
    model = PerformanceModel(
        nodes=1, epochs=1, global_batch=1, drop_last=False, compute_bytes_per_s=math.inf,
        preprocess_bytes_per_s=math.inf, network_bytes_per_s=math.inf, pfs=source, staging=tier, classes=(tier,),
    )  # fmt: skip
    route, _ = model.fastest(found.sample_bytes, 1, 0, -1)
    return int(route) == 0


def judge(use: Use, found: CircuitEvidence | None, now_s: float) -> Use:
    """How the tier is used after one more judgement; `found` is None when nothing can be compared."""
    if use.passed_over:
        return _judge_probe(use, found, now_s) if use.probing_since_s is not None else use
    if found is None or found.batches < FEWEST_BATCHES:
        return use
    slow = found.waited >= LEAST_WAITED and found.sample_s >= SLOW_SAMPLE_S and source_wins(found, PASS_OVER_FACTOR)
    if not slow:
        return replace(use, slow=0)
    if use.slow + 1 < JUDGEMENTS:
        return replace(use, slow=use.slow + 1)
    after = FIRST_PROBE_S if now_s - use.since_s > CALM_S else use.probe_after_s
    return Use(passed_over=True, since_s=now_s, probe_after_s=after, next_probe_s=now_s + after)


def _judge_probe(use: Use, found: CircuitEvidence | None, now_s: float) -> Use:
    assert use.probing_since_s is not None
    if found is not None and found.batches >= FEWEST_BATCHES:
        longer = min(MOST_PROBE_S, 2 * use.probe_after_s)
        if not source_wins(found, RETURN_FACTOR):
            return replace(use.come_back(now_s), probe_after_s=longer)
        return replace(use, probing_since_s=None, probe_after_s=longer, next_probe_s=now_s + longer)
    if now_s - use.probing_since_s > PROBE_LASTS_S:  # too few of its samples were asked for
        return replace(use, probing_since_s=None, next_probe_s=now_s + use.probe_after_s)
    return use
