"""Lobster's thread assignment against brute force, and its model of preprocessing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.plan.model import Curve
from mlfs.plan.threads import PiecewiseLinear, assign, in_proportion, load_s, nearest_model, preprocessing_threads

RATES = (Curve(((1, 50.0), (8, 400.0))), Curve(((1, 20.0), (8, 100.0))), Curve(((1, 10.0), (4, 30.0), (8, 35.0))))

batches = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300)), min_size=1, max_size=6
).map(lambda rows: np.array(rows, dtype=np.float64))


@settings(deadline=None, max_examples=100)
@given(batches, st.floats(0.5, 60.0), st.integers(0, 12))
def test_threads_are_shared_out_whole_and_each_gpu_has_one(loads: np.ndarray, train_s: float, spare: int) -> None:
    most = len(loads) + spare
    given_threads = assign(loads, RATES, np.full(len(loads), 0.2), train_s, most, 0.05)
    assert (given_threads >= 1).all()
    assert given_threads.sum() <= most


@settings(deadline=None, max_examples=100)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300)), st.floats(0.5, 60.0), st.integers(1, 24)
)
def test_one_gpu_gets_what_brute_force_finds(load: tuple[int, ...], train_s: float, most: int) -> None:
    batch = np.array([load], dtype=np.float64)
    threads = int(assign(batch, RATES, np.zeros(1), train_s, most, 0.0)[0])
    off = [abs(load_s(batch[0], RATES, count) - train_s) for count in range(1, most + 1)]
    assert off[threads - 1] == pytest.approx(min(off))


def test_the_straggler_gets_more_and_who_is_in_time_keeps_its_share() -> None:
    loads = np.array([[100.0, 0, 0], [0, 0, 100.0]])
    threads = assign(loads, RATES, np.zeros(2), 4.0, 10, 0.1)
    assert threads[1] > threads[0]
    loads = np.array([[100.0, 0, 0], [100.0, 0, 0]])
    assert assign(loads, RATES, np.zeros(2), 0.5, 8, 0.1).tolist() == [4, 4]
    with pytest.raises(ValueError, match="1 threads for 2 GPUs"):
        assign(loads, RATES, np.zeros(2), 0.5, 1, 0.1)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.integers(0, 50))
def test_in_proportion_deals_all(weights: list[float], spare: int) -> None:
    dealt = in_proportion(np.array(weights), len(weights) + spare)
    assert dealt.sum() == len(weights) + spare
    assert (dealt >= 1).all()


def test_two_lines_are_found_again_and_give_the_fewest_threads_at_the_peak() -> None:
    threads = np.arange(1, 13)
    seconds = np.where(threads <= 6, 1.3 - 0.2 * threads, 0.1 + 0.01 * (threads - 6))
    model = PiecewiseLinear.fit(threads, seconds)
    assert [model.at(count) for count in threads] == pytest.approx(seconds.tolist())
    assert preprocessing_threads(model, 12) == 6
    with pytest.raises(ValueError, match="two lines need four"):
        PiecewiseLinear.fit([1, 2, 3], [3, 2, 1])
    other = PiecewiseLinear.fit(threads, 2 * seconds)
    assert nearest_model({100.0: model, 1000.0: other}, 800.0) is other
