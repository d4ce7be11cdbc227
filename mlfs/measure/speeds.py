"""The speed of each place now: measured earlier, and moved to what this mount measures while it runs.

In: points of each place from before the mount (mlfs.measure.earlier), the rates of the prefetch lanes. Out: a curve a
place, and a `PerformanceModel` of this node. The engine asks it which disk to fill first, `status` shows its
statistics, and at the end of the mount those are saved. Called on the loop only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlfs.measure.rates import Rates
from mlfs.measure.refine import DISK_BYTES_PER_S, MEMORY_BYTES_PER_S, Measured, Points, best, refine
from mlfs.places.place import PlaceKind
from mlfs.plan.epochs import EpochCost, Workload, run_cost
from mlfs.plan.model import Curve, PerformanceModel, StorageClass


class MeasuredPlace(NamedTuple):
    """A place as it has to be known to measure it, to find earlier measurements of it, and to plan with it.

    Attributes:
        name: as mlfs.places.place has it, unique in a mount.
        capacity_bytes: its budget; 0 for the source.
    """

    kind: PlaceKind
    name: str
    capacity_bytes: int = 0

    @property
    def path(self) -> str:
        """The directory of a place on disk, whose name is `KIND:DIRECTORY`; empty for any other place."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class PlaceSpeeds:
    """The bandwidth of a place by lanes, in bytes a second of all lanes together.

    Attributes:
        measured: what this mount measured. calibrated: what the calibration says.
        refined: what is planned with: the earlier curve, moved to what this mount measured.
    """

    measured: tuple[Measured, ...] = field(metadata={"key": None})
    calibrated: tuple[tuple[float, float], ...] = field(metadata={"digits": 0})
    refined: tuple[tuple[float, float], ...] = field(metadata={"digits": 0})


@dataclass(frozen=True, slots=True)
class SpeedsStatistics:
    """The known speeds at which this node gets its samples.

    Attributes:
        places: by the place's name. peers: of all other nodes together; None while nothing came from them.
        loading: what an epoch after the first takes at least, None while that cannot be told.
    """

    places: Mapping[str, PlaceSpeeds]
    loading: EpochCost | None
    peers: PlaceSpeeds | None = None


class Speeds:
    """The bandwidth curves of all places, refined by what lanes measure.

    Args:
        calibrated: points of a calibration, by the place's name; places that were never measured are missing.
        refined: the same as earlier mounts refined it: where a place stands in both, this one counts.
        rates: what this mount measures.
        places: the source and the tiers in the order of their numbers, by the key under which `rates` has them.
        peers: the key under which `rates` has all other nodes together.
    """

    def __init__(
        self,
        calibrated: Mapping[str, Points],
        refined: Mapping[str, Points],
        rates: Rates,
        places: Mapping[Any, MeasuredPlace],
        peers: Hashable = None,
    ) -> None:
        self._calibrated = calibrated
        self._earlier = {**calibrated, **refined}
        self._rates = rates
        self._source = next(place for place in places.values() if place.kind is PlaceKind.SOURCE)
        self._storing = [place for place in places.values() if place.kind is not PlaceKind.SOURCE]
        self._routes = {place.name: key for key, place in places.items()}
        self._peers = peers

    def points(self, place: str) -> tuple[tuple[float, float], ...]:
        """The curve of a place as it is now. Empty when it was never measured."""
        return refine(self._earlier.get(place, ()), self._rates.measured(self._routes[place]))

    def gives(self, place: str) -> float:
        """The most that a place is known to give, in bytes a second; 0 when it was never measured."""
        return best(self.points(place))

    def statistics(self, stream_bytes: int, data_bytes: int, left: Sequence[int]) -> SpeedsStatistics:
        """Frozen figures. Args: as for `loading`."""
        return SpeedsStatistics(
            {
                place: PlaceSpeeds(
                    tuple(self._rates.measured(route)),
                    tuple((float(lanes), float(rate)) for lanes, rate in self._calibrated.get(place, ())),
                    self.points(place),
                )
                for place, route in self._routes.items()
            },
            self.loading(stream_bytes, data_bytes, left),
            self._of_peers(),
        )

    def _of_peers(self) -> PlaceSpeeds | None:
        measured = self._rates.measured(self._peers)
        return PlaceSpeeds(tuple(measured), (), refine((), measured)) if measured else None

    def model(self, left: Sequence[int]) -> PerformanceModel | None:
        """This node as the performance model has it; None while the source was never measured.

        Args:
            left: a flag for each tier, set for one that is not used at present.
        """
        source = self.gives(self._source.name)
        if not source:
            return None
        classes = [
            StorageClass(place.name, place.capacity_bytes, curve, curve, 1)
            for place, is_left in zip(self._storing, left, strict=True)
            if not is_left and (curve := Curve.flat(self.gives(place.name) or _assumed(place.kind)))
        ]
        nothing = Curve.flat(MEMORY_BYTES_PER_S)
        return PerformanceModel(
            nodes=1, epochs=2, global_batch=1, drop_last=False, compute_bytes_per_s=math.inf,
            preprocess_bytes_per_s=math.inf, network_bytes_per_s=math.inf, pfs=Curve.flat(source),
            staging=StorageClass("staging", 0, nothing, nothing, 1), classes=tuple(classes),
        )  # fmt: skip

    def loading(self, stream_bytes: int, data_bytes: int, left: Sequence[int]) -> EpochCost | None:
        """How long it takes at least to load an epoch after the first; None when that cannot be told.

        Args:
            stream_bytes: what the node's ranks read in an epoch. data_bytes: the data set, if it is less.
            left: as for `model`.
        """
        model = self.model(left)
        if model is None or stream_bytes <= 0:
            return None
        return run_cost(model, Workload(min(stream_bytes, data_bytes), stream_bytes, 0.0, 2, shared=False)).later


def _assumed(kind: PlaceKind) -> float:
    return MEMORY_BYTES_PER_S if kind is PlaceKind.RAM else DISK_BYTES_PER_S
