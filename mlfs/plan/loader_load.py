"""Turns the batches that a job's loaders read lately into figures: where their time goes, which rank will be late.

Pure. In: the times of batches (mlfs.plan.scheduler.rank_loads says how they come from reads). Out: frozen figures of
each rank and of the job. Called by `mlfs.plan.scheduler.rank_loads`. Source: Lobster (Liu et al., ICPP'22), Sections
4.2, 4.3 and 5.3: T_L is waiting here, T_P preprocessing, and T_train the time of the other steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlfs.plan.model import Floats
from mlfs.plan.rank_load import (
    FEWEST_BATCHES,
    BatchTimes,
    Imbalance,
    RankLoad,
    imbalance,
    limits_of,
    surely_idles,
    told_apart,
)
from mlfs.plan.threads import TOLERANCE, PiecewiseLinear

# Batches of a rank that figures are taken from, the last ones: enough for a mean that does not jump, few enough to
# follow a job that changes. A rank with many workers has so many batches of each, up to the most of all.
KEPT_BATCHES = 64
KEPT_OF_A_WORKER = 2
MOST_KEPT_BATCHES = 2048
# The last batches that the next step is predicted from: a rank that becomes slow is named within so many steps.
RECENT_BATCHES = 16
# A mean that differs by no more than so many standard errors may differ by chance. By chance alone one mean in some
# hundreds differs by more.
BEYOND_CHANCE = 3.0
# Half of a normal distribution lies within so many standard deviations.
QUARTILES_APART = 1.349
# Preprocessing time by bytes is one line. It is two lines if each has at least so many batches, and if they leave at
# most so large a share of one line's squares: of times that have nothing to do with bytes they leave nine tenths.
BATCHES_OF_A_LINE = 16
CLEARLY_LESS = 2 / 3
# An evaluation or a checkpoint in the midst of an epoch has each process wait once for long. A gap is a pause if the
# time lies beyond the upper quartile of the others by so many standard deviations, and if it happens to a process once,
# or in one batch of so many. A longer step that comes more often belongs to the usual ones.
PAUSE_BEYOND = 6.0
PAUSE_ONCE_IN = 16
# A job that has read nothing for so long, and for so many of its steps, has ended, or does something else than train.
QUIET_S = 60.0
QUIET_STEPS = 10


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The load of a job's ranks on this node.

    Attributes:
        ranks: those of which batches were seen, ascending.
        imbalance: over the last steps of which all of them have read; it says something where `compares`. steps: how
            many.
        straggler: the index of the rank that is predicted to be late in the next steps, -1 for none.
        reads_now: whether the job goes on reading: a script that was killed never says that it has ended.
        pace: by number of processes on the node, the seconds that each of them works for a byte, as far as seen.
    """

    ranks: tuple[RankLoad, ...]
    imbalance: Imbalance
    steps: int
    straggler: int
    pace: Mapping[int, float]
    reads_now: bool = True

    @property
    def compares(self) -> bool:
        """Whether there are two ranks at least, and steps of which all of them have read."""
        return len(self.ranks) > 1 and self.steps > 0


def job_load(
    batches: Mapping[int, Sequence[BatchTimes]],
    handing_s: Mapping[int, Sequence[float]],
    coming_bytes: Mapping[int, int],
    pace: Mapping[int, float],
    reader_trains: bool = False,
    quiet_s: float = 0.0,
) -> JobLoad:
    """The figures of a job.

    Args:
        batches: by index of the rank, the last ones.
        handing_s: by rank, times after batches behind which there was another one at hand; none before the beginning
            of an epoch was seen.
        coming_bytes: by rank, those of its next batch, 0 where they are not known.
        pace: what was seen of the job when it ran before; see `JobLoad`.
        reader_trains: whether the processes that read also train.
        quiet_s: how long ago the job's last read was.
    """
    ranks = [
        rank_load(rank, batches[rank], () if reader_trains else handing_s.get(rank, ()), coming_bytes[rank])
        for rank in sorted(batches)
    ]
    if reader_trains:
        ranks = told_apart(ranks)
    load_s = _of_common_steps(batches, ranks)
    limits = limits_of(ranks, load_s)
    judged = tuple(replace(rank, limit=limit) for rank, limit in zip(ranks, limits, strict=True))
    compute_s = step_compute_s(judged)
    uneven = imbalance(load_s, compute_s)
    reads_now = quiet_s < max(QUIET_S, QUIET_STEPS * max((rank.step_s for rank in judged), default=0.0))
    late = straggler(judged, compute_s) if reads_now else -1
    return JobLoad(judged, uneven, len(load_s), late, {**pace, **pace_of(judged)}, reads_now)


