"""Measures how random an order is: its entropy as a share of that of a uniform shuffle (DeepIO, Zhu et al. 2018,
Section III-C).

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

# Elements that are looked at together: some hundred megabytes of intermediate arrays.
CHUNK = 1 << 21

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
    of_rounds = of_shuffle = 0.0
    for begin in range(0, elements, CHUNK):
        i = np.arange(begin, min(begin + CHUNK, elements), dtype=np.int64)
        round_of = np.searchsorted(bounds, i, side="right") - 1
        start, end = bounds[round_of], bounds[round_of + 1]
        q = 1.0 / (elements - i)
        of_rounds += float((q * (np.log2((elements - start) / (end - start)) + np.log2(end - i))).sum())
        of_shuffle += float((q * np.log2(elements - i)).sum())
    return of_rounds / of_shuffle


def _bits(n: int) -> float:
    """log2(n!)."""
    return lgamma(n + 1) / log(2)


def _bits_of_shuffles(counts: Counts) -> float:
    values, times = np.unique(counts, return_counts=True)
    return float(sum(_bits(value) * many for value, many in zip(values.tolist(), times.tolist(), strict=True)))
