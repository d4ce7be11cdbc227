"""From the batches that a job's loaders have read lately to figures: where their time goes, who will be late.

Pure. In: the times of batches (mlfs.plan.scheduler.rank_loads says how they come from reads). Out: frozen figures of
each rank and of the job. Called by `mlfs.plan.scheduler.rank_loads`. Source: Lobster (Liu et al., ICPP'22), Sections
4.2, 4.3 and 5.3: T_L is waiting here, T_P preprocessing, and T_train the time of the other steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from mlfs.plan.gpu_queues import TOLERANCE
from mlfs.plan.imbalance import Imbalance, imbalance
from mlfs.plan.model import Floats
from mlfs.plan.threads import PiecewiseLinear

# Batches of a rank that figures are taken from, the last ones: enough for a mean that does not jump, few enough to
# follow a job that changes.
KEPT_BATCHES = 64
# With fewer batches of a rank nothing is said in words: the first ones of a run are slower than the rest.
FEWEST_BATCHES = 8
# The last batches that the next step is predicted from: a rank that becomes slow is named within so many steps.
RECENT_BATCHES = 16
# A loader that is idle for less than this share of its time is the limit of its rank's steps: the times of batches
# scatter by about as much.
IDLE_SHARE = 0.1
# What is no further off than so many standard errors may be chance: one case in some hundreds goes beyond that.
BEYOND_CHANCE = 3.0
# By so many standard deviations what follows batches is longer than handing over alone, lest it be chance. With less,
# times that vary are taken for idling in one case of ten; with more, idling shows an epoch later only.
SURELY_LONGER = 1.75
# The same where handing over was seen once: 1.73 is all that one time can come to, as the shortest of very many.
ONE_SURELY_LONGER = 1.5
# Half of a normal distribution lies within so many standard deviations.
QUARTILES_APART = 1.349
# A rank that is the slowest one in at least this part of an even share of the steps is itself what steps wait for.
FAIR_SHARE = 0.5


class BatchTimes(NamedTuple):
    """One batch of a rank, read by one process.

    Attributes:
        at: linear position of its first sample: the same for all ranks' batches of a step. epoch: of its epoch's first.
        waiting_s, preprocess_s, after_s: see `mlfs.plan.scheduler.rank_loads`; they add up to all of the time from the
            batch's first read to that of the process's next batch. `after_s` is below 0 where the last file took less
            than the others.
    """

    at: int
    epoch: int
    process: int
    size_bytes: int
    waiting_s: float
    preprocess_s: float
    after_s: float


class Limit(StrEnum):
    """What a rank's steps wait for, seen from its loader."""

    UNKNOWN = "not known yet"
    READS = "reads"
    PREPROCESSING = "preprocessing"
    OTHER_RANKS = "other ranks"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What one rank's loader does with its time: means of its last batches.

    Attributes:
        rank: its index among the node's ranks.
        workers: processes that read its batches.
        batches: how many the figures are taken from. batch_bytes: of one.
        waiting_s, preprocess_s, handing_s, idle_s: of one process for one batch.
        step_s: from one batch of the rank to its next, all its processes together.
        next_s: how long loading its next step is predicted to take. doubt_s: how far off chance may make that.
        limit: what its steps wait for.
        knows_idling: whether the beginning of an epoch was seen; else `handing_s` has the idle time in it.
        surely_idles: whether `idle_s` is more than chance may make it.
        reader_trains: whether the process that reads also trains: then `handing_s` is the time of a training step, and
            `idle_s` what it waits for other ranks.
    """

    rank: int
    workers: int
    batches: int
    batch_bytes: float
    waiting_s: float
    preprocess_s: float
    handing_s: float
    idle_s: float
    step_s: float
    next_s: float
    doubt_s: float = 0.0
    limit: Limit = Limit.UNKNOWN
    knows_idling: bool = True
    surely_idles: bool = True
    reader_trains: bool = False

    @property
    def known_handing_s(self) -> float:
        """How long one process hands a batch over, as far as that is known: no idling, no training."""
        return self.handing_s if self.knows_idling and not self.reader_trains else 0.0

    @property
    def work_s(self) -> float:
        """What one process works for a batch, as far as that is known."""
        return self.preprocess_s + self.known_handing_s

    @property
    def own_s(self) -> float:
        """What all its processes together work for a batch."""
        return self.work_s / self.workers

    @property
    def load_s(self) -> float:
        """The same with their waiting: how long loading a batch takes the rank."""
        return self.own_s + self.waiting_s / self.workers

    @property
    def whole_s(self) -> float:
        """All of the time of one process for one batch."""
        return self.waiting_s + self.preprocess_s + self.handing_s + self.idle_s


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The load of a job's ranks on this node.

    Attributes:
        ranks: those of which batches were seen, ascending.
        imbalance: over the last steps of which all of them have read. steps: how many.
        straggler: the index of the rank that is predicted to be late in the next steps, -1 for none.
        pace: by number of processes on the node, the seconds that each of them works for a byte, as far as seen.
    """

    ranks: tuple[RankLoad, ...]
    imbalance: Imbalance
    steps: int
    straggler: int
    pace: Mapping[int, float]


