"""When an explanation of reads is believed: how much the reads must tell, and what further opens must say.

Pure. In: numbers of reads that fit and of explanations that were tried. Out: bits, and yes or no. Used by all of
`mlfs.explain`, so that there is one measure of chance.

An explanation that was picked from many fits by chance more easily than one that was the only one. So evidence is
counted in bits, log2 of how improbable it is that reads in another order fit as well; the choice that there was is
taken off, and at least `LEAST_BITS` must be left.
"""

from __future__ import annotations

from math import lgamma, log, log2

# A finding by chance is rarer than one in a million: more often than that nobody would forgive a wrong order.
LEAST_BITS = 20

# Twelve opens are two or three batches of a worker, or less: soon enough to matter. Two of them may be strays.
JUDGED_OPENS = 12
SURE_SHARE = 0.8


def bits_of_distinct(n: int, reads: int) -> float:
    """What that many reads of different samples out of n tell: log2 of n (n - 1) ... (n - reads + 1)."""
    reads = min(n, reads)
    return (lgamma(n + 1) - lgamma(n - reads + 1)) / log(2)


def bits_of_hits(hits: int, total: int, chance: float) -> float:
    """What it tells that `hits` of `total` independent tries hit, each of which hits by `chance`: at least that much.

    Chernoff's bound. 0 when there are no more hits than chance gives.
    """
    if not total or hits / total <= chance:
        return 0.0
    share = hits / total
    bound = share * log2(share / chance)
    if share < 1.0:
        bound += (1.0 - share) * log2((1.0 - share) / (1.0 - chance))
    return total * bound


def beyond_chance(bits: float, tried: int) -> bool:
    """Whether the best of `tried` explanations, with that much evidence, is none by chance."""
    return bits - log2(tried) >= LEAST_BITS


def confirmed(opens: int, fitting: int) -> bool:
    """Whether opens that an explanation was not searched with say that it is right."""
    return opens >= JUDGED_OPENS and fitting >= SURE_SHARE * opens


def refuted(opens: int, fitting: int) -> bool:
    """Whether they say that it is wrong; neither may be true."""
    return confirmed(opens, opens - fitting)
