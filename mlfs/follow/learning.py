"""Learns how a loader shares a stream among its processes, from what each of them opened.

Pure. In: the last opens. Out: a `Shape`, or None when none explains them. Called by `mlfs.follow.matching` when opens
don't fit the shape that it knows.

The part of an epoch that one process reads, sorted, falls into runs of a batch's length where workers take batches in
turns, and the runs begin a whole round of all workers apart; the processes of a rank begin a batch apart. This gives
candidates for batch and workers. Each candidate is tried on the opens, and the one that explains most of them wins. If
none explains nearly all of them, whoever is free may take the next batch: then a batch's length and how far out of
order batches come are all there is to learn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, pairwise, takewhile
from itertools import count as count_from
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.score import Open
from mlfs.follow.shape import Shape

Positions = npt.NDArray[np.int64]

FEWEST = 4
"""Opens below which nothing is learned: two batches of two samples are the least that shows a shape."""
MOST_CANDIDATES = 12
"""Shapes that are tried at a time. Each costs a pass over the last opens, and the likeliest ones come first."""
GOOD = 0.75
"""Share of the opens that a shape must explain. Opens of other jobs and samples left out may spoil a quarter."""
SURE = 0.95
"""Share of the opens that shows the shape beyond doubt: then no other kind of loader is considered."""
CHANCE = 0.25
"""Share of an epoch. A shape that allows for more disorder, or begins in more places, would explain opens in any order.
"""
MOST_EARLY = 0.98
"""Quantile of how early opens come, for the slack: two in a hundred may be a stranger's."""

FEWEST_OF_SINGLES = 32
"""Opens below which several processes are not believed to take single samples whenever they are free: such a shape
allows for any order nearby, so that what workers begin with fits it too, and nothing would be learned of them any more.
"""
LEAST_SLACK = 4
"""The slack of a loader whose threads take samples at most one turn early (see `_OfProcesses`): the least but none."""


class PlacedOpen(NamedTuple):
    """An open: the process, the rank and the epoch, and how many places behind the beginning of the epoch's reading."""

    process: int
    rank_index: int
    epoch: int
    x: int


def seen_where_matched(opens: Iterable[Open], epochs: Mapping[int, EpochIndex]) -> list[PlacedOpen]:
    """Opens at the positions that they were matched to; those that were matched to none are left out."""
    seen = []
    for o in opens:
        if o.position >= 0:
            index = epochs.get(o.cell.epoch)
            begin = index.base + index.begin if index else 0
            seen.append(PlacedOpen(o.process, o.rank_index, o.cell.epoch, o.position - begin))
    return seen


def seen_by_count(opens: Iterable[Open], epochs: Mapping[int, EpochIndex]) -> list[PlacedOpen]:
    """All opens that ever were, wherever they were matched: a sample is read once an epoch, so its count is its epoch.

    This finds the shape where matching by a wrong one has led astray. An epoch has a sample several times where a
    sampler repeats its samples, and ranks have samples in common: see `_in_one_rank`. Opens of epochs behind one that
    is not at hand any more are left out: so many of a sample there were in that one as nobody knows by now.
    """
    in_order = [epochs[epoch] for epoch in takewhile(epochs.__contains__, count_from(min(epochs, default=0)))]
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    parent_of: dict[int, int] = {}
    seen: list[PlacedOpen] = []
    repeated: dict[tuple[int, EpochIndex], list[tuple[int, int]]] = defaultdict(list)
    for o in opens:
        parent_of[o.process] = o.parent
        before = last.get(o.process, o.sample)
        again = o.again if o.again and in_order and len(in_order[0].codes(before)) > 1 else 0
        for sample in [*[before] * again, o.sample]:
            count = counts[sample]
            counts[sample] += 1
            for index in in_order:
                codes = index.codes(sample)
                if count >= len(codes):
                    count -= len(codes)
                    continue
                if len(codes) > 1:
                    repeated[o.process, index].append((len(seen), sample))
                rank, offset = divmod(codes[0], index.length)
                seen.append(PlacedOpen(o.process, rank, index.epoch, offset - index.begin))
                break
        last[o.process] = o.sample
    unknown: set[int] = set()
    parents = list(dict.fromkeys(parent_of.values()))
    for (process, index), opened in repeated.items():
        parent = parent_of[process]
        places = _in_one_rank([sample for _, sample in opened], index, parents.index(parent) if parent else -1)
        if not places:
            unknown.update(at for at, _ in opened)
        for (at, _), (rank, offset) in zip(opened, places, strict=False):
            seen[at] = PlacedOpen(process, rank, index.epoch, offset - index.begin)
    return [one for at, one in enumerate(seen) if at not in unknown]


