"""How a node's threads are divided between preprocessing, loading and its GPUs' queues (Lobster, Section 4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.lab.sim.gpu_queues import Batch, GpuNode, coordinated, divided
from mlfs.plan.model import Curve
from mlfs.plan.threads import TOLERANCE, in_proportion

# 600 bytes take 1 s with 6 threads or more, 0.2 s longer for each thread less: two lines.
PEAK_AT_6 = Curve(tuple((float(count), 600.0 / (1 + 0.2 * max(0, 6 - count))) for count in range(1, 13)))


@settings(deadline=None, max_examples=cases(30))
@given(gpus=st.integers(1, 5), spare=st.integers(0, 9), train_s=st.floats(0.1, 9.0), seed=st.integers(0, 2**32 - 1))
def test_all_threads_are_given_out_and_no_queue_goes_without(gpus: int, spare: int, train_s: float, seed: int) -> None:
    queued = np.random.default_rng(seed).integers(0, 99, (4, 2, gpus, 3)).astype(np.float64)
    threads = divided(queued, np.array([0.3, 0.1, 0.01]), np.zeros(queued.shape[:3]), train_s, gpus + spare)
    assert threads.shape == (4, 2, gpus)
    assert (threads >= 1).all()
    assert (threads.sum(axis=2) == gpus + spare).all()


def test_without_a_straggler_in_proportion_to_the_queues_else_by_what_loading_takes() -> None:
    # The first GPU has twice the bytes, all from its own memory; the second has half of them, from the PFS.
    queued = np.array([[[[0.0, 200.0], [100.0, 0.0]]]])
    thread_s = np.array([1.0, 0.01])
    calm = divided(queued, thread_s, np.zeros((1, 1, 2)), 1000.0, 9)
    assert calm[0, 0].tolist() == in_proportion(np.array([200.0, 100.0]), 9).tolist() == [6, 3]
    assert divided(queued, thread_s, np.zeros((1, 1, 2)), 10.0, 9)[0, 0].tolist() == [1, 8]
    # The same where preprocessing is what makes the second late.
    assert divided(queued, thread_s, np.array([[[0.0, 80.0]]]), 100.0, 9)[0, 0].tolist() == [1, 8]
    # Within the tolerance nobody is late: 33 s of loading in 35.
    assert divided(queued, thread_s, np.zeros((1, 1, 2)), 35.0, 9)[0, 0].tolist() == [6, 3]
    assert 0 < TOLERANCE < 1


def node(threads: int, gpus: int = 1) -> GpuNode:
    return GpuNode(gpus, {1e5: PEAK_AT_6, 1e6: PEAK_AT_6.scaled(3.0)}, threads)


def loaded_with(thread_s: list[float], route_bytes: list[float], train_s: float, threads: int, size: float) -> int:
    batch = Batch(np.array(route_bytes), train_s)
    return coordinated(node(threads), batch, size, 2, lambda _: np.array(thread_s))


def test_preprocessing_keeps_the_fewest_threads_of_its_peak() -> None:
    assert loaded_with([1e-9, 1e-9], [300.0, 300.0], 1e9, 10, 1e5) == 6


def test_threads_move_to_loading_while_that_helps_and_preprocessing_keeps_up() -> None:
    # 600 bytes, 12 threads: with 6 for each, preprocessing takes 1 s and loading 5; with 5 and 7, 1.2 s and 4.3 s.
    cost, half = [0.05, 0.05], [300.0, 300.0]
    assert loaded_with(cost, half, 7.0, 10, 1e5) == 6
    assert loaded_with(cost, half, 5.6, 10, 1e5) == 5
    assert loaded_with(cost, half, 1.3, 10, 1e5) == 5  # with 4, preprocessing alone would take longer than training
    # Loading is as slow with any number of threads: none is taken away for nothing.
    batch = Batch(np.array([600.0]), 4.0)
    assert coordinated(node(10), batch, 1e5, 2, lambda threads: np.array([threads / 120.0])) == 6


def test_the_model_of_the_nearest_sample_size_is_taken() -> None:
    small, large = node(6).preprocessing_model(2e5), node(6).preprocessing_model(9e5)
    assert small.at(6) == pytest.approx(3 * large.at(6))
    assert node(6).preprocess_bytes_per_s(2e5, 6) == 600.0
    assert node(6).preprocess_bytes_per_s(9e5, 6) == 1800.0