def job_load(
    batches: Mapping[int, Sequence[BatchTimes]],
    handing_s: Mapping[int, Sequence[float]],
    coming_bytes: Mapping[int, int],
    pace: Mapping[int, float],
    reader_trains: bool = False,
) -> JobLoad:
    """The figures of a job.

    Args:
        batches: by index of the rank, the last ones.
        handing_s: by rank, times after batches behind which there was another one at hand; none before the beginning
            of an epoch was seen.
        coming_bytes: by rank, those of its next batch, 0 where they are not known.
        pace: what was seen of the job when it ran before; see `JobLoad`.
        reader_trains: whether the processes that read also train.
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
    return JobLoad(judged, uneven, len(load_s), straggler(judged, compute_s), {**pace, **pace_of(judged)})


def step_compute_s(ranks: Sequence[RankLoad]) -> float:
    """What a rank must not load longer than, lest it counts as late.

    A step computes as long as steps take, or less where all wait for the slowest; what loads only when training pauses
    has the rest of a step for it. What is within the tolerance of that counts as late, or two ranks that both load all
    the time would seem to take turns in being late.
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
    if not size_bytes or any(rank.batches < min(KEPT_BATCHES, max(FEWEST_BATCHES, 2 * rank.workers)) for rank in ranks):
        return {}
    return {sum(rank.workers for rank in ranks): sum(rank.work_s * rank.batches for rank in ranks) / size_bytes}


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
    waiting_s, preprocess_s, after_s, size_bytes = (
        float(np.mean(column))
        for column in zip(*((b.waiting_s, b.preprocess_s, b.after_s, b.size_bytes) for b in batches), strict=True)
    )
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


def surely_idles(batches: Sequence[BatchTimes], handing_s: Sequence[float]) -> bool:
    """Whether what follows batches is longer than handing over alone, more often than chance makes it.

    It is the rank sum test (Mann and Whitney): by how much times vary, and how, does not matter.

    Args:
        handing_s: times after batches behind which there was another one at hand.
    """
    after_s, alone_s = np.array([[batch.after_s] for batch in batches]), np.array(handing_s)
    if not len(alone_s):
        return False
    pairs = len(after_s) * len(alone_s)
    longer = (after_s > alone_s).sum() + 0.5 * (after_s == alone_s).sum()
    deviations = float(longer - pairs / 2) / math.sqrt(pairs * (len(after_s) + len(alone_s) + 1) / 12)
    return deviations >= (SURELY_LONGER if len(alone_s) > 1 else ONE_SURELY_LONGER)


def scatter_s(seconds: Floats) -> float:
    """The standard deviation, by the quartiles: a long pause now and then counts for nothing."""
    low_s, high_s = np.quantile(seconds, [0.25, 0.75]).tolist()
    return float(high_s - low_s) / QUARTILES_APART


