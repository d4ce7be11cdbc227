"""Lemmas 3.1 and 3.2: the published examples, and that the three forms of one lemma agree."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.lab.sizing.scaling import (
    efficiency,
    gpus_for_speedup,
    most_overhead,
    most_speedup,
    overhead_from_stalls,
    parameter_servers,
    speedup,
)


def test_the_published_examples() -> None:
    assert most_overhead(0.8, 4) == pytest.approx(0.0909, abs=5e-5)
    assert gpus_for_speedup(0.10, 3) == 4
    assert parameter_servers(180e6, 4, 125e6, 2.0) == 6


@settings(deadline=None, max_examples=cases(80))
@given(st.floats(0.001, 3), st.integers(2, 500))
def test_the_forms_of_lemma_3_1_agree(overhead: float, gpus: int) -> None:
    alpha = efficiency(overhead, gpus)
    assert 1 / gpus < alpha < 1
    assert most_overhead(alpha, gpus) == pytest.approx(overhead, rel=1e-6)
    assert speedup(overhead, gpus) < most_speedup(overhead)
    # Amdahl's law with P = T_C / (T_C + T_O), which the lemma comes from.
    parallel = 1 / (1 + overhead)
    assert speedup(overhead, gpus) == pytest.approx(1 / (1 - parallel + parallel / gpus))


@settings(deadline=None, max_examples=cases(80))
@given(st.floats(0.001, 0.5), st.integers(1, 60))
def test_the_number_of_gpus_is_the_fewest(overhead: float, gpus: int) -> None:
    wanted = speedup(overhead, gpus)
    found = gpus_for_speedup(overhead, wanted)
    assert found == gpus
    if gpus > 1:
        assert gpus_for_speedup(overhead, (speedup(overhead, gpus - 1) + wanted) / 2) == gpus


@settings(deadline=None, max_examples=cases(80))
@given(st.floats(1, 1e10), st.integers(1, 300), st.floats(1, 1e10), st.floats(0.01, 10))
def test_servers_hide_the_traffic_and_one_less_does_not(size: float, workers: int, rate: float, compute: float) -> None:
    servers = parameter_servers(size, workers, rate, compute)
    assert 2 * size * workers / (servers * rate) <= compute * (1 + 1e-6)
    if servers > 1:
        assert 2 * size * workers / ((servers - 1) * rate) > compute * (1 - 1e-6)


def test_stalls_of_many_gpus_are_a_sum() -> None:
    assert overhead_from_stalls(8.0, 11.0, 8) == pytest.approx(0.1)
    assert overhead_from_stalls(1.0, 11.0, 1) == pytest.approx(0.1)
    assert overhead_from_stalls(0.0, 5.0, 2) == 0.0
    with pytest.raises(ValueError, match="no time to compute"):
        overhead_from_stalls(20.0, 10.0, 2)


def test_without_overhead_all_gpus_count() -> None:
    assert efficiency(0.0, 1000) == 1.0
    assert gpus_for_speedup(0.0, 7.5) == 8
    assert most_speedup(0.0) == math.inf
    assert most_overhead(1.0, 4) == 0.0
    assert most_overhead(0.25, 4) == math.inf


@pytest.mark.parametrize("call", [
    lambda: most_overhead(1.01, 4), lambda: most_overhead(0.0, 4), lambda: most_overhead(0.5, 0),
    lambda: efficiency(-0.1, 2), lambda: efficiency(math.nan, 2), lambda: efficiency(0.1, 0),
    lambda: gpus_for_speedup(0.1, 11), lambda: gpus_for_speedup(0.1, 0), lambda: gpus_for_speedup(0.1, math.inf),
    lambda: parameter_servers(0, 1, 1, 1), lambda: parameter_servers(1, 1, math.nan, 1),
    lambda: overhead_from_stalls(1, 0, 1),
])  # fmt: skip
def test_what_cannot_be_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w"):
        call()
