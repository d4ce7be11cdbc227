"""How fast a node gets its samples has its places, and all other nodes together once they were measured."""

from __future__ import annotations

import pytest

from mlfs.measure.rates import FEWEST_BATCHES, Rates
from mlfs.measure.speeds import MeasuredPlace, Speeds
from mlfs.places.place import PlaceKind

SOURCE, RAM, OTHERS = 0, 1, 2


def test_other_nodes_are_told_of_beside_the_places_once_they_were_measured() -> None:
    rates = Rates()
    places = {SOURCE: MeasuredPlace(PlaceKind.SOURCE, "pfs", 0), RAM: MeasuredPlace(PlaceKind.RAM, "ram", 1 << 20)}
    speeds = Speeds({"pfs": [(1, 5e6)]}, {}, rates, places, peers=OTHERS)
    before = speeds.statistics(1 << 20, 1 << 30, [False])
    assert (list(before.places), before.peers) == (["pfs", "ram"], None)
    for _ in range(FEWEST_BATCHES):
        rates.batch(OTHERS, lanes=2, size_bytes=1_000_000, wall_s=0.1)
    told = speeds.statistics(1 << 20, 1 << 30, [False])
    assert told.peers is not None
    assert max(rate for _, rate in told.peers.refined) == pytest.approx(20e6)
    assert (told.places, told.loading) == (before.places, before.loading)
