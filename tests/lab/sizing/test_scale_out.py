"""Yang and Cong's equations and Lobster's, against numbers worked out by hand and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.lab.sim.gpu_queues import gap_s, loading_s
from mlfs.lab.sizing.scaling import ScaleOut
from mlfs.plan.model import Curve

RATE = st.floats(0.1, 1e9)


def test_by_hand() -> None:
    model = ScaleOut(1200, 10, 40, preprocess_rate=100, remote_rate=400, balance_rate=300)
    assert (model.training_s(3), model.io_s(), model.preprocessing_s(3)) == (40, 30, 4)
    assert model.loading_s(3) == 34
    assert model.crossover_nodes() == 4
    assert [model.epoch_s(p) for p in (1, 4, 8)] == [120, 30, 30]
    assert model.cached_io_s(4, 0.5) == pytest.approx(15 + 0.5 * 3 * 0.75)
    assert model.local_io_s(0.5, 0.1) == pytest.approx(15 + 2 * 0.1)


@settings(deadline=None, max_examples=cases(50))
@given(RATE, RATE, RATE, RATE, st.integers(1, 4096), st.floats(0, 1), st.floats(0, 1))
def test_how_the_equations_hang_together(
    data: float, train: float, storage: float, cache: float, nodes: int, cached: float, moved: float
) -> None:
    model = ScaleOut(data, train, storage, remote_rate=cache, balance_rate=cache)
    # eq. 5 is where eq. 1 meets eq. 2, and eq. 6 is the larger of both.
    if not math.isclose(nodes, model.crossover_nodes(), rel_tol=1e-9):
        assert (model.training_s(nodes) > model.io_s()) == (nodes < model.crossover_nodes())
    # Nothing cached: plain loading. Everything cached: no storage. Locality beats caching when less moves.
    assert model.cached_io_s(nodes, 0) == model.local_io_s(0, moved) == pytest.approx(model.io_s())
    assert model.local_io_s(1, 0) == 0
    if moved <= (nodes - 1) / nodes:
        assert model.local_io_s(cached, moved) <= model.cached_io_s(nodes, cached) * (1 + 1e-9)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_impossible_values_are_refused(share: float) -> None:
    model = ScaleOut(1, 1, 1)
    with pytest.raises(ValueError, match="share"):
        model.cached_io_s(2, share)
    with pytest.raises(ValueError, match="share"):
        model.local_io_s(0.5, share)
    with pytest.raises(ValueError, match="train_rate"):
        ScaleOut(1, 0, 1)


def test_lobsters_equations_by_hand() -> None:
    throughput = (Curve.flat(100), Curve(((1, 10), (4, 40))), Curve(((1, 5), (2, 8))))
    load = loading_s((200, 60, 24), (3, 2, 2), throughput)
    assert load == pytest.approx(200 / 100 + 60 / 20 + 24 / 8)
    assert loading_s((0, 0, 0), (0, 0, 0), throughput) == 0
    assert loading_s((0, 1, 0), (1, 0, 1), throughput) == math.inf
    assert gap_s(load, 1, 7) == pytest.approx(2)
