"""Cuts the reads of a mount into runs, loaders, ranks and epochs.

Pure. In: reads, with the run and the rank of each reader. Out: for each loader of a run, each rank's epochs. A loader
is a data set that is gone through again and again, by workers or by the rank itself: processes that read the same
samples, or that work side by side. A validation with workers of its own is a loader of its own.

The end of an epoch is seen in two ways. Workers that do not persist end with it, and new ones come. And in a pass that
reads no sample twice, samples come again all at once when the next one begins. The reads of workers that stay, and draw
with replacement, do not show where an epoch ends: samples come again at any time.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.audit.orders import FEWEST, Stream, distinct
from mlfs.audit.reads import SeenReads

SHARED = 0.02
"""Share of a process's samples that others of its loader have read: with sixteen workers an epoch's are spread over so
many of the next one's. A script that looks at some samples before it begins has less in common with its workers."""
FEWEST_SHARED = 2
SIDE_BY_SIDE = 0.5
"""Share of the shorter one's time in which two processes of a rank read, from which they are of one loader."""
WINDOW, FEWEST_IN_WINDOW, FEW_SAMPLES = 64, 8, 100
"""Reads by which the beginning of an epoch is seen: fewer are chance. Where there are few samples they are half as
many as these, and no fewer than the second number."""
COMES_AGAIN = 0.15
"""Share of the reads in the window that have come before in the epoch: all, where that was a whole one; as few as that
where the run began with the rest of an epoch."""
CAME_BEFORE = 0.1
"""Share of repeated reads in the last quarter of an epoch above which samples come again at any time: workers that are
late read a few samples of an epoch in the next one."""
AT_ONCE = 3
"""Times as many come again at the beginning of an epoch as in that quarter: in draws with replacement it is ever more
of them."""
TOGETHER = 0.85
"""An epoch gives back that share at least of what the one before had, but for chance, and to each rank: to one that is
further behind, and still reads the one before, it gives less. Then the loader's epochs are not its own."""
CHANCE = 3
"""Standard deviations that are chance."""
OF_THE_SAME = 0.05
"""Share of what new workers read that the epoch has had, from which they begin another one. After an epoch that ended
early it is no more than what that epoch had."""
COMPLETE = 0.98
"""An epoch as long as that share of the longest one before it is complete: padding and dropped ends differ."""
NEARLY_ALL = 0.9
"""Share of the samples that the last epoch must have had to be over: batches that are dropped are fewer."""


class RankReads(NamedTuple):
    """The reads of one rank with a loader.

    Attributes:
        epochs: its reads, cut. is_over: whether the last of them is over.
    """

    rank: int
    epochs: tuple[Stream, ...]
    is_over: bool

    @property
    def whole(self) -> tuple[Stream, ...]:
        """The epochs that are over."""
        return self.epochs if self.is_over else self.epochs[:-1]


class LoaderReads(NamedTuple):
    """The reads of one loader of a run.

    Attributes:
        stream: all of its reads. ranks: by rank, in the order of their numbers. shows_epochs: whether the reads show
            where an epoch ends.
    """

    run: int
    stream: Stream
    ranks: tuple[RankReads, ...]
    shows_epochs: bool


def loaders(reads: SeenReads) -> list[LoaderReads]:
    """All loaders, in the order of their first reads."""
    everything = _without_opened_again(Stream(reads.samples, reads.readers, np.arange(len(reads.samples))))
    runs = np.array([kin.run for kin in reads.kin], np.int64)[everything.readers]
    ranks = _rank_numbers(reads)
    found = []
    for run in np.unique(runs).tolist():
        of_run = everything.where(runs == run)
        loader_of = _loader_of_reader(of_run, ranks)
        table = np.zeros(len(reads.kin), np.int32)
        table[list(loader_of)] = list(loader_of.values())
        by_read = table[of_run.readers]
        found += [_loader(run, of_run.where(by_read == one), ranks) for one in distinct(by_read).tolist()]
    return sorted(found, key=lambda loader: int(loader.stream.at[0]))