def _in_one_rank(samples: list[int], index: EpochIndex, parent: int) -> list[tuple[int, int]]:
    """The places of samples that an epoch has several times and a process has opened: (rank, index in its stream).

    The process reads for the rank in which most of its opens are one behind the other. Nothing while two ranks have as
    many, unless they have the same samples at the same places: then each parent process is one of the ranks.

    Args:
        parent: the number of its parent process among all, -1 where it is not known.
    """
    best: list[list[tuple[int, int]]] = []
    most = -1
    for rank in range(len(index.ids)):
        places = _places_in_rank(samples, rank, index)
        following = sum(b == a + 1 and of == rank for (_, a), (of, b) in pairwise(places))
        if following >= most:
            best, most = [*(best if following == most else []), places], following
    alike = all([at for _, at in places] == [at for _, at in best[0]] for places in best)
    if len(best) > 1 and not (alike and parent >= 0):
        return []
    return best[parent % len(best)]


def _places_in_rank(samples: list[int], rank: int, index: EpochIndex) -> list[tuple[int, int]]:
    """The places of a process' opens if it reads for this rank: those that make the longest runs.

    A batch may begin with the last repetitions of a sample whose first ones end another worker's batch: so the first
    place that the rank has a sample at need not be the one, and the opens that follow tell.
    """
    offsets = [
        [code - rank * index.length for code in index.codes(sample) if code // index.length == rank]
        for sample in samples
    ]
    places: list[tuple[int, int]] = []
    used: set[int] = set()
    while len(places) < len(samples):
        at, length, start = len(places), 0, -1
        for offset in offsets[at]:
            run = 0
            while at + run < len(samples) and offset + run in offsets[at + run]:
                run += 1
            if offset not in used and run > length:
                length, start = run, offset
        if start < 0:  # only other ranks have it, or it was opened more often than the rank has it
            places.append((rank, offsets[at][-1]) if offsets[at] else divmod(index.codes(samples[at])[0], index.length))
        else:
            places += [(rank, start + step) for step in range(length)]
            used.update(range(start, start + length))
    return places


def learn(
    seen: list[PlacedOpen], stream_length: int, batch_hint: int, single: bool = True, shows_ranks: bool = False
) -> Shape | None:
    """The shape that explains the opens best, None when none explains three in four.

    Args:
        seen: opens in the order of time.
        stream_length: samples of a rank's epoch.
        batch_hint: the batch size that the user gave.
        single: whether workers may take turns sample by sample. torch's workers take whole batches: where they seem to
            take single samples of larger batches, the world size is not what was registered.
        shows_ranks: see `RankStream`.
    """
    if len(seen) < FEWEST:
        return None
    parts: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    whole: dict[tuple[int, int], list[int]] = defaultdict(list)
    for process, rank, epoch, x in seen:
        if x >= 0:
            parts[rank, epoch, process].append(x)
            whole[rank, epoch].append(x)
    if not parts:  # all of them lie before the beginning: the job was resumed, and these are reads of another one
        return None
    if shows_ranks and _steps_over(parts.values()):
        return None
    processes = Counter((rank, epoch) for rank, epoch, _ in parts)
    most = max(processes.values())  # workers of which nobody has seen an open explain nothing
    candidates = [(batch, workers) for batch, workers in _candidates(parts, processes, batch_hint) if workers <= most]
    if not single:
        candidates = [(batch, workers) for batch, workers in candidates if batch > 1 or workers == 1]
    of_processes = _OfProcesses.of(parts.values())
    best: tuple[float, int, int] | None = None
    shape: Shape | None = None
    for batch, workers in candidates:
        share, slack = of_processes.explained(batch, workers, stream_length)
        key = (round(share, 3), -slack, -workers)
        telling = share >= SURE or workers <= CHANCE * stream_length
        if share >= GOOD and telling and (best is None or key > best):
            best, shape = key, Shape(batch, workers, slack)
    if shape is not None and (best or (0.0,))[0] >= SURE:
        return shape
    return _whoever_is_free(parts, whole, stream_length) or shape


def _steps_over(parts: Iterable[list[int]]) -> bool:
    """Whether most steps of processes leave out equally many places: they are of another world size."""
    steps = Counter(after - before for xs in parts for before, after in pairwise(xs))
    step, count = max(steps.items(), key=lambda one: one[1], default=(0, 0))
    return step > 1 and 2 * count > steps.total()


def with_more_slack(shape: Shape, known_slack: int, stream_length: int) -> Shape | None:
    """The shape with twice the slack that it has or that is known; None where so much could not be told from chance."""
    slack = max(LEAST_SLACK, 2 * shape.slack, 2 * known_slack)
    if not shape.workers or slack > CHANCE * stream_length / shape.workers:
        return None
    return shape._replace(slack=slack)


def _candidates(
    parts: dict[tuple[int, int, int], list[int]], processes: Counter[tuple[int, int]], batch_hint: int
) -> list[tuple[int, int]]:
    """Pairs of batch and workers that are worth a trial, the simplest first.

    Args:
        parts: what each process read, by rank, epoch and process. processes: how many there were, by rank and epoch.
    """
    batches: Counter[int] = Counter()
    strides: Counter[int] = Counter()
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (rank, epoch, _), xs in parts.items():
        runs = _runs(sorted(set(xs)))
        starts[rank, epoch] += [start for start, _ in runs]
        batches.update([length for _, length in runs[:-1]])
        strides.update([b - a for (a, _), (b, _) in pairwise(runs)])
    for begins in starts.values():
        begins.sort()
        batches.update([b - a for a, b in pairwise(begins) if b > a])
    if batch_hint > 1:
        batches[batch_hint] += 1
    candidates = [(1, 1)]
    for batch, _ in batches.most_common(4):
        workers = [stride // batch for stride, _ in strides.most_common(3) if stride % batch == 0]
        workers += [count for count, _ in Counter(processes.values()).most_common(2)]
        workers.append(max(processes.values()))
        candidates += [(batch, count) for count in dict.fromkeys(workers) if count > 1]
    return list(dict.fromkeys(candidates))[:MOST_CANDIDATES]


def _runs(xs: list[int]) -> list[tuple[int, int]]:
    """(start, length) of the runs of consecutive numbers. A loop: most lists are too short for numpy to be worth it."""
    runs = []
    start = stop = xs[0]
    for x in xs:
        if x != stop:
            runs.append((start, stop - start))
            start = x
        stop = x + 1
    runs.append((start, stop - start))
    return runs


class _OfProcesses(NamedTuple):
    """Places that processes have read, those of one behind those of another: arrays of one length.

    They are all asked at once, as there are many processes with few reads each.

    Attributes:
        apart: more than any place. Times its process' number it keeps the turns of processes apart.
    """

    xs: Positions
    process: Positions
    processes: int
    apart: int

    @classmethod
    def of(cls, parts: Iterable[list[int]]) -> _OfProcesses:
        """Those of some processes, each of which has read something."""
        of_each = list(parts)
        xs = np.array(list(chain.from_iterable(of_each)), dtype=np.int64)
        process = np.repeat(np.arange(len(of_each)), list(map(len, of_each)))
        return cls(xs, process, len(of_each), int(xs.max()) + 2)

    def explained(self, batch: int, workers: int, stream_length: int) -> tuple[float, int]:
        """The share of opens that a shape explains, and the slack that it needs for that.

        An open is explained when its turn follows on another one of its process, or is the process' first one and
        begins a batch: a run that goes on does so in the middle of an epoch. A process is taken for the worker whose
        turns it opened most.
        """
        turns, process = self.xs, self.process
        if workers > 1:
            batches, within = np.divmod(turns, batch)
            rounds, worker = np.divmod(batches, workers)
            opened = np.bincount(process * workers + worker, minlength=self.processes * workers)
            own = worker == opened.reshape(self.processes, workers).argmax(axis=1)[process]
            turns, process = (rounds * batch + within)[own], process[own]
        told_apart = turns + process * self.apart
        early = told_apart - np.minimum.accumulate(told_apart[::-1])[::-1]
        slack_of = _quantile(early)
        slack = 1 if slack_of == 0 else 2 * (slack_of + 1)
        if slack > max(1.0, CHANCE * stream_length / workers):  # too much disorder to tell from chance
            return self._following(turns, told_apart, process, batch) / len(self.xs), 1
        told_apart.sort()
        return self._following(told_apart % self.apart, told_apart, process, batch) / len(self.xs), slack

    def _following(self, turns: Positions, told_apart: Positions, process: Positions, batch: int) -> int:
        """How many turns come right behind the one before, or are the first of their process where a worker may begin:
        with a batch; where batches are single samples, at the beginning."""
        firsts = turns[np.concatenate((_BEGINS, process[1:] != process[:-1]))]
        begin = firsts % batch == 0 if batch > 1 else firsts == 0
        follows = told_apart[1:] - told_apart[:-1] == 1
        return int(np.count_nonzero(follows)) + int(np.count_nonzero(begin))


_BEGINS = np.array([True])


def _quantile(early: Positions) -> int:
    """As numpy's quantile with the method "higher", which takes ten times as long."""
    return int(np.sort(early)[ceil(MOST_EARLY * (len(early) - 1))])


def _whoever_is_free(
    parts: dict[tuple[int, int, int], list[int]], whole: dict[tuple[int, int], list[int]], stream_length: int
) -> Shape | None:
    """The shape of a loader whose batches (or samples) go to whichever process is free; None when none does.

    It does when most of what is read in a row begins at a multiple of the batch, and no batch comes too early.
    """
    lengths: Counter[int] = Counter()
    runs = [_runs(xs) for xs in parts.values()]
    for of_process in runs:
        lengths.update([length for _, length in of_process[:-1]])
    batch = lengths.most_common(1)[0][0] if lengths else 1
    reach = 0
    for xs in whole.values():
        x = np.array(xs, dtype=np.int64)
        reach = max(reach, _quantile(x - np.minimum.accumulate(x[::-1])[::-1]))
    aligned = [start % batch == 0 for of_process in runs for start, _ in of_process]
    slack = 2 * (reach + 1)
    if batch == 1 and len(parts) > len(whole) and sum(map(len, whole.values())) < FEWEST_OF_SINGLES:
        return None
    if sum(aligned) < GOOD * len(aligned) or slack > CHANCE * batch * stream_length or reach > stream_length // 2:
        return None
    return Shape(batch, 0, slack)
