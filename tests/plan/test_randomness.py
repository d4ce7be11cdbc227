"""Randomisation levels as DeepIO published them (Section III-C)."""

from __future__ import annotations

import pytest

from mlfs.plan.randomness import randomization_level


@pytest.mark.parametrize(("ratio", "percent"), [(0.5, 98.54), (0.25, 96.96)])
def test_published_levels(ratio: float, percent: float) -> None:
    assert 100 * randomization_level(7600, ratio) == pytest.approx(percent, abs=0.02)


def test_all_in_memory_is_a_full_shuffle_and_less_memory_is_less_random() -> None:
    assert randomization_level(1000, 1.0) == pytest.approx(1.0)
    levels = [randomization_level(1000, ratio) for ratio in (1.0, 0.5, 0.3, 0.1, 0.01)]
    assert levels == sorted(levels, reverse=True)
    assert randomization_level(1, 1.0) == 1.0


@pytest.mark.parametrize(("elements", "ratio"), [(0, 0.5), (10, 0.0), (10, 1.5)])
def test_nonsense_is_refused(elements: int, ratio: float) -> None:
    with pytest.raises(ValueError, match="elements"):
        randomization_level(elements, ratio)
