"""The performance model's formulas, on numbers small enough to work out by hand (NoPFS, Section 4)."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.plan.model import MB, Curve, PerformanceModel, StorageClass


def model() -> PerformanceModel:
    fast = Curve(((2, 21164 * MB),))
    return PerformanceModel(
        nodes=4,
        epochs=10,
        global_batch=100,
        drop_last=True,
        compute_bytes_per_s=100 * MB,
        preprocess_bytes_per_s=200 * MB,
        network_bytes_per_s=10000 * MB,
        pfs=Curve(((1, 66 * MB), (2, 86 * MB), (3, 129 * MB), (4, 146 * MB))),
        staging=StorageClass("staging", 1024 * MB, fast, fast, 2),
        classes=(
            StorageClass("ram", 51200 * MB, fast, fast, 2),
            StorageClass("ssd", 102400 * MB, Curve(((2, 86 * MB),)), Curve(((2, 86 * MB),)), 2),
        ),
    )


def test_a_curve_meets_its_points_interpolates_and_goes_on_with_the_regression() -> None:
    curve = Curve(((1, 66.0), (2, 86.0), (3, 129.0), (4, 146.0)))
    assert curve.at([1, 2, 3, 4]).tolist() == [66.0, 86.0, 129.0, 146.0]
    assert curve.at(2.5) == pytest.approx(107.5)
    assert curve.at(0.5) == pytest.approx(33.0)
    slope = np.polyfit([1, 2, 3, 4], [66.0, 86.0, 129.0, 146.0], 1)[0]
    assert curve.at(6) == pytest.approx(146 + 2 * slope)
    assert Curve.flat(5.0).at(1000) == 5.0
    assert Curve(((1, 100.0), (2, 10.0))).at(100) == pytest.approx(1.0)


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (1, 1.0)), ((1, 0.0),)])
def test_a_curve_that_makes_no_sense_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="a curve needs"):
        Curve(points)


def test_the_three_ways_to_fetch_and_the_fastest_of_them() -> None:
    m = model()
    assert m.fetch_pfs_s(1 * MB, 4) == pytest.approx(1 / 36.5)
    assert m.fetch_local_s(1 * MB, 1) == pytest.approx(1 / 43)
    assert m.fetch_peer_s(1 * MB, 0) == pytest.approx(1 / 10000)
    route, seconds = m.fastest(np.full(4, MB), 4, np.array([-1, 1, 1, -1]), np.array([-1, -1, 0, 1]))
    assert route.tolist() == [0, 2, 1, 1]
    assert seconds == pytest.approx([1 / 36.5, 1 / 43, 1 / 10000, 1 / 43])
    assert m.changed(node_pfs_bytes_per_s=10 * MB).fetch_pfs_s(MB, 4) == pytest.approx(0.1)


def test_nodes_may_differ_in_what_they_can_keep() -> None:
    even = model()
    assert even.node_capacities_bytes().tolist() == [[51200 * MB, 102400 * MB]] * 4
    rows = ((5.0, 10.0), (5.0, 0.0), (0.0, 0.0), (20.0, 10.0))
    uneven = even.changed(capacities_by_node=rows)
    assert uneven.node_capacities_bytes().tolist() == [list(row) for row in rows]
    assert uneven.capacity_bytes == 50
    for wrong in (rows[:3], ((5.0,), *rows[1:]), ((-1.0, 0.0), *rows[1:])):
        with pytest.raises(ValueError, match="capacities_by_node needs") as raised:
            even.changed(capacities_by_node=wrong)
        assert "\n" not in str(raised.value)


def test_capacity_steps_and_write() -> None:
    m = model()
    assert m.capacity_bytes == 4 * 153600 * MB
    assert m.steps(250) == 2
    assert m.changed(drop_last=False).steps(250) == 3
    assert m.write_s(MB) == pytest.approx(1 / 200)
