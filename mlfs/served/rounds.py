"""An order in rounds: what nodes keep is shuffled where it lies, the rest comes in large pieces (DeepIO, 2018, III).

Pure. In: which samples of an epoch no node keeps, in the tree's order; room for buffers; the level of randomness that
is wanted; a source of permutations. Out: the sequence of the epoch. Called by `mlfs.orders.served` and
`mlfs.lab.policies.deepio`.

DeepIO reads one half of its memory while the other half takes the next round's files from the PFS. Here the caches
keep what they keep, as that saves reads of the PFS in each epoch; only the rest is read in rounds. A round takes as
much of it as one of two buffers holds, in pieces of the tree that lie together, and its share of what nodes keep. Which
pieces, and which of the kept samples, is drawn anew in each epoch, and all samples of a round are shuffled together.
The fewer rounds, the more random is the order: with all samples kept there is one round, which is a uniform shuffle.
There is one exception. Each piece is one sample where nothing is kept and a round holds no more samples than pieces,
and the order is a uniform shuffle again, in as many rounds as there are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lgamma, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer[Any]]
# A permutation of 0 .. n-1, drawn; the second argument tells the draws of one epoch apart.
Permute = Callable[[int, int], Numbers]

# A parallel file system gives nearly its sequential rate for reads of this size: stripes are 1 to 4 MiB.
PIECE_BYTES = 16 << 20

_ROTATION, _PIECES, _KEPT, _WITHIN = range(4)


class Rounds(NamedTuple):
    """How an epoch is cut.

    Attributes:
        kept, away: samples that some node keeps, and the others. rounds: how many rounds. pieces: of each round.
    """

    kept: int
    away: int
    rounds: int
    pieces: int

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of samples in each round."""
        return self.kept_sizes + np.diff(_cuts(self.away, self.rounds))

    @property
    def kept_sizes(self) -> npt.NDArray[np.int64]:
        """Kept samples by round."""
        return np.diff(_cuts(self.kept, self.rounds))

    @property
    def level(self) -> float:
        """The entropy of the order as a share of that of a uniform shuffle."""
        return 1.0 if self.rounds == 1 else entropy_share(self.sizes, self.kept_sizes, self.pieces)


def rounds_for(kept: int, away: int, away_bytes: int, buffer_bytes: int, nodes: int, level: float) -> Rounds:
    """As many rounds as one of the two buffers needs, as far as the order stays as random as wanted.

    Args:
        kept, away: samples that some node keeps, and the others; away_bytes: of these.
        buffer_bytes: of one of the two buffers, of all nodes together. level: the least that `Rounds.level` may be.

    Returns:
        The most rounds that are random enough, no more than the buffers need. A round is larger than a buffer where
        they are fewer than that, and `mlfs.served.refill` cuts it into parts.
    """
    most = min(max(1, away), -(-away_bytes // max(1, buffer_bytes)) or 1)

    def cut(rounds: int) -> Rounds:
        wanted = max(nodes, away_bytes // rounds // PIECE_BYTES)
        return Rounds(kept, away, rounds, max(1, min(wanted, away // rounds)))

    fits, too_many = 1, most + 1  # fewer rounds are more random
    if cut(most).level >= level:
        return cut(most)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if cut(middle).level >= level else (fits, middle)
    return cut(fits)


def in_rounds(away: Numbers, cut: Rounds, nodes: int, permute: Permute) -> tuple[Numbers, npt.NDArray[np.int16]]:
    """Draw an epoch.

    Args:
        away: the positions, among the epoch's samples, of those that no node keeps, as they lie in the tree.

    Returns:
        The positions 0 .. n-1 of the samples in the order in which they are read; and by position, which of the nodes
        reads the piece that a sample lies in, -1 for what is kept.
    """
    n = cut.kept + cut.away
    round_of, reader = np.zeros(n, dtype=np.int32), np.full(n, -1, dtype=np.int16)
    is_kept = np.ones(n, dtype=np.bool_)
    is_kept[away] = False
    if cut.away:
        # Pieces begin elsewhere in each epoch, so that not always the same samples are in one round.
        rolled = np.roll(away, -int(permute(cut.away, _ROTATION)[0]))
        in_round = permute(cut.rounds * cut.pieces, _PIECES)
        piece = np.repeat(in_round, np.diff(_cuts(cut.away, len(in_round))))
        round_of[rolled] = piece // cut.pieces
        reader[rolled] = piece % cut.pieces % nodes
    kept = np.flatnonzero(is_kept)[permute(cut.kept, _KEPT)] if cut.kept else np.empty(0, dtype=np.int64)
    round_of[kept] = np.repeat(np.arange(cut.rounds, dtype=np.int32), cut.kept_sizes)
    drawn = permute(n, _WITHIN)
    return drawn[np.argsort(round_of[drawn], kind="stable")], reader


def _cuts(n: int, parts: int) -> npt.NDArray[np.int64]:
    """The cuts of `n` things into parts of nearly equal numbers."""
    return np.arange(parts + 1, dtype=np.int64) * n // parts


# -- how random an order in rounds is
#
# In: how many samples there are, in how many rounds they are read. Out: levels between 0 and 1.
#
# Two scales of the paper: `entropy_share` is eq. 2, 3 and 5, the number of orders that can come out, and the one that
# bounds what mlfs serves. `published_level` is eq. 4, 1 and 5, the paper's approximation of that by single elements, on
# which its own figures stand. It weights the last elements of an epoch most and so hardly falls: cut into 64 rounds, an
# epoch of 7,600 samples still has 90 % by it, and half of the entropy.

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
