"""Lobster's thread assignment against brute force, and its model of preprocessing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.plan.model import Curve
from mlfs.plan.threads import (
    PiecewiseLinear,
    assign,
    in_proportion,
    load_s,
    preprocessing_threads,
    rates_by_threads,
    topped_up,
)

RATES = (Curve(((1, 50.0), (8, 400.0))), Curve(((1, 20.0), (8, 100.0))), Curve(((1, 10.0), (4, 30.0), (8, 35.0))))

batches = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300)), min_size=1, max_size=6
).map(lambda rows: np.array(rows, dtype=np.float64))


def plain_load_s(batch: np.ndarray, threads: int) -> float:
    """Eq. 1, for one GPU."""
    total = 0.0
    for size, curve in zip(batch.tolist(), RATES, strict=True):
        total += size / curve.at(threads)
    return total


def plain_in_proportion(weights: list[float], total: int) -> list[int]:
    """One by one to whoever has most weight a thread; the first of equals."""
    weights = weights if any(weights) else [1.0] * len(weights)
    dealt = [1] * len(weights)
    while sum(dealt) < total:
        most = max(weight / count for weight, count in zip(weights, dealt, strict=True))
        dealt[[weight / count for weight, count in zip(weights, dealt, strict=True)].index(most)] += 1
    return dealt


def plain_assign(loads: np.ndarray, preprocess_s: np.ndarray, train_s: float, most: int, tau: float) -> list[int]:
    """Algorithm 1 for one node and step, line by line."""
    wanted = plain_in_proportion([float(load.sum()) for load in loads], most)
    work = [count * plain_load_s(load, count) for load, count in zip(loads, wanted, strict=True)]
    for gpu, load in enumerate(loads):
        allowed = train_s - float(preprocess_s[gpu])
        if abs(plain_load_s(load, wanted[gpu]) - allowed) < tau:
            continue
        low, high, best, least = 1, most, 1, abs(plain_load_s(load, 1) - allowed)
        while low <= high:
            middle = (low + high) // 2
            late = plain_load_s(load, middle) - allowed
            if abs(late) < least or (abs(late) == least and middle < best):
                best, least = middle, abs(late)
            low, high = (middle + 1, high) if late > 0 else (low, middle - 1)
        wanted[gpu] = best
    return wanted if sum(wanted) <= most else plain_in_proportion(work, most)


@settings(deadline=None, max_examples=cases(50))
@given(
    gpus=st.integers(1, 6),
    steps=st.integers(1, 5),
    spare=st.integers(0, 14),
    train_s=st.floats(0.5, 40.0),
    tau=st.sampled_from([0.0, 0.3, 2.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_steps_at_once_is_each_step_by_itself(
    gpus: int, steps: int, spare: int, train_s: float, tau: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    loads = generator.integers(0, 300, (steps, 2, gpus, 3)) * generator.integers(0, 2, (steps, 2, gpus, 3)) * 1.0
    preprocess_s = generator.choice([0.0, 0.2, 50.0], (steps, 2, gpus))
    at_once = assign(loads, RATES, preprocess_s, train_s, gpus + spare, tau)
    for step in range(steps):
        for node in range(2):
            alone = plain_assign(loads[step, node], preprocess_s[step, node], train_s, gpus + spare, tau)
            assert at_once[step, node].tolist() == alone


@settings(deadline=None, max_examples=cases(50))
@given(batches, st.floats(0.5, 60.0), st.integers(0, 12))
def test_threads_are_shared_out_whole_and_each_gpu_has_one(loads: np.ndarray, train_s: float, spare: int) -> None:
    most = len(loads) + spare
    given_threads = assign(loads, RATES, np.full(len(loads), 0.2), train_s, most, 0.05)
    assert (given_threads >= 1).all()
    assert given_threads.sum() <= most


@settings(deadline=None, max_examples=cases(50))
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(1, 300)), st.floats(0.5, 60.0), st.integers(1, 24)
)
def test_one_gpu_gets_what_brute_force_finds(load: tuple[int, ...], train_s: float, most: int) -> None:
    batch = np.array([load], dtype=np.float64)
    threads = int(assign(batch, RATES, np.zeros(1), train_s, most, 0.0)[0])
    off = np.abs(load_s(batch, rates_by_threads(RATES, most), np.arange(1, most + 1)) - train_s)
    assert off[threads - 1] == pytest.approx(off.min())


@settings(deadline=None, max_examples=cases(30))
@given(
    work=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    spare=st.integers(0, 5),
    train_s=st.floats(0.5, 60.0),
    late_s=st.floats(0.0, 5.0),
)
def test_a_node_gets_what_brute_force_finds(work: list[int], spare: int, train_s: float, late_s: float) -> None:
    """Every GPU as near to eq. 2's optimum as can be if there are threads enough, else eq. 3: the slowest is best."""
    gpus, most = len(work), len(work) + spare
    rate = (Curve(((float(most), float(most)),)),)  # each thread gives 1 byte a second
    batches_of = np.array(work, dtype=np.float64)[:, None]
    threads = assign(batches_of, rate, np.full(gpus, late_s), train_s, most, 0.0)
    every = [counts for counts in np.ndindex(*[most + 1] * gpus) if min(counts) > 0]
    gaps = [abs(batches_of[:, 0] / counts + late_s - train_s) for counts in every]
    wish = np.min(gaps, axis=0)  # of each GPU by itself
    fewest = [min(c[gpu] for c, gap in zip(every, gaps, strict=True) if gap[gpu] == wish[gpu]) for gpu in range(gpus)]
    if sum(fewest) <= most:
        assert abs(batches_of[:, 0] / threads + late_s - train_s) == pytest.approx(wish)
    else:
        possible = [max(batches_of[:, 0] / counts) for counts in every if sum(counts) <= most]
        assert max(batches_of[:, 0] / threads) == pytest.approx(min(possible))


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


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 6))
def test_the_slowest_queue_is_as_fast_as_whole_threads_make_it(weights: list[int], spare: int) -> None:
    total = len(weights) + spare
    dealt = in_proportion(np.array(weights, dtype=np.float64), total)
    every = [counts for counts in np.ndindex(*[total + 1] * len(weights)) if min(counts) > 0 and sum(counts) == total]
    best = min(max(weight / count for weight, count in zip(weights, counts, strict=True)) for counts in every)
    assert (np.array(weights) / dealt).max() == best
    assert (topped_up(dealt, np.array(weights, dtype=np.float64), total) == dealt).all()


