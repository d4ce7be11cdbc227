"""Refined bandwidths, and when a tier is left for the source: pure, so tried with anything."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.measure.refine import FARTHEST, Measured, best, refine
from mlfs.plan import circuit_breaker
from mlfs.plan.circuit_breaker import CircuitEvidence, Pace, Use, in_common, judge, source_wins

rates = st.floats(1e3, 1e12)
points = st.dictionaries(st.integers(1, 64), rates, max_size=6).map(lambda found: tuple(sorted(found.items())))
measured_points = st.builds(Measured, st.integers(1, 64), rates, st.integers(1, 10**6))
measurements = st.lists(measured_points, max_size=6, unique_by=lambda point: point.lanes)


@settings(deadline=None, max_examples=80)
@given(points, measurements)
def test_what_comes_out_is_a_curve(known: tuple[tuple[int, float], ...], measured: list[Measured]) -> None:
    found = refine(known, measured)
    assert all(math.isfinite(rate) and rate > 0 for _, rate in found)
    assert all(b > a for (a, _), (b, _) in pairwise(found))
    assert {count for count, _ in found} == {count for count, _ in known} | {m.lanes for m in measured}
    if all(b >= a for (_, a), (_, b) in pairwise(known)):
        assert all(b >= a * (1 - 1e-9) for (_, a), (_, b) in pairwise(found))
    if not measured:
        assert found == known
    lowest = min([rate for _, rate in known] + [m.bytes_per_s for m in measured], default=0)
    highest = max([rate for _, rate in known] + [m.bytes_per_s for m in measured], default=0)
    if not known and found:
        assert lowest * 0.999 <= best(found) <= highest * 1.001


@settings(deadline=None, max_examples=50)
@given(points.filter(bool), st.floats(0.1, 10.0), st.integers(1, 10**6))
def test_the_whole_curve_moves_with_what_is_measured_the_more_the_more_there_is(
    known: tuple[tuple[int, float], ...], factor: float, batches: int
) -> None:
    measured = [Measured(count, rate * factor, batches) for count, rate in known[:1]]
    moved = {count: rate for count, rate in refine(known, measured)}
    few = {count: rate for count, rate in refine(known, [m._replace(batches=1) for m in measured])}
    steps = [abs(math.log(few[count] / rate)) <= abs(math.log(moved[count] / rate)) + 1e-9 for count, rate in known]
    assert all(steps)
    if batches > 1000:
        assert moved[known[-1][0]] == pytest.approx(known[-1][1] * factor, rel=0.1)


def test_one_number_of_lanes_that_is_far_off_does_not_carry_the_others_away() -> None:
    known = ((1, 10e6), (2, 20e6), (4, 40e6))
    wild = [Measured(1, 10e6, 200), Measured(2, 20e6, 200), Measured(4, 1e15, 8)]
    assert best(refine(known, wild)) <= 40e6 * FARTHEST
    assert dict(refine(known, wild))[2] == pytest.approx(20e6)
    assert refine(known, [Measured(2, math.nan, 9), Measured(4, 0.0, 9), Measured(0, 1.0, 9)]) == known
    fallen = [Measured(2, 9e6, 500)]  # half of what was calibrated, at two lanes
    assert dict(refine(known, fallen))[4] == pytest.approx(18e6, rel=0.05)
    assert refine((), [Measured(2, 10.0, 9), Measured(1, 12.0, 9)]) == ((1.0, pytest.approx(10.95, abs=0.01)),) * 1 + (
        (2.0, pytest.approx(10.95, abs=0.01)),
    )


def evidence(tier: float = 1e6, source: float = 9e6, sample_s: float = 0.5, batches: int = 50, waited: float = 0.9):  # type: ignore[no-untyped-def]
    return CircuitEvidence(tier, source, 1e5, sample_s, batches, waited)


def judged(found: CircuitEvidence | None, times: int = 100) -> Use:
    use = Use()
    for second in range(times):
        use = judge(use, found, float(second))
    return use


def test_a_tier_is_passed_over_only_if_all_of_it_holds_for_long() -> None:
    assert judged(evidence()).passed_over
    assert not judged(evidence(), circuit_breaker.JUDGEMENTS - 1).passed_over
    for found in (
        evidence(source=2.9e6), evidence(sample_s=0.009), evidence(waited=0.2), evidence(batches=7), None,
        evidence(tier=9e6, source=1e6),
    ):  # fmt: skip
        assert judged(found).passed_over is False
    use = Use()
    for second in range(200):  # now and then it is well: never left
        use = judge(use, evidence(tier=9e6) if second % 9 == 8 else evidence(), float(second))
        assert not use.passed_over


def test_probes_become_seldom_and_a_tier_that_is_slow_again_soon_is_probed_after_as_long() -> None:
    use, now, waits = judged(evidence()), 100.0, []
    for _ in range(8):
        assert not use.may_probe(use.next_probe_s - 0.1)
        waits.append(use.next_probe_s - now)
        now = use.next_probe_s
        use = judge(use.begin_probe(now), evidence(), now + 1)
        assert use.passed_over
        assert use.probing_since_s is None
        now += 1
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] == circuit_breaker.MOST_PROBE_S
    back = judge(use.begin_probe(now), evidence(tier=7e6), now + 1)
    assert not back.passed_over
    again = back
    for second in range(circuit_breaker.JUDGEMENTS):
        assert not again.passed_over
        again = judge(again, evidence(), now + 2 + second)
    assert again.passed_over
    assert again.next_probe_s - again.since_s == circuit_breaker.MOST_PROBE_S  # it came back lately: no flapping
    unanswered = judge(again.begin_probe(now), None, now + circuit_breaker.PROBE_LASTS_S + 1)
    assert unanswered.passed_over
    assert unanswered.probing_since_s is None


@settings(deadline=None, max_examples=50)
@given(st.floats(1, 1e12), st.floats(1, 1e12), st.floats(1, 1e9))
def test_the_source_wins_by_the_factor(tier: float, source: float, size: float) -> None:
    found = CircuitEvidence(tier, source, size, 1.0, 9, 1.0)
    for factor in (1.0, circuit_breaker.RETURN_FACTOR, circuit_breaker.PASS_OVER_FACTOR):
        if abs(source / tier / factor - 1) > 1e-6:
            assert source_wins(found, factor) == (source / factor > tier)


def test_only_samples_of_a_size_are_compared() -> None:
    small, large = Pace(1e6, 1e6, 50), Pace(1e9, 1e9, 50)
    assert in_common({1: small}, {9: large}) is None
    assert in_common({}, {9: large}) is None
    assert in_common({1: small}, {1: Pace(2e6, 1, 50), 9: large}) == (pytest.approx(1e6), pytest.approx(2e6))
    assert in_common({1: small, 9: large}, {1: small}) is None  # most of what the tier gives is not known of the source
    assert in_common({1: small._replace(batches=3)}, {1: small}) is None
