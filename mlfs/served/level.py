"""How random an order is: its entropy as a share of that of a uniform shuffle (DeepIO, Zhu et al. 2018, Section III-C).

Pure. In: how many samples there are, in how many rounds they are read. Out: levels between 0 and 1. Used by
`mlfs.served.rounds`.

Two scales of the paper: `entropy_share` is eq. 2, 3 and 5, the number of orders that can come out, and the one that
bounds what mlfs serves. `published_level` is eq. 4, 1 and 5, the paper's approximation of that by single elements, on
which its own figures stand. It weights the last elements of an epoch most and so hardly falls: cut into 64 rounds, an
epoch of 7,600 samples still has 90 % by it, and half of the entropy.
"""

from __future__ import annotations

from math import lgamma, log

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def entropy_share(rounds: Counts, kept: Counts, pieces: int) -> float:
    """The entropy of an order in rounds, as a share of that of a uniform shuffle.

    Args:
        rounds: samples by round. kept: those of them that are drawn one by one, from all that nodes keep.
        pieces: pieces of a round, of which all other samples come; which round reads which piece is drawn.
    """
    n = int(rounds.sum())
    if n < 2:
        return 1.0
    within = _bits_of_shuffles(rounds)
    which = _bits(int(kept.sum())) - _bits_of_shuffles(kept)
    which += _bits(len(rounds) * pieces) - len(rounds) * _bits(pieces)
    return min(1.0, (within + which) / _bits(n))


def published_level(elements: int, rounds: int) -> float:
    """The randomization level as the paper computes it, for memory that holds one of so many rounds.

    The i-th element of round r has P = N_c / (N_f - N_c r) * 1 / (N_mem - i mod N_mem), and Q = 1 / (N - i) in a
    uniform shuffle. The published figures come out with H = - sum Q log2 P.
    """
    if elements < 2:
        return 1.0
    bounds = np.arange(rounds + 1, dtype=np.int64) * elements // rounds
    sizes = np.diff(bounds)
    i = np.arange(elements, dtype=np.int64)
    start, size = np.repeat(bounds[:-1], sizes), np.repeat(sizes, sizes)
    q = 1.0 / (elements - i)
    bits = np.log2((elements - start) / size) + np.log2(size - (i - start))
    return float((q * bits).sum() / (q * np.log2(elements - i)).sum())


def _bits(n: int) -> float:
    """log2(n!)."""
    return lgamma(n + 1) / log(2)


def _bits_of_shuffles(counts: Counts) -> float:
    values, times = np.unique(counts, return_counts=True)
    return float(sum(_bits(value) * many for value, many in zip(values.tolist(), times.tolist(), strict=True)))
