"""The performance model of a node has its places and, once they were measured, all other nodes as one class more."""

from __future__ import annotations

import pytest

from mlfs.measure.measured_place import MeasuredPlace
from mlfs.measure.rates import FEWEST_BATCHES, Rates
from mlfs.measure.speeds import PEERS, Speeds
from mlfs.places.place import PlaceKind

SOURCE, RAM, OTHERS = 0, 1, 2


def test_other_nodes_are_a_class_without_room_as_fast_as_they_were_measured() -> None:
    rates = Rates()
    places = {SOURCE: MeasuredPlace(PlaceKind.SOURCE, "pfs", 0), RAM: MeasuredPlace(PlaceKind.RAM, "ram", 1 << 20)}
    speeds = Speeds({"pfs": [(1, 5e6)]}, {}, rates, places, peers=OTHERS)
    alone = speeds.model_with_peers([False])
    assert alone is not None
    assert [of.name for of in alone.classes] == ["ram"]
    for _ in range(FEWEST_BATCHES):
        rates.batch(OTHERS, lanes=2, size_bytes=1_000_000, wall_s=0.1)
    model = speeds.model_with_peers([False])
    assert model is not None
    assert [of.name for of in model.classes] == ["ram", PEERS]
    assert (model.classes[1].read.at(1), model.capacity_bytes) == (pytest.approx(20e6), 1 << 20)
    assert speeds.model([False]) == alone
