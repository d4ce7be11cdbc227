"""How large the staging window is while the kernel takes its pages back: the rule by itself, and in the scheduler."""

from __future__ import annotations

import math
from itertools import pairwise

from mlfs.plan.scheduler.window import CALM_S, FEW_SAMPLES, LEAST_SHARE, SHRINK, STEP_S, Pressure

MIB = 1 << 20


def test_a_few_pages_now_and_then_change_nothing() -> None:
    pressure = Pressure(100 * MIB)
    for second in range(100):
        assert not pressure.lost(FEW_SAMPLES - 1, MIB // 2, second, float(second))
    assert (pressure.bytes, pressure.steps, pressure.next_due_s()) == (100 * MIB, 0, math.inf)


def test_losses_shrink_it_in_steps_one_a_moment() -> None:
    pressure = Pressure(100 * MIB)
    assert pressure.lost(FEW_SAMPLES, 4 * MIB, 1, 5.0)
    assert pressure.bytes == 75 * MIB
    assert not pressure.lost(64, 30 * MIB, 2, 5.0 + STEP_S / 2)
    assert pressure.bytes == 75 * MIB
    assert pressure.lost(64, 30 * MIB, 3, 5.0 + STEP_S)
    assert pressure.bytes == int(SHRINK * 75 * MIB)
    assert pressure.steps == 2


def test_one_large_sample_counts_as_many_small_ones() -> None:
    pressure = Pressure(100 * MIB)
    assert pressure.lost(1, 2 * MIB, 0, 0.0)


def test_it_never_goes_below_its_least_share() -> None:
    pressure = Pressure(100 * MIB)
    for second in range(60):
        pressure.lost(64, 50 * MIB, second + 1, float(second))
    assert pressure.bytes == LEAST_SHARE * 100 * MIB
    assert pressure.steps < 60


def test_while_nobody_reads_half_of_it_stays() -> None:
    pressure = Pressure(100 * MIB)
    for second in range(60):
        pressure.lost(64, 50 * MIB, 0, float(second))
    assert pressure.bytes == 50 * MIB
    assert pressure.lost(64, 50 * MIB, 1, 60.0)
    assert pressure.bytes == int(SHRINK * 50 * MIB)
    assert not pressure.lost(64, 50 * MIB, 1, 62.0)  # nobody has read since: it becomes no larger either


def test_after_a_while_without_losses_it_grows_in_steps_to_what_was_asked_for() -> None:
    pressure = Pressure(100 * MIB)
    for second in range(96, 101):
        pressure.lost(64, 50 * MIB, second + 1, float(second))
    sizes, now_s = [pressure.bytes], 100.0
    assert not pressure.time_passed(now_s + CALM_S - 1)
    while pressure.next_due_s() < math.inf:
        now_s = pressure.next_due_s()
        assert pressure.time_passed(now_s)
        sizes.append(pressure.bytes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 100 * MIB
    assert max(after / before for before, after in pairwise(sizes)) < 1.3


def test_a_loss_while_it_grows_puts_the_growth_off() -> None:
    pressure = Pressure(100 * MIB)
    pressure.lost(64, 50 * MIB, 0, 0.0)
    pressure.lost(64, 10 * MIB, 0, CALM_S - 1)
    assert pressure.next_due_s() == 2 * CALM_S - 1
