"""What each place gives: calibrated or told by an earlier mount, and refined by what is measured while this one runs.

In: the calibration, the rates that lanes measure. Out: points and a `PerformanceModel`, with which classes are ordered
and loading is foretold; `status` shows them, the next mount and `mlfs plan` get them (mlfs.measure.refined). Loop only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mlfs.engine.fetch import ClassTier
from mlfs.engine.prefetch import PFS_QUEUE
from mlfs.measure.rates import Rates
from mlfs.measure.refine import DISK_BYTES_PER_S, MEMORY_BYTES_PER_S, Points, best, refine
from mlfs.plan.epochs import EpochCost, Workload, run_cost
from mlfs.plan.model import Curve, PerformanceModel, StorageClass


class Speeds:
    """See the module.

    Args:
        known: points by place (`pfs` or a tier's name) from before this mount. rates: as measured.
    """

    def __init__(self, known: Mapping[str, Points], rates: Rates, tiers: Sequence[ClassTier]) -> None:
        self._known = known
        self._rates = rates
        self._tiers = tiers
        self.places = {PFS_QUEUE: PFS_QUEUE} | {tier.name: f"tier{index}" for index, (_, tier, _) in enumerate(tiers)}

    def points(self, place: str) -> tuple[tuple[float, float], ...]:
        """The refined curve of a place: lanes, bytes a second of all together. Empty when nothing is known."""
        return refine(self._known.get(place, ()), self._rates.measured(self.places[place]))

    def gives(self, place: str) -> float:
        """The most that a place is known to give, bytes a second; 0 for not known."""
        return best(self.points(place))

    def measured(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """The refined curves of those places of which something was measured in this mount."""
        return {place: self.points(place) for place, pool in self.places.items() if self._rates.measured(pool)}

    def model(self, left: Sequence[int]) -> PerformanceModel | None:
        """This node, without the tiers that are `left`; None while nothing is known of the source."""
        source = self.gives(PFS_QUEUE)
        if not source:
            return None
        classes = [
            StorageClass(tier.name, tier.capacity_bytes, curve, curve, 1)
            for (kind, tier, _), is_left in zip(self._tiers, left, strict=True)
            if not is_left and (curve := Curve.flat(self.gives(tier.name) or _default(kind)))
        ]
        nothing = Curve.flat(MEMORY_BYTES_PER_S)
        return PerformanceModel(
            nodes=1, epochs=2, global_batch=1, drop_last=False, compute_bytes_per_s=math.inf,
            preprocess_bytes_per_s=math.inf, network_bytes_per_s=math.inf, pfs=Curve.flat(source),
            staging=StorageClass("staging", 0, nothing, nothing, 1), classes=tuple(classes),
        )  # fmt: skip

    def loading(self, stream_bytes: int, left: Sequence[int]) -> EpochCost | None:
        """How long an epoch after the first takes to load at least; None when that cannot be told."""
        model = self.model(left)
        if model is None or stream_bytes <= 0:
            return None
        return run_cost(model, Workload(stream_bytes, stream_bytes, 0.0, 2, shared=False)).later


def _default(kind: str) -> float:
    return MEMORY_BYTES_PER_S if kind == "ram" else DISK_BYTES_PER_S