def step_compute_s(ranks: Sequence[RankLoad]) -> float:
    """How long a rank may load for a step; a rank that loads for longer is late.

    Nobody sees how long a step computes, so the time from step to step stands for it: computing takes that long at
    most. A training process that loads by itself has that time without the training. The tolerance of Algorithm 1 is
    taken off, because two ranks that both load all the time would else seem to be late by turns.
    """
    if not ranks:
        return 0.0
    training_s = min(rank.handing_s if rank.reader_trains else 0.0 for rank in ranks)
    return (1 - TOLERANCE) * (float(np.median([rank.step_s for rank in ranks])) - training_s)


def pace_of(ranks: Sequence[RankLoad]) -> dict[int, float]:
    """The number of processes that read for these ranks, and the seconds that each of them works for a byte.

    It is empty while a rank has read so few batches that not all of its processes need have been seen.
    """
    size_bytes = sum(rank.batch_bytes * rank.batches for rank in ranks)
    if not size_bytes or any(rank.batches < enough_batches(rank.workers) for rank in ranks):
        return {}
    return {sum(rank.workers for rank in ranks): sum(rank.work_s * rank.batches for rank in ranks) / size_bytes}


def enough_batches(workers: int) -> int:
    """With fewer batches of a rank not all of its processes need have been seen."""
    return max(FEWEST_BATCHES, min(MOST_KEPT_BATCHES, KEPT_OF_A_WORKER * workers))


def workers_of(batches: Sequence[BatchTimes]) -> int:
    """How many processes read a rank's batches: the most of an epoch, as an epoch's first batches are few."""
    processes: dict[int, set[int]] = {}
    for batch in batches:
        processes.setdefault(batch.epoch, set()).add(batch.process)
    return max(map(len, processes.values()))


def rank_load(
    rank: int, batches: Sequence[BatchTimes], handing_s: Sequence[float], coming_bytes: int = 0
) -> RankLoad:  # fmt: skip
    """The figures of one rank, without its limit. Args: as of `job_load`, of this rank."""
    waiting_s, preprocess_s, size_bytes = (
        float(np.mean(column))
        for column in zip(*((b.waiting_s, b.preprocess_s, b.size_bytes) for b in batches), strict=True)
    )
    after_s = float(without_pauses(batches).mean())
    workers = workers_of(batches)
    idle_s = max(0.0, after_s - float(np.mean(handing_s))) if handing_s else 0.0
    known = RankLoad(
        rank,
        workers,
        len(batches),
        size_bytes,
        waiting_s,
        preprocess_s,
        max(0.0, after_s - idle_s),
        idle_s,
        (waiting_s + preprocess_s + after_s) / workers,
        0.0,
        knows_idling=bool(handing_s),
        surely_idles=surely_idles(batches, handing_s),
    )
    recent_s, doubt_s = next_s(batches, coming_bytes)
    return replace(known, next_s=(recent_s + known.known_handing_s) / workers, doubt_s=doubt_s / workers)