def _rank_numbers(reads: SeenReads) -> NDArray[np.int64]:
    """By reader, the number of its rank: of ranks that nobody gave one, the place of their process in the run."""
    without: dict[int, list[int]] = {}
    for kin in sorted(set(reads.kin), reverse=True):
        if kin.rank < 0 and kin.rank not in without.setdefault(kin.run, []):
            without[kin.run].append(kin.rank)
    return np.array([kin.rank if kin.rank >= 0 else without[kin.run].index(kin.rank) for kin in reads.kin], np.int64)


def _without_opened_again(stream: Stream) -> Stream:
    """Without reads by a process of the sample that it has just read: libraries open a file twice."""
    by_reader = np.argsort(stream.readers, kind="stable")
    samples, readers = stream.samples[by_reader], stream.readers[by_reader]
    again = np.zeros(len(samples), np.bool_)
    again[by_reader[1:]] = (samples[1:] == samples[:-1]) & (readers[1:] == readers[:-1])
    return stream.where(~again)


def _loader_of_reader(stream: Stream, ranks: NDArray[np.int64]) -> dict[int, int]:
    """By reader of a run, the first reader of its loader."""
    above: dict[int, int] = {}

    def first(reader: int) -> int:
        while above[reader] != reader:
            reader = above[reader]
        return reader

    last_by = np.full(int(stream.samples.max()) + 1, -1, np.int64)
    alive: dict[int, list[tuple[int, int, int]]] = {}  # by rank, readers that read still: first and last read, reader
    readers, births = np.unique(stream.readers, return_index=True)
    for reader in readers[np.argsort(births)].tolist():
        own = stream.where(stream.readers == reader)
        samples = distinct(own.samples)
        above[reader] = reader
        shared = Counter(first(other) for other in last_by[samples].tolist() if other >= 0)
        for other, count in shared.items():
            if count >= max(FEWEST_SHARED, SHARED * len(samples)):
                above[first(reader)] = first(other)
        rank, begins, ends = int(ranks[reader]), int(own.at[0]), int(own.at[-1])
        beside = [one for one in alive.get(rank, ()) if one[1] > begins]
        for other_begins, other_ends, other in beside:
            shorter = min(ends - begins, other_ends - other_begins)
            if min(ends, other_ends) - begins > SIDE_BY_SIDE * shorter:
                above[first(reader)] = first(other)
        alive[rank] = [*beside, (begins, ends, reader)]
        last_by[samples] = reader
    return {reader: first(reader) for reader in above}


def _loader(run: int, stream: Stream, ranks: NDArray[np.int64]) -> LoaderReads:
    of_reads = ranks[stream.readers]
    of_ranks = {rank: stream.where(of_reads == rank) for rank in np.unique(of_reads).tolist()}
    count = len(distinct(stream.samples))
    together = _cuts(stream, of_reads, count)
    # Ranks may read what others read, and yet each of them no sample twice; and they may be far apart.
    begins = {
        rank: _cuts(own, np.zeros_like(own.at), count) if together is None else together
        for rank, own in of_ranks.items()
    }
    cut = [_rank_reads(rank, own, stream, begins[rank]) for rank, own in of_ranks.items()]
    shows = all(begins[one.rank] is not None or len(one.epochs) > 1 for one in cut)
    last = distinct(np.concatenate([one.epochs[-1].samples for one in cut]))
    if len(last) < NEARLY_ALL * count:  # as long as the rest of an epoch before, or without its validation
        cut = [one._replace(is_over=False) for one in cut]
    return LoaderReads(run, stream, tuple(cut), shows)


