"""How a loader shares a stream among its processes, learned from what each of them opened.

Pure. In: opens with the positions they were matched to. Out: a `Shape`, or None when nothing explains them. Called by
`mlfs.follow.matching` when opens don't fit.

What is used: each process's part of an epoch, sorted, falls into runs of a batch's length, a whole round of all workers
apart; the processes of a rank begin a batch apart. Candidates from that are tried, the one that explains most wins.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.score import Open
from mlfs.follow.shape import Shape

Positions = npt.NDArray[np.int64]

FEWEST = 4
MOST_CANDIDATES = 12
GOOD = 0.75
SURE = 0.95
CHANCE = 0.25


class Seen(NamedTuple):
    """An open: who, which rank and epoch, and how far behind the epoch's beginning."""

    process: int
    rank_index: int
    epoch: int
    x: int


def seen_where_matched(opens: Iterable[Open], epochs: Mapping[int, EpochIndex]) -> list[Seen]:
    """Opens at the positions that they were matched to; those that were matched to none are left out."""
    seen = []
    for o in opens:
        if o.position >= 0:
            index = epochs.get(o.cell.epoch)
            begin = index.base + index.begin if index else 0
            seen.append(Seen(o.process, o.rank_index, o.cell.epoch, o.position - begin))
    return seen


def seen_by_count(opens: Iterable[Open], epochs: Mapping[int, EpochIndex]) -> list[Seen]:
    """All opens that ever were, wherever they were matched: an entry is read once an epoch, so its count is its epoch.

    This finds the shape where matching by a wrong one has led astray.
    """
    in_order = [epochs[epoch] for epoch in sorted(epochs)]
    counts: Counter[int] = Counter()
    seen = []
    for o in opens:
        index = in_order[counts[o.entry]] if counts[o.entry] < len(in_order) else None
        counts[o.entry] += 1
        codes = index.codes(o.entry) if index else []
        if index and codes:
            rank, offset = divmod(codes[0], index.length)
            seen.append(Seen(o.process, rank, index.epoch, offset - index.begin))
    return seen


def learn(seen: list[Seen], stream_length: int, batch_hint: int, single: bool = True) -> Shape | None:
    """The shape that explains the opens best, None when none explains three in four.

    Args:
        seen: opens in the order of time.
        stream_length: samples of a rank's epoch.
        batch_hint: the batch size that the user gave.
        single: whether workers may take turns sample by sample. torch's don't, unless its batches are of one sample:
            there it would be a sign of another world size.
    """
    if len(seen) < FEWEST:
        return None
    parts: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    whole: dict[tuple[int, int], list[int]] = defaultdict(list)
    for process, rank, epoch, x in seen:
        if x >= 0:
            parts[rank, epoch, process].append(x)
            whole[rank, epoch].append(x)
    if not parts:  # all of them lie before the epoch's beginning: a job that resumes, and reads of another
        return None
    processes = Counter((rank, epoch) for rank, epoch, _ in parts)
    most = max(processes.values(), default=1)  # workers that nobody saw explain nothing
    candidates = [(batch, workers) for batch, workers in _candidates(parts, processes, batch_hint) if workers <= most]
    if not single:
        candidates = [(batch, workers) for batch, workers in candidates if batch > 1 or workers == 1]
    ways = [np.array(xs, dtype=np.int64) for xs in parts.values()]
    best: tuple[float, int, int] | None = None
    shape: Shape | None = None
    for batch, workers in candidates:
        share, slack = _try(ways, batch, workers, stream_length)
        key = (round(share, 3), -slack, -workers)
        telling = share >= SURE or workers <= CHANCE * stream_length
        if share >= GOOD and telling and (best is None or key > best):
            best, shape = key, Shape(batch, workers, slack)
    if shape is not None and (best or (0.0,))[0] >= SURE:
        return shape
    return _loose(parts, whole, stream_length) or shape


