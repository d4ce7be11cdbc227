"""Compares orders of samples: whether two are the same, whether one is no shuffle.

Pure. In: streams of samples, each with the reader of each read. Out: yes or no. Several workers of a rank take turns
that differ a little each time, so orders are compared by where samples stand, and by what follows what within a worker.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST = 64
"""Reads below which little is said of an order: by chance, short ones look like something now and then."""
FEWEST_ALIKE = 40
"""Samples below which two orders are not called the same: so few may follow each other alike by chance."""
SAME_SAMPLES = 0.85
"""Share of the samples that two orders must have in common to be compared: the ends of epochs differ by padding, and by
batches that ranks are ahead of each other."""
SAME_PLACE = 0.05
"""Most of the samples of a repeated order move by less than this share of its length. In two shuffles a third."""
SAME_SHARE = 0.1
"""The same, of the place among the reads of a worker, who may have read more or less of it in another epoch."""
ANOTHER_PLACE = 0.2
"""Most of the samples of two different shuffles move by more than this share of their length, and those of one order
that many workers read by less."""
MOVES = 24
"""Places that the samples of a repeated order may move in any case: some batches, by which workers are ahead."""
MOST_COMPARED = 1 << 16
"""Reads by which orders are compared, from the beginning: more would say the same and take longer."""
SAME_PAIRS = 0.6
"""Share of the samples with the same one after them in one worker. Batches go to workers in turn, so that at least all
pairs within batches come again. A buffer that shuffles little keeps places, and no pairs."""
CHANCE_PAIRS = 0.1
"""Such a share at most has it in two shuffles, which have one such pair on average."""
ASCENDING = 0.9
"""Share of ascending steps from which an order is that of the listing."""
LONGEST_LAG = 4
"""Files of a sample that lie in several directories, each of which is read in order: image, label, mask, depth."""
ALIKE_STEPS = 0.5
"""Share of the steps between one file of a sample and that of the next which are of one length in a listing."""
LONG_RUN = 8
"""Ascending reads in a row that no shuffle has: one of 40,320 places begins so many."""
HARDLY = 0.1
"""Mean distance of a sample from its place in the listing, as a share of the length, below which an order is hardly
shuffled. A uniform shuffle has a third; a buffer of a third of the data set has this."""

UNIFORM = 3
"""One in so many of the length is a sample of a uniform shuffle from its place, on average."""


class Stream(NamedTuple):
    """Reads in the order in which they came.

    Attributes:
        samples, readers: shape (n,). at: shape (n,), the number of each read among all of the mount, ascending.
    """

    samples: NDArray[np.int32]
    readers: NDArray[np.int32]
    at: NDArray[np.int64]

    def where(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Stream:
        """Some of the reads."""
        return Stream(self.samples[which], self.readers[which], self.at[which])


def distinct(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """The numbers that are there, ascending; none is negative. numpy's own way takes ten times as long for millions."""
    if not len(numbers) or int(numbers.max()) > 8 * len(numbers):
        return np.unique(numbers)
    return np.flatnonzero(np.bincount(numbers)).astype(np.int32)


def of_reader(stream: Stream, reader: int) -> NDArray[np.int32]:
    return stream.where(stream.readers == reader).samples


def without_repeats(stream: Stream) -> Stream:
    """The first read of each sample."""
    _, first = np.unique(stream.samples, return_index=True)
    return stream.where(np.sort(first))


def is_listing(stream: Stream) -> bool:
    """Whether each reader goes through the listing in its order, as evaluations do."""
    by_reader = [of_reader(stream, reader).astype(np.int64) for reader in distinct(stream.readers).tolist()]
    for lag in range(1, LONGEST_LAG + 1):
        steps = [samples[lag:] - samples[:-lag] for samples in by_reader if len(samples) > lag]
        if steps and _is_regular(np.concatenate(steps), lag):
            return True
    return False


def _is_regular(steps: NDArray[np.int64], lag: int) -> bool:
    """Whether nearly all steps ascend; and, from one file of a sample to the same one of the next, mostly alike: at
    such a distance a small buffer ascends as well."""
    if (steps > 0).mean() < ASCENDING:
        return False
    return lag == 1 or bool(np.unique(steps, return_counts=True)[1].max() >= ALIKE_STEPS * len(steps))


def shuffled_by(stream: Stream) -> float:
    """The mean distance of samples from their place in the listing, in parts of a uniform shuffle's: 0 for the listing,
    1 for a shuffle."""
    return min(1.0, _distance(stream.samples) * UNIFORM)


def is_hardly_shuffled(stream: Stream) -> bool:
    """Whether samples stay near their place in the listing, though the order is another one."""
    kept = _without_runs(without_repeats(stream))
    if len(kept.samples) < 2 * FEWEST:
        return False
    return min(_distance(kept.samples), _distance_in_reader(kept)) < HARDLY and not is_listing(stream)


