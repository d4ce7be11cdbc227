"""Computes how often a node reads a sample over a whole run, and how many of its reads its own caches answer.

Pure. In: how many epochs and nodes there are, what share of the samples a node keeps. Out: probabilities, and a share
of reads. Called by `mlfs.plan.epochs` for nodes that do not share their caches. The policies place by the true
frequencies, of which these are the expectation.

Every epoch is taken to deal all samples to the nodes at random. Source: NoPFS (Dryden et al., SC'21), Section 3.1:
X ~ Binomial(E, 1/N), F * P(X > m).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt


@lru_cache(maxsize=8)
def chances_above(epochs: int, nodes: int) -> npt.NDArray[np.float64]:
    """P(X > m) for m = 0 .. epochs, X ~ Binomial(epochs, 1/nodes): a node reads a sample more than m times.

    Raises:
        ValueError: no epochs or no nodes.
    """
    if epochs < 1 or nodes < 1:
        raise ValueError(f"{epochs} epochs on {nodes} nodes: at least one of each is needed")
    if nodes == 1:
        return np.append(np.ones(epochs), 0.0)
    k = np.arange(epochs + 1)
    log_factorial = np.append(0.0, np.cumsum(np.log(k[1:])))
    log_chosen = log_factorial[-1] - log_factorial - log_factorial[::-1]
    chances = np.exp(log_chosen - k * np.log(nodes) + (epochs - k) * np.log1p(-1.0 / nodes))
    above: npt.NDArray[np.float64] = np.append(np.cumsum(chances[:0:-1])[::-1], 0.0)
    return above.clip(0.0, 1.0)


def hit_share(epochs: int, nodes: int, kept_share: float) -> float:
    """The share of a node's reads after the first epoch for which it has kept the sample itself.

    The node keeps the samples that it reads most, each from its own first read on. A sample that is read X times is
    then found X - 1 times: once for each m >= 1 with X > m. The share of all samples that are kept and read more than m
    times is at most min(kept_share, P(X > m)), and whoever keeps the most-read ones reaches that for every m at once.

    Args:
        epochs: 1 or more; with a single one nothing is read after it, and the answer is 0.
        kept_share: of all samples, what the node has room for; 1 and more: for all.
    """
    if epochs == 1:
        return 0.0
    hits = np.minimum(kept_share, chances_above(epochs, nodes)[1:]).sum()
    return float(hits) * nodes / (epochs - 1)