def _cuts(stream: Stream, ranks: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """The numbers of the reads with which epochs begin, by samples that come again all at once to all ranks; None where
    they come again at any time, or to some ranks far sooner than to others.

    Args:
        ranks: shape (n,), the rank of each read. count: samples of the loader.
    """
    own = len(distinct(stream.samples))
    most = WINDOW if own >= FEW_SAMPLES else max(FEWEST_IN_WINDOW, own // 2)
    before = _last_time(stream.samples)
    cuts, start = [0], 0
    while True:
        again = before[start:] >= start
        sums = np.concatenate(([0], np.cumsum(again)))
        window = min(most, len(again))
        dense = again[: len(again) - window + 1] & (sums[window:] - sums[:-window] >= COMES_AGAIN * window)
        where = np.flatnonzero(dense)
        if not len(where) or len(again) < 2 * most:
            rest = again[-(len(again) // 4) :] if len(again) >= 4 else again
            to_all = _come_again(stream, ranks, [*cuts, len(stream.at)], before, count)
            return stream.at[cuts] if rest.mean() <= CAME_BEFORE and to_all else None
        cut = int(where[0])
        late, coming = again[cut - cut // 4 : cut], again[cut : cut + window].mean()
        if cut < most // 2 or late.mean() > min(CAME_BEFORE, coming / AT_ONCE):
            return None
        start += cut
        cuts.append(start)


def _come_again(
    stream: Stream, ranks: NDArray[np.int64], edges: list[int], before: NDArray[np.int64], count: int
) -> bool:
    """Whether samples come again to all ranks from when an epoch begins, as many of them as the one before has had.

    Args:
        ranks, count: as above. edges: between the epochs. before: by read, that of the same sample before it.
    """
    for start, begin, end in zip(edges, edges[1:], edges[2:], strict=False):
        reads = np.bincount(ranks[begin:end])
        again = np.bincount(ranks[begin:end], before[begin:end] >= start)
        share = len(distinct(stream.samples[start:begin])) / count
        fewest = TOGETHER * share * reads - CHANCE * np.sqrt(reads * share * (1 - share))
        if share < COMES_AGAIN or (again < fewest).any():
            return False
    return True


def _last_time(samples: NDArray[np.int32]) -> NDArray[np.int64]:
    """By read, the index of the read of the same sample before it; -1 for a first one."""
    order = np.argsort(samples, kind="stable")
    before = np.full(len(samples), -1, np.int64)
    same = samples[order[1:]] == samples[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _rank_reads(rank: int, stream: Stream, every: Stream, begins: NDArray[np.int64] | None) -> RankReads:
    """Cut a rank's reads, of every one of the loader, where its workers are others, and where epochs begin."""
    starts = set(_generations(stream, every))
    if begins is not None:
        # Workers of the next epoch begin at about that time, some earlier; the ends of short ones are near each other.
        near = len(stream.at) // (4 * len(starts)) if len(starts) > 1 else len(stream.at) // (8 * len(begins))
        for start in np.searchsorted(stream.at, begins).tolist():
            if all(abs(start - other) > near for other in starts):
                starts.add(start)
    edges = [*sorted(starts), len(stream.at)]
    epochs = tuple(stream.where(slice(*edge)) for edge in pairwise(edges) if edge[1] > edge[0])
    longest = max((len(epoch.at) for epoch in epochs[:-1]), default=0)
    return RankReads(rank, epochs, bool(longest) and len(epochs[-1].at) >= COMPLETE * longest)


def _generations(stream: Stream, every: Stream) -> list[int]:
    """The reads from which all readers of a rank are others than before, and read what was read in the epoch: those of
    a last validation outlive the training's, and read something else. Args: every: the reads of all ranks."""
    _, births = np.unique(stream.readers, return_index=True)
    order = np.argsort(births)
    _, from_the_end = np.unique(stream.readers[::-1], return_index=True)
    deaths = len(stream.readers) - 1 - from_the_end
    starts, alive_to = [0], -1
    for birth, death in zip(births[order].tolist(), deaths[order].tolist(), strict=True):
        if birth > alive_to and birth - starts[-1] >= FEWEST // 4:
            epoch = slice(*np.searchsorted(every.at, stream.at[[starts[-1], birth]]).tolist())
            if np.isin(stream.samples[birth : birth + WINDOW], every.samples[epoch]).mean() > OF_THE_SAME:
                starts.append(birth)
        alive_to = max(alive_to, death)
    return starts
