"""When a tier is passed over for the source, and when it is used again.

Pure; no clock. In: what a tier and the source gave lately for samples of the same sizes, how long readers waited. Out:
whether the tier is used. Called once a second by the daemon (mlfs.plan.scheduler.routing).

A sample that lies in a tier could come from the source as well: NoPFS takes the fastest of the cases that apply
(Section 4; `PerformanceModel.fastest`). But the source is shared by everybody, and what is read from it though it lies
in a tier comes on top of the bound of docs/model.md. So a tier is left only while all of this holds, again and
again for ten seconds: readers wait, a sample takes it long, and the source would win at a third of its bandwidth. A
tier that was left is tried now and then with a few samples, and used again when the source does not win at two thirds
of its bandwidth any more; tries come the more seldom, the more of them failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mlfs.plan.model import Curve, PerformanceModel, StorageClass

LEAVE_FACTOR = 3.0
RETURN_FACTOR = 1.5
SLOW_SAMPLE_S = 0.01
WAITED = 0.25
JUDGEMENTS = 10
FEWEST_BATCHES = 8
FEWEST_OF_A_SIZE = 4
FIRST_TRY_S = 15.0
MOST_TRY_S = 960.0
TRY_LASTS_S = 60.0
CALM_S = 600.0
IN_COMMON = 0.5


def size_class(size_bytes: float) -> int:
    """A number that is the same for sizes within a factor of four. Bandwidths are compared within such a class only."""
    return int(size_bytes).bit_length() // 2


class Pace(NamedTuple):
    """What all lanes of a route together gave lately for samples of one class of sizes, while more work waited.

    Attributes:
        bytes: seen, the weight of the size class. batches: they came in.
    """

    bytes_per_s: float
    bytes: float
    batches: int


class Evidence(NamedTuple):
    """What one judgement is about.

    Attributes:
        tier_bytes_per_s, source_bytes_per_s: for samples as they lie in the tier. sample_bytes, sample_s: of a sample
            of the tier, in one lane. batches: of the tier, since the judgement before. waited: share of the time since
            then that readers waited, summed over readers.
    """

    tier_bytes_per_s: float
    source_bytes_per_s: float
    sample_bytes: float
    sample_s: float
    batches: int
    waited: float


@dataclass(frozen=True, slots=True)
class Use:
    """How a tier is used.

    Attributes:
        left: passed over for the source. slow: judgements in a row that found it slow. since_s: so since then.
        try_after_s: how long to wait before the next try. trying_s: when a try began, None while none is under way.
        next_try_s: when the next one may begin.
    """

    left: bool = False
    slow: int = 0
    since_s: float = 0.0
    try_after_s: float = FIRST_TRY_S
    trying_s: float | None = None
    next_try_s: float = math.inf

    def may_try(self, now_s: float) -> bool:
        """Whether a few samples shall come from it again."""
        return self.left and self.trying_s is None and now_s >= self.next_try_s

    def begin_try(self, now_s: float) -> Use:
        """A few samples come from it now."""
        return replace(self, trying_s=now_s)

    def come_back(self, now_s: float) -> Use:
        """Use it from now on, whatever it gives: the source failed."""
        return replace(self, left=False, slow=0, since_s=now_s, trying_s=None, next_try_s=math.inf)


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
    if not both or total < IN_COMMON * sum(pace.bytes for pace in enough.values()):
        return None
    tier_s = sum(pace.bytes / pace.bytes_per_s for pace, _ in both.values())
    source_s = sum(pace.bytes / other.bytes_per_s for pace, other in both.values())
    return total / tier_s, total / source_s


def source_wins(found: Evidence, factor: float) -> bool:
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


def judge(use: Use, found: Evidence | None, now_s: float) -> Use:
    """One judgement. `found` is None when nothing can be compared."""
    if use.left:
        return _judge_try(use, found, now_s) if use.trying_s is not None else use
    if found is None or found.batches < FEWEST_BATCHES:
        return use
    slow = found.waited >= WAITED and found.sample_s >= SLOW_SAMPLE_S and source_wins(found, LEAVE_FACTOR)
    if not slow:
        return replace(use, slow=0)
    if use.slow + 1 < JUDGEMENTS:
        return replace(use, slow=use.slow + 1)
    after = FIRST_TRY_S if now_s - use.since_s > CALM_S else use.try_after_s
    return Use(left=True, since_s=now_s, try_after_s=after, next_try_s=now_s + after)


def _judge_try(use: Use, found: Evidence | None, now_s: float) -> Use:
    assert use.trying_s is not None
    if found is not None and found.batches >= FEWEST_BATCHES:
        longer = min(MOST_TRY_S, 2 * use.try_after_s)
        if not source_wins(found, RETURN_FACTOR):
            return replace(use.come_back(now_s), try_after_s=longer)
        return replace(use, trying_s=None, try_after_s=longer, next_try_s=now_s + longer)
    if now_s - use.trying_s > TRY_LASTS_S:  # nobody asked for enough of its samples
        return replace(use, trying_s=None, next_try_s=now_s + use.try_after_s)
    return use