def without_pauses(batches: Sequence[BatchTimes]) -> Floats:
    """The times behind each batch; a pause counts as the longest time that is no pause may be."""
    _, process, counts = np.unique([batch.process for batch in batches], return_inverse=True, return_counts=True)
    at_most = np.maximum(1, counts // PAUSE_ONCE_IN)  # pauses of each process
    after_s = np.array([batch.after_s for batch in batches])
    order = np.lexsort((-after_s, process))
    place = np.empty(len(order), dtype=np.int64)  # of each time among those of its process, the longest first
    place[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[process[order]]
    others_s = after_s[place >= at_most[process]]
    if len(others_s) < FEWEST_BATCHES:
        return after_s
    longest_s = float(np.quantile(others_s, 0.75)) + PAUSE_BEYOND * scatter_s(others_s)
    seldom = np.bincount(process, after_s > longest_s, len(counts)) <= at_most
    return np.where(seldom[process], np.minimum(after_s, longest_s), after_s)


def scatter_s(seconds: Floats) -> float:
    """The standard deviation, by the quartiles: a long pause now and then counts for nothing."""
    low_s, high_s = np.quantile(seconds, [0.25, 0.75]).tolist()
    return float(high_s - low_s) / QUARTILES_APART


def next_s(batches: Sequence[BatchTimes], coming_bytes: int) -> tuple[float, float]:
    """How long a rank's next batch will wait and be preprocessed by one process, and how far off chance may make that.

    It takes as long as the last ones did, or less or more as its bytes say. Nobody knows what it takes with more bytes
    than any batch that was seen, or with fewer: then it counts as the largest one, or the smallest.

    Args:
        coming_bytes: of the batch, 0 where they are not known.
    """
    recent = list(batches)[-RECENT_BATCHES:]
    waiting_s = float(np.mean([batch.waiting_s for batch in recent]))
    preprocess_s = float(np.mean([batch.preprocess_s for batch in recent]))
    model = seconds_by_bytes(batches) if coming_bytes else None
    usual_s = [preprocess_s if model is None else model.at(batch.size_bytes) for batch in batches]
    off_s = np.array([batch.waiting_s + batch.preprocess_s for batch in batches]) - usual_s
    # The mean of the last batches is off by chance, and so is the slope of a line.
    variances = 1 / len(recent)
    usual_lately_s = float(np.mean(usual_s[-len(recent) :]))
    if model is not None and usual_lately_s:
        sizes = np.array([batch.size_bytes for batch in batches], dtype=np.float64)
        size_bytes = min(max(coming_bytes, sizes.min()), sizes.max())
        variances += (size_bytes - sizes[-len(recent) :].mean()) ** 2 / ((sizes - sizes.mean()) ** 2).sum()
        preprocess_s *= model.at(size_bytes) / usual_lately_s
    return waiting_s + preprocess_s, BEYOND_CHANCE * scatter_s(off_s) * math.sqrt(variances)


def seconds_by_bytes(batches: Sequence[BatchTimes]) -> PiecewiseLinear | None:
    """Preprocessing time of a batch by its bytes, as one line or two; None where too few sizes were seen.

    Section 4.1 has a model for each size of sample. Batches of one job differ little in size, so one model goes on.
    """
    sizes = [batch.size_bytes for batch in batches]
    if len(set(sizes)) < FEWEST_BATCHES:
        return None
    times_s = [batch.preprocess_s for batch in batches]
    return PiecewiseLinear.fit_cautiously(sizes, times_s, BATCHES_OF_A_LINE, CLEARLY_LESS)


def straggler(ranks: Sequence[RankLoad], compute_s: float) -> int:
    """The rank whose next step is predicted to take longest to load, if that is late and another one is surely not."""
    seen = all(rank.batches >= FEWEST_BATCHES for rank in ranks)
    late = any(rank.next_s > compute_s for rank in ranks)
    if not seen or not late or not any(rank.next_s + rank.doubt_s <= compute_s for rank in ranks):
        return -1
    return max(ranks, key=lambda rank: rank.next_s).rank


def _of_common_steps(batches: Mapping[int, Sequence[BatchTimes]], ranks: Sequence[RankLoad]) -> Floats:
    """How long each rank loaded, its processes side by side, in the steps of which all ranks have read: (T, ranks)."""
    by_rank = [
        {
            batch.at: (batch.waiting_s + batch.preprocess_s + rank.known_handing_s) / rank.workers
            for batch in batches[rank.rank]
        }
        for rank in ranks
    ]
    common = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
    return np.array([[of[at] for of in by_rank] for at in common], dtype=np.float64).reshape(len(common), len(by_rank))