def told_apart(ranks: Sequence[RankLoad]) -> list[RankLoad]:
    """Ranks whose readers train: what follows a batch is a training step, and where it takes longer than on another
    rank, waiting for other ranks."""
    training_s = min((rank.handing_s for rank in ranks), default=0.0)
    return [
        replace(
            rank,
            handing_s=training_s,
            idle_s=rank.handing_s - training_s,
            knows_idling=True,
            surely_idles=True,
            reader_trains=True,
        )
        for rank in ranks
    ]  # fmt: skip


def limits_of(ranks: Sequence[RankLoad], load_s: Floats) -> list[Limit]:
    """What the steps of each rank wait for.

    A loader that is idle waits for the training loop. That waits for other ranks where these load for about as long as
    steps take; otherwise training itself takes that long.

    Args:
        load_s: how long each rank loaded in the steps that all of them have read, shape (T, ranks).
    """
    share, loading_rules = np.ones(len(ranks)), False
    if len(ranks) > 1 and len(load_s) >= FEWEST_BATCHES:
        # What one process takes longer for, the rank's others make up for: a rank is as fast as one round of them.
        a_round = min(len(load_s), max(rank.workers for rank in ranks))
        rounds_s = np.lib.stride_tricks.sliding_window_view(load_s, a_round, axis=0).mean(axis=-1)
        share = np.bincount(rounds_s.argmax(axis=1), minlength=len(ranks)) / len(rounds_s)
        usual_s = float(np.median([rank.step_s for rank in ranks]))
        loading_rules = float(rounds_s.max(axis=1).mean()) >= (1 - IDLE_SHARE) * usual_s
    return [
        limit_of(rank, loading_rules or rank.reader_trains, bool(of_steps >= FAIR_SHARE / len(ranks)))
        for rank, of_steps in zip(ranks, share, strict=True)
    ]


def limit_of(rank: RankLoad, others_load: bool, is_slowest: bool) -> Limit:
    """What the steps of one rank wait for.

    Args:
        others_load: whether it is other ranks that it waits for while it is idle.
        is_slowest: whether it is the slowest one in a fair share of the steps.
    """
    if rank.batches < FEWEST_BATCHES or not rank.whole_s or not rank.knows_idling:
        return Limit.UNKNOWN
    idles = rank.surely_idles and rank.idle_s >= IDLE_SHARE * rank.whole_s
    if idles and not (others_load and is_slowest):
        return Limit.OTHER_RANKS if others_load else Limit.TRAINING
    if rank.reader_trains and rank.waiting_s + rank.preprocess_s < IDLE_SHARE * rank.whole_s:
        return Limit.TRAINING
    return Limit.READS if rank.waiting_s > rank.work_s else Limit.PREPROCESSING


def next_s(batches: Sequence[BatchTimes], coming_bytes: int) -> tuple[float, float]:
    """How long a rank's next batch will wait and be preprocessed by one process, and how far off chance may make that.

    It takes as long as the last ones did, or less or more as its bytes say.
    """
    recent = list(batches)[-RECENT_BATCHES:]
    waiting_s = float(np.mean([batch.waiting_s for batch in recent]))
    preprocess_s = float(np.mean([batch.preprocess_s for batch in recent]))
    model = seconds_by_bytes(batches) if coming_bytes else None
    usual_s = [preprocess_s if model is None else model.at(batch.size_bytes) for batch in batches]
    off_s = np.array([batch.waiting_s + batch.preprocess_s for batch in batches]) - usual_s
    doubt_s = BEYOND_CHANCE * scatter_s(off_s) / math.sqrt(len(recent))
    usual_lately_s = float(np.mean(usual_s[-len(recent) :]))
    if model is not None and usual_lately_s:
        preprocess_s *= model.at(coming_bytes) / usual_lately_s
    return waiting_s + preprocess_s, doubt_s


def seconds_by_bytes(batches: Sequence[BatchTimes]) -> PiecewiseLinear | None:
    """Preprocessing time of a batch by its bytes, as the best two lines; None where too few sizes were seen.

    Section 4.1 has a model for each size of sample. Batches of one job differ little in size, so one model goes on.
    """
    sizes = [batch.size_bytes for batch in batches]
    if len(set(sizes)) < FEWEST_BATCHES:
        return None
    return PiecewiseLinear.fit(sizes, [batch.preprocess_s for batch in batches])


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
