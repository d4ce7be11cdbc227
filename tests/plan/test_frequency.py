"""How often a node reads a sample: the published figures, a simulated run, the lemma by exhaustion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from mlfs.plan.epochs import chances_above, hit_share

NODES, EPOCHS, SAMPLES = 16, 90, 1_281_167


def test_the_published_expectation() -> None:
    more_than = math.floor(Fraction(18, 10) * EPOCHS / NODES)
    assert more_than == 10
    assert SAMPLES * chances_above(EPOCHS, NODES)[more_than] == pytest.approx(31634.69, abs=0.01)


def test_the_published_monte_carlo_run_and_ours_agree_with_it() -> None:
    expected = SAMPLES * chances_above(EPOCHS, NODES)[10]
    assert abs(31863 - expected) < 530  # published; three standard deviations
    mine = np.random.default_rng(7).binomial(EPOCHS, 1 / NODES, SAMPLES)
    assert abs(np.count_nonzero(mine > 10) - expected) < 530


def dealt(samples: int, epochs: int, nodes: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """How often each node reads each sample, shape (nodes, samples): every epoch is shuffled and dealt round-robin."""
    counts = np.zeros((nodes, samples), dtype=np.int64)
    turns = np.arange(samples) % nodes
    for _ in range(epochs):
        counts[turns, generator.permutation(samples)] += 1
    return counts


def test_dealt_epochs_follow_the_binomial_distribution() -> None:
    samples = 20_000
    above = (dealt(samples, EPOCHS, NODES, np.random.default_rng(3)) > 8).sum(axis=1)
    chance = chances_above(EPOCHS, NODES)[8]
    deviation = math.sqrt(samples * chance * (1 - chance))
    assert np.abs(above - samples * chance).max() < 5 * deviation


@pytest.mark.parametrize(("epochs", "nodes"), [(2, 4), (5, 2), (90, 16), (7, 1)])
@pytest.mark.parametrize("kept_share", [0.0, 0.05, 0.3, 1.0])
def test_what_is_read_most_is_found_as_often_as_expected(epochs: int, nodes: int, kept_share: float) -> None:
    samples = 20_000
    counts = dealt(samples, epochs, nodes, np.random.default_rng(epochs))
    most_read = np.sort(counts, axis=1)[:, ::-1][:, : round(kept_share * samples)]
    found = (most_read - 1).clip(0).sum() / (samples * (epochs - 1))  # all nodes together read all samples an epoch
    assert hit_share(epochs, nodes, kept_share) == pytest.approx(found, abs=0.005)


def test_one_node_finds_what_it_keeps_and_one_epoch_finds_nothing() -> None:
    assert hit_share(90, 1, 0.25) == pytest.approx(0.25)
    assert hit_share(1, 4, 1.0) == 0.0
    assert hit_share(90, 16, 2.0) == hit_share(90, 16, 1.0) < 1


@pytest.mark.parametrize(("epochs", "nodes"), [(1, 1), (5, 1), (3, 2), (24, 5)])
def test_the_distribution_is_the_binomial_one(epochs: int, nodes: int) -> None:
    above = chances_above(epochs, nodes)
    assert (len(above), above[epochs]) == (epochs + 1, 0.0)
    for more_than in range(epochs):
        direct = sum(
            math.comb(epochs, k) * Fraction(1, nodes) ** k * Fraction(nodes - 1, nodes) ** (epochs - k)
            for k in range(more_than + 1, epochs + 1)
        )
        assert above[more_than] == pytest.approx(float(direct))


def test_no_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="0 epochs"):
        chances_above(0, 4)


def rarest_elsewhere_at_most(delta: Fraction, epochs: int, nodes: int) -> int:
    """Where a node reads a sample ceil((1+d) E/N) times, some other one reads it this often (`mlfs.plan.epochs`).

    ceil( (N-1-d)/(N-1) * E/N ), for 0 <= d <= N-1 and at least two nodes.
    """
    return math.ceil(Fraction(nodes - 1 - delta) / (nodes - 1) * Fraction(epochs, nodes))


def most_elsewhere_at_least(delta: Fraction, epochs: int, nodes: int) -> int:
    """The lemma's dual: if a node reads a sample floor((1-d) E/N) times, some other one reads it at least this often.

    floor( (N-1+d)/(N-1) * E/N ), for 0 <= d <= 1 and at least two nodes.
    """
    return math.floor(Fraction(nodes - 1 + delta) / (nodes - 1) * Fraction(epochs, nodes))


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