def _candidates(
    parts: dict[tuple[int, int, int], list[int]], processes: Counter[tuple[int, int]], batch_hint: int
) -> list[tuple[int, int]]:
    """Pairs of batch and workers that are worth a trial, the simplest first."""
    batches: Counter[int] = Counter()
    strides: Counter[int] = Counter()
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (rank, epoch, _), xs in parts.items():
        runs = _runs(np.unique(np.array(xs, dtype=np.int64)))
        starts[rank, epoch] += [start for start, _ in runs]
        batches.update(length for _, length in runs[:-1])
        strides.update(b - a for (a, _), (b, _) in pairwise(runs))
    for begins in starts.values():
        begins.sort()
        batches.update(b - a for a, b in pairwise(begins) if b > a)
    if batch_hint > 1:
        batches[batch_hint] += 1
    candidates = [(1, 1)]
    for batch, _ in batches.most_common(4):
        workers = [stride // batch for stride, _ in strides.most_common(3) if stride % batch == 0]
        workers += [count for count, _ in Counter(processes.values()).most_common(2)]
        workers.append(max(processes.values()))
        candidates += [(batch, count) for count in dict.fromkeys(workers) if count > 1]
    return list(dict.fromkeys(candidates))[:MOST_CANDIDATES]


def _runs(xs: Positions) -> list[tuple[int, int]]:
    """(start, length) of the runs of consecutive numbers."""
    breaks = np.flatnonzero(np.diff(xs) != 1) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.append(starts, len(xs)))
    return list(zip(xs[starts].tolist(), lengths.tolist(), strict=True))


def _try(ways: list[Positions], batch: int, workers: int, stream_length: int) -> tuple[float, int]:
    """The share of opens that a shape explains, and the slack it needs.

    Explained is what follows on its process's turn before, or begins a lane.
    """
    fits, total, in_order = 0, 0, 0
    turns_early = []
    for xs in ways:
        batches, within = np.divmod(xs, batch)
        rounds, worker = np.divmod(batches, workers)
        turns = (rounds * batch + within)[worker == np.bincount(worker).argmax()]
        turns_early.append(turns - np.minimum.accumulate(turns[::-1])[::-1])
        ordered = np.sort(turns)
        total += len(xs)
        fits += int(ordered[0] == 0) + int(np.count_nonzero(np.diff(ordered) == 1))
        in_order += int(turns[0] == 0) + int(np.count_nonzero(np.diff(turns) == 1))
    most = int(np.quantile(np.concatenate(turns_early), 0.98, method="higher"))
    slack = 1 if most == 0 else 2 * (most + 1)
    if slack > max(1.0, CHANCE * stream_length / workers):  # too much disorder to tell from chance
        return in_order / total, 1
    return fits / total, slack


def _loose(
    parts: dict[tuple[int, int, int], list[int]], whole: dict[tuple[int, int], list[int]], stream_length: int
) -> Shape | None:
    """Batches (or samples) that go to whichever process is free; None when that is no explanation."""
    lengths: Counter[int] = Counter()
    for xs in parts.values():
        lengths.update(length for _, length in _runs_in_time(xs)[:-1])
    batch = lengths.most_common(1)[0][0] if lengths else 1
    reach = 0
    for xs in whole.values():
        x = np.array(xs, dtype=np.int64)
        early = x - np.minimum.accumulate(x[::-1])[::-1]
        reach = max(reach, int(np.quantile(early, 0.98, method="higher")))
    aligned = [start % batch == 0 for xs in parts.values() for start, _ in _runs_in_time(xs)]
    slack = 2 * (reach + 1)
    if sum(aligned) < GOOD * len(aligned) or slack > CHANCE * batch * stream_length or reach > stream_length // 2:
        return None
    return Shape(batch, 0, slack)


def _runs_in_time(xs: list[int]) -> list[tuple[int, int]]:
    """(start, length) of what was read one after the other, in the order of time."""
    return _runs(np.array(xs, dtype=np.int64))