def test_two_lines_are_found_again_and_give_the_fewest_threads_at_the_peak() -> None:
    threads = np.arange(1, 13)
    seconds = np.where(threads <= 6, 1.3 - 0.2 * threads, 0.1 + 0.01 * (threads - 6))
    model = PiecewiseLinear.fit(threads, seconds)
    assert [model.at(count) for count in threads] == pytest.approx(seconds.tolist())
    assert preprocessing_threads(model.at, 12) == 6
    with pytest.raises(ValueError, match="two lines need four"):
        PiecewiseLinear.fit([1, 2, 3], [3, 2, 1])


def plain_fit(xs: list[float], ys: list[float]) -> float:
    """The least squares that two lines leave, each split tried by itself."""

    def squares(x: list[float], y: list[float]) -> float:
        if len(set(x)) == 1:
            return float(((np.array(y) - np.mean(y)) ** 2).sum())
        slope, intercept = np.polyfit(x, y, 1)
        return float(((np.array(y) - intercept - slope * np.array(x)) ** 2).sum())

    return min(squares(xs[:cut], ys[:cut]) + squares(xs[cut:], ys[cut:]) for cut in range(2, len(xs) - 1))


@settings(deadline=None, max_examples=cases(30))
@given(st.integers(4, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e6]), st.booleans())
def test_the_two_lines_are_those_of_the_best_split(count: int, seed: int, far: float, again: bool) -> None:
    """Also where measurements are many, far from zero, or of the same number of threads."""
    generator = np.random.default_rng(seed)
    xs = np.sort(far + (generator.integers(0, 6, count) if again else generator.uniform(0, 100, count))).astype(float)
    ys = generator.uniform(0, 1, count)
    model = PiecewiseLinear.fit(xs, ys)
    cuts = [cut for cut in range(2, count - 1) if (xs[cut - 1] + xs[cut]) / 2 == model.split]
    of = [np.where(np.arange(count) < cut, 0, 1) for cut in cuts]
    left = [[ys[n] - model.lines[side[n]][0] - model.lines[side[n]][1] * xs[n] for n in range(count)] for side in of]
    assert min((np.array(off) ** 2).sum() for off in left) == pytest.approx(plain_fit(list(xs), list(ys)), abs=1e-6)
