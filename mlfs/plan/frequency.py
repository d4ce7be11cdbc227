"""How often a node reads a sample over a whole run, when every epoch deals all samples to the nodes at random.

Pure. In: the size of the run. Out: expected numbers, a Monte Carlo check of them, and the bounds of the lemma. Called
by `mlfs plan`. The policies place samples by the true frequencies; these formulas say why that pays.

Source: NoPFS (Dryden et al., SC'21), Section 3.1: X ~ Binomial(E, 1/N), F * P(X > m); its lemma on complementary
frequencies.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt


def probability_above(epochs: int, nodes: int, more_than: int) -> float:
    """P(X > more_than) for X ~ Binomial(epochs, 1/nodes): one node reads one sample more often than that.

    Args:
        epochs, nodes: 1 or more. more_than: any number; below 0 the answer is 1.

    Raises:
        ValueError: no epochs or no nodes.
    """
    if epochs < 1 or nodes < 1:
        raise ValueError(f"{epochs} epochs on {nodes} nodes: at least one of each is needed")
    if more_than < 0:
        return 1.0
    if nodes == 1:
        return 1.0 if epochs > more_than else 0.0
    log_p, log_q = -math.log(nodes), math.log1p(-1.0 / nodes)
    terms = (
        math.exp(
            math.lgamma(epochs + 1)
            - math.lgamma(k + 1)
            - math.lgamma(epochs - k + 1)
            + k * log_p
            + (epochs - k) * log_q
        )
        for k in range(more_than + 1, epochs + 1)
    )
    return min(1.0, math.fsum(terms))


def expected_above(samples: int, epochs: int, nodes: int, more_than: int) -> float:
    """How many of `samples` one node is expected to read more than `more_than` times (NoPFS, Section 3.1)."""
    return samples * probability_above(epochs, nodes, more_than)


def threshold(epochs: int, nodes: int, delta: float) -> int:
    """The most reads that are not yet "a factor delta more than the mean": floor((1 + delta) * epochs / nodes)."""
    return math.floor((1 + Fraction(delta).limit_denominator(10**6)) * epochs / nodes)


def simulated_above(
    samples: int, epochs: int, nodes: int, more_than: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """How many samples each node reads more than `more_than` times in one simulated run, shape (nodes,).

    Every epoch is shuffled and dealt round-robin, as the samplers do: what the binomial distribution idealises.
    """
    counts = np.zeros((nodes, samples), dtype=np.uint16)
    dealt = np.arange(samples) % nodes
    for _ in range(epochs):
        counts[dealt, generator.permutation(samples)] += 1
    above: npt.NDArray[np.int64] = (counts > more_than).sum(axis=1, dtype=np.int64)
    return above


def rarest_elsewhere_at_most(delta: Fraction, epochs: int, nodes: int) -> int:
    """The lemma: if a node reads a sample ceil((1+d) E/N) times, some other node reads it at most this often.

    ceil( (N-1-d)/(N-1) * E/N ), for 0 <= d <= N-1 and at least two nodes.
    """
    return math.ceil(Fraction(nodes - 1 - delta) / (nodes - 1) * Fraction(epochs, nodes))


def most_elsewhere_at_least(delta: Fraction, epochs: int, nodes: int) -> int:
    """The lemma's dual: if a node reads a sample floor((1-d) E/N) times, some other reads it at least this often.

    floor( (N-1+d)/(N-1) * E/N ), for 0 <= d <= 1 and at least two nodes.
    """
    return math.floor(Fraction(nodes - 1 + delta) / (nodes - 1) * Fraction(epochs, nodes))
