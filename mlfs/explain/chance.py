"""The evidence of reads, in bits, and the thresholds by which hypotheses are concluded from it.

Pure. In: numbers of reads that fit and of hypotheses that were tried. Out: bits, and yes or no. Used by all of
`mlfs.explain`, so that there is one measure of chance; a number that one generator alone needs stands beside it.

Evidence is log2 of how improbable it is that reads in another order fit as well. A hypothesis that was picked from many
fits by chance more easily than one that was the only one: so it begins with fewer bits (`CHOICE_BITS`), and at least
`LEAST_BITS` must be left. Searches go by what that asks of the reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import lgamma, log, log2

from mlfs.follow.evidence import JUDGED_OPENS, LEAST_BITS
from mlfs.follow.hypothesis import CHOICE_BITS, Origin
from mlfs.follow.matching import Open

# -- bits

SEED_BITS = LEAST_BITS + CHOICE_BITS[Origin.SEARCH]
"""Of the first reads that tell a seed."""

PLACE_BITS = LEAST_BITS + CHOICE_BITS[Origin.PLACE]
"""Of the first reads that tell where in its generator's words an epoch begins, beside the choice of places."""

NEARLY_BITS = LEAST_BITS + 22
"""Of threads' reads, which come nearly in an order. Another sampler is tried 2^22 times at most."""

NEXT_EPOCH_BITS = LEAST_BITS + CHOICE_BITS[Origin.EPOCH_BEFORE]
"""Of an epoch's first reads that choose among the hypotheses of the epoch before."""


def bits_of_distinct(n: int, reads: int) -> float:
    """The bits of that many reads of different samples out of n: log2 of n (n - 1) ... (n - reads + 1)."""
    reads = min(n, reads)
    return (lgamma(n + 1) - lgamma(n - reads + 1)) / log(2)


def bits_of_hits(hits: int, total: int, chance: float) -> float:
    """The bits, or fewer, of `hits` hits in `total` independent tries, each of which hits by `chance`.

    Chernoff's bound. 0 when there are no more hits than chance gives.
    """
    if not total or hits / total <= chance:
        return 0.0
    share = hits / total
    bound = share * log2(share / chance)
    if share < 1.0:
        bound += (1.0 - share) * log2((1.0 - share) / (1.0 - chance))
    return total * bound


REACH = 32
"""How far behind the oldest sample that is still being read a thread may be: two for each of sixteen cores."""

# One read in eight may be of something else, such as a look at a file before training.
_LEAST_SHARE_NEAR = 0.875


def bits_near_the_start(places: Sequence[int], n: int) -> float:
    """The bits of a process' first reads that stand near the start of an order of n samples.

    The threads of one process, of tf.data's parallel map for one, read in nearly the order that they are given.

    Args:
        places: of the reads, in the order of time; -1 for those that are not in the order.
    """
    near = [at for at, place in enumerate(places) if 0 <= place <= at + REACH]
    if len(near) < _LEAST_SHARE_NEAR * len(places):
        return 0.0
    return sum(log2(max(1.0, n / (at + REACH + 1))) for at in near)


# -- opens that a hypothesis was not found by

FEWEST_FITTING = 8
"""An epoch counts as read in an explained order from so many opens on that came so, if most of them did."""


# An order that is like the right one for some batches predicts few of a reader's opens, the right one nearly all.
_LEAST_SHARE_OF_A_READER = 0.5


def borne_out(opens: Iterable[Open]) -> bool:
    """Whether a hypothesis predicts most of what some reader opened, of all its opens and not of a run of them.

    A reader is a process, or the workers of one. Others may read beside it: they are no evidence against it.
    """
    observed, agreed = Counter[int](), Counter[int]()
    for opened in opens:
        reader = opened.parent if opened.parent > 1 else opened.process
        observed[reader] += 1
        agreed[reader] += opened.agrees
    return any(
        of >= JUDGED_OPENS and agreed[reader] >= _LEAST_SHARE_OF_A_READER * of for reader, of in observed.items()
    )