def _distance(samples: NDArray[np.int32]) -> float:
    """The mean distance of samples from their place in the listing, as a share of the length."""
    places = np.empty(len(samples))
    places[np.argsort(samples, kind="stable")] = np.arange(len(samples))
    return float(np.abs(places - np.arange(len(samples))).mean() / len(samples))


def _distance_in_reader(stream: Stream) -> float:
    """The same of readers that each read a batch at once, in any order: by the place in the reader of the sample."""
    places = np.empty(len(stream.samples))
    places[np.argsort(stream.samples, kind="stable")] = np.arange(len(stream.samples)) / len(stream.samples)
    return float(np.abs(places - _shares_of_reader(stream)).mean())


def _without_runs(stream: Stream) -> Stream:
    """The reads without those of an evaluation, which a reader goes through in ascending order."""
    kept = np.ones(len(stream.at), np.bool_)
    for reader in distinct(stream.readers).tolist():
        own = np.flatnonzero(stream.readers == reader)
        breaks = np.flatnonzero(np.diff(stream.samples[own]) <= 0) + 1
        edges = [0, *breaks.tolist(), len(own)]
        for begins, ends in pairwise(edges):
            if ends - begins >= LONG_RUN:
                kept[own[begins:ends]] = False
    return stream.where(kept)


def are_alike(one: Stream, other: Stream) -> bool:
    """Whether two streams read the same samples in the same order, which is not that of the listing."""
    one, other = (without_repeats(stream.where(slice(0, MOST_COMPARED))) for stream in (one, other))
    longer = max(len(one.samples), len(other.samples))
    moves = _moves(one, other)
    if len(moves) < max(FEWEST_ALIKE, SAME_SAMPLES * longer):
        return False
    if np.median(moves) > max(MOVES, SAME_PLACE * len(moves)) and _moves_in_reader(one, other) > SAME_SHARE:
        return False
    pairs = np.intersect1d(_pairs(one), _pairs(other))
    return len(pairs) >= SAME_PAIRS * len(moves) and not is_listing(one)


def differ(one: Stream, other: Stream) -> bool:
    """Whether two streams read other samples, or the same ones in another order, beyond doubt: most are not alike."""
    one, other = (without_repeats(stream.where(slice(0, MOST_COMPARED))) for stream in (one, other))
    if np.isin(firsts(one), firsts(other)).mean() > 1 / 2:
        return False  # all of a short epoch may be on its way at once, in any order
    moves = _moves(one, other)
    if 2 * len(moves) < min(len(one.samples), len(other.samples)):
        return True
    fewest = FEWEST if len(np.intersect1d(_pairs(one), _pairs(other))) > CHANCE_PAIRS * len(moves) else FEWEST // 4
    return len(moves) >= fewest and bool(np.median(moves) > ANOTHER_PLACE * len(moves))


def firsts(stream: Stream) -> NDArray[np.int32]:
    """The first sample of each reader."""
    return stream.samples[np.unique(stream.readers, return_index=True)[1]]


def _moves(one: Stream, other: Stream) -> NDArray[np.int64]:
    """How many places each sample moves that both streams read. Args: neither reads a sample twice."""
    _, at_one, at_other = np.intersect1d(one.samples, other.samples, assume_unique=True, return_indices=True)
    moves: NDArray[np.int64] = np.abs(np.argsort(np.argsort(at_one)) - np.argsort(np.argsort(at_other)))
    return moves


def _moves_in_reader(one: Stream, other: Stream) -> float:
    """By how much most samples move that both streams read, as a share of what their reader reads. Many workers each
    read a batch at once, in any order, and each of them its own batches in the same one. Args: as above."""
    _, at_one, at_other = np.intersect1d(one.samples, other.samples, assume_unique=True, return_indices=True)
    return float(np.median(np.abs(_shares_of_reader(one)[at_one] - _shares_of_reader(other)[at_other])))


def _shares_of_reader(stream: Stream) -> NDArray[np.float64]:
    """By read, the share of its reader's reads that come before it."""
    order = np.argsort(stream.readers, kind="stable")
    _, first, of = np.unique(stream.readers[order], return_index=True, return_counts=True)
    shares = np.empty(len(order))
    shares[order] = (np.arange(len(order)) - np.repeat(first, of)) / np.repeat(of, of)
    return shares


def _pairs(stream: Stream) -> NDArray[np.int64]:
    """Each sample with the one after it in the same reader."""
    pairs = []
    for reader in distinct(stream.readers).tolist():
        samples = of_reader(stream, reader).astype(np.int64)
        pairs.append(samples[:-1] << 32 | samples[1:])
    return np.concatenate(pairs) if pairs else np.empty(0, np.int64)
