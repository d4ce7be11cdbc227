"""How often a node reads a sample: the published figures, a simulated run, the lemma by exhaustion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from mlfs.plan.frequency import (
    expected_above,
    most_elsewhere_at_least,
    probability_above,
    rarest_elsewhere_at_most,
    simulated_above,
    threshold,
)

NODES, EPOCHS, SAMPLES = 16, 90, 1_281_167


def test_the_published_expectation() -> None:
    assert threshold(EPOCHS, NODES, 0.8) == 10
    assert expected_above(SAMPLES, EPOCHS, NODES, 10) == pytest.approx(31634.69, abs=0.01)


def test_the_published_monte_carlo_run_and_ours_agree_with_it() -> None:
    expected = expected_above(SAMPLES, EPOCHS, NODES, 10)
    assert abs(31863 - expected) < 530  # published; three standard deviations
    mine = np.random.default_rng(7).binomial(EPOCHS, 1 / NODES, SAMPLES)
    assert abs(np.count_nonzero(mine > 10) - expected) < 530


def test_dealt_epochs_follow_the_binomial_distribution() -> None:
    samples = 20_000
    counts = simulated_above(samples, EPOCHS, NODES, 8, np.random.default_rng(3))
    chance = probability_above(EPOCHS, NODES, 8)
    assert counts.shape == (NODES,)
    deviation = math.sqrt(samples * chance * (1 - chance))
    assert np.abs(counts - expected_above(samples, EPOCHS, NODES, 8)).max() < 5 * deviation


@pytest.mark.parametrize(("epochs", "nodes"), [(1, 1), (5, 1), (3, 2), (24, 5)])
def test_the_distribution_is_one(epochs: int, nodes: int) -> None:
    assert probability_above(epochs, nodes, -1) == 1.0
    assert probability_above(epochs, nodes, epochs) == 0.0
    direct = sum(
        math.comb(epochs, k) * Fraction(1, nodes) ** k * Fraction(nodes - 1, nodes) ** (epochs - k)
        for k in range(2, epochs + 1)
    )
    assert probability_above(epochs, nodes, 1) == pytest.approx(float(direct))


def test_no_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="0 epochs"):
        probability_above(0, 4, 1)


def partitions(total: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
    """All ways for `parts` nodes to share `total` reads, largest first."""
    if parts == 1:
        if total <= most:
            yield (total,)
        return
    for first in range(min(total, most), -1, -1):
        if first * parts < total:
            return
        for rest in partitions(total - first, parts - 1, first):
            yield (first, *rest)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_the_lemma_and_its_dual_hold_for_every_way_to_share_the_reads(nodes: int) -> None:
    for epochs in range(1, 25):
        mean = Fraction(epochs, nodes)
        # Where ceil((1 + d) * mean) jumps, the bound is tightest: at d = reads / mean - 1, and just beside.
        for shares in partitions(epochs, nodes, epochs):
            for index, reads in enumerate(shares):
                others = shares[:index] + shares[index + 1 :]
                delta = reads / mean - 1
                if 0 <= delta <= nodes - 1:
                    assert math.ceil((1 + delta) * mean) == reads
                    assert min(others) <= rarest_elsewhere_at_most(delta, epochs, nodes)
                if 0 <= -delta <= 1:
                    assert math.floor((1 + delta) * mean) == reads
                    assert max(others) >= most_elsewhere_at_least(-delta, epochs, nodes)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_the_lemma_holds_for_every_delta_of_a_grid(nodes: int) -> None:
    for epochs in range(1, 25):
        for step in range(12 * (nodes - 1) + 1):
            delta = Fraction(step, 12)
            reads = math.ceil((1 + delta) * Fraction(epochs, nodes))
            if reads <= epochs:  # the others share what is left as evenly as they can: the worst case
                assert (epochs - reads) // (nodes - 1) <= rarest_elsewhere_at_most(delta, epochs, nodes)
            if delta <= 1:
                reads = math.floor((1 - delta) * Fraction(epochs, nodes))
                assert -(-(epochs - reads) // (nodes - 1)) >= most_elsewhere_at_least(delta, epochs, nodes)
