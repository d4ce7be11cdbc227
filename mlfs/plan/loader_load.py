"""From the batches that a job's loaders have read lately to figures: where their time goes, who will be late.

Pure. In: the times of batches (mlfs.plan.scheduler.rank_loads says how they come from reads). Out: frozen figures of
each rank and of the job. Called by `mlfs.plan.scheduler.rank_loads`. Source: Lobster (Liu et al., ICPP'22), Sections
4.2, 4.3 and 5.3: T_L is waiting here, T_P preprocessing, and T_train the time of the other steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
# A loader that is idle for less than this share of its time is the limit of its rank's steps: the times of batches
# scatter by about as much.
IDLE_SHARE = 0.1


class BatchTimes(NamedTuple):
    """One batch of a rank, read by one process.

    Attributes:
        at: linear position of its first sample: the same for all ranks' batches of a step. epoch: of its epoch's first.
        waiting_s, preprocess_s, after_s: see `mlfs.plan.scheduler.rank_loads`; they add up to all of the time.
    """

    at: int
    epoch: int
    process: int
    size_bytes: int
    waiting_s: float
    preprocess_s: float
    after_s: float

    @property
    def whole_s(self) -> float:
        """From the batch's first read to that of the process's next batch."""
        return self.waiting_s + self.preprocess_s + self.after_s


class Limit(StrEnum):
    """What a rank's steps wait for, seen from its loader."""

    UNKNOWN = "not known yet"
    READS = "reads"
    PREPROCESSING = "preprocessing"
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
        next_s: how long loading its next step is predicted to take.
        knows_idling: whether the beginning of an epoch was seen; else `handing_s` has the idle time in it.
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
    knows_idling: bool = True

    @property
    def work_s(self) -> float:
        """What one process works for a batch: its time without waiting and idling."""
        return self.preprocess_s + self.handing_s

    @property
    def own_s(self) -> float:
        """What all its processes together work for a batch, as far as their idling is known."""
        return (self.preprocess_s + (self.handing_s if self.knows_idling else 0.0)) / self.workers

    @property
    def load_s(self) -> float:
        """The same with their waiting: how long loading a batch takes the rank."""
        return self.own_s + self.waiting_s / self.workers

    @property
    def limit(self) -> Limit:
        """What its steps wait for."""
        whole_s = self.waiting_s + self.work_s + self.idle_s
        if self.batches < FEWEST_BATCHES or not whole_s or not self.knows_idling:
            return Limit.UNKNOWN
        if self.idle_s >= IDLE_SHARE * whole_s:
            return Limit.TRAINING
        return Limit.READS if self.waiting_s > self.work_s else Limit.PREPROCESSING


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The load of a job's ranks on this node.

    Attributes:
        ranks: those of which batches were seen, ascending.
        imbalance: over the last steps of which all of them have read. steps: how many.
        straggler: the index of the rank that is predicted to be late in the next steps, -1 for none.
        pace: by number of processes on the node, the seconds that each of them preprocesses a byte, as far as seen.
    """

    ranks: tuple[RankLoad, ...]
    imbalance: Imbalance
    steps: int
    straggler: int
    pace: Mapping[int, float]


def job_load(
    batches: Mapping[int, Sequence[BatchTimes]],
    handing_s: Mapping[int, float],
    coming_bytes: Mapping[int, int],
    pace: Mapping[int, float],
) -> JobLoad:
    """The figures of a job.

    Args:
        batches: by index of the rank, the last ones. handing_s: by rank, the least time after a batch; ranks of
            which no beginning of an epoch was seen are missing.
        coming_bytes: by rank, those of its next batch, 0 where they are not known.
        pace: what was seen of the job when it ran before; see `JobLoad`.
    """
    workers = {rank: workers_of(of) for rank, of in batches.items()}
    ranks = tuple(
        rank_load(rank, batches[rank], workers[rank], handing_s.get(rank), coming_bytes[rank])
        for rank in sorted(batches)
    )
    load_s = _of_common_steps(batches, ranks)
    compute_s = step_compute_s(ranks)
    uneven = imbalance(load_s, compute_s)
    return JobLoad(ranks, uneven, len(load_s), straggler(ranks, compute_s), {**pace, **pace_of(batches)})


def step_compute_s(ranks: Sequence[RankLoad]) -> float:
    """What a rank must not load longer than, lest it counts as late.

    A step computes as long as steps take, or less where all wait for the slowest. What is within the tolerance of that
    counts as late, or two ranks that both load all the time would seem to take turns in being late.
    """
    return (1 - TOLERANCE) * float(np.median([rank.step_s for rank in ranks])) if ranks else 0.0


def pace_of(batches: Mapping[int, Sequence[BatchTimes]]) -> dict[int, float]:
    """The number of processes that read these batches, and the seconds that each preprocesses a byte."""
    every = [batch for of in batches.values() for batch in of]
    size_bytes = sum(batch.size_bytes for batch in every)
    if not size_bytes:
        return {}
    return {sum(map(workers_of, batches.values())): sum(batch.preprocess_s for batch in every) / size_bytes}


def workers_of(batches: Sequence[BatchTimes]) -> int:
    """How many processes read a rank's batches: the most of an epoch, as an epoch's first batches are few."""
    processes: dict[int, set[int]] = {}
    for batch in batches:
        processes.setdefault(batch.epoch, set()).add(batch.process)
    return max(map(len, processes.values()))


def rank_load(
    rank: int, batches: Sequence[BatchTimes], workers: int, handing_s: float | None, coming_bytes: int = 0
) -> RankLoad:
    """The figures of one rank. Args: as of `job_load`, and the rank's number of processes."""
    waiting, preprocess, after, size = (
        float(np.mean(column))
        for column in zip(*((b.waiting_s, b.preprocess_s, b.after_s, b.size_bytes) for b in batches), strict=True)
    )
    idle_s = max(0.0, after - (after if handing_s is None else handing_s))
    model = seconds_by_bytes(batches) if coming_bytes else None
    next_s = waiting + after - idle_s + (preprocess if model is None else model.at(coming_bytes))
    return RankLoad(
        rank,
        workers,
        len(batches),
        size,
        waiting,
        preprocess,
        after - idle_s,
        idle_s,
        (waiting + preprocess + after) / workers,
        next_s / workers,
        knows_idling=handing_s is not None,
    )


def seconds_by_bytes(batches: Sequence[BatchTimes]) -> PiecewiseLinear | None:
    """Preprocessing time of a batch by its bytes, as the best two lines; None where too few sizes were seen.

    Section 4.1 has a model for each size of sample. Batches of one job differ little in size, so one model goes on.
    """
    sizes = [batch.size_bytes for batch in batches]
    if len(set(sizes)) < FEWEST_BATCHES:
        return None
    return PiecewiseLinear.fit(sizes, [batch.preprocess_s for batch in batches])


def straggler(ranks: Sequence[RankLoad], compute_s: float) -> int:
    """The rank whose next step is predicted to take longest to load, if that is late and others are not; else -1."""
    late = [rank.next_s > compute_s for rank in ranks]
    if not any(late) or all(late):
        return -1
    return max(ranks, key=lambda rank: rank.next_s).rank


def _of_common_steps(batches: Mapping[int, Sequence[BatchTimes]], ranks: Sequence[RankLoad]) -> Floats:
    """How long each rank loaded, its processes side by side, in the steps of which all ranks have read: (T, ranks)."""
    by_rank = [
        {
            batch.at: (batch.waiting_s + batch.preprocess_s + (rank.handing_s if rank.knows_idling else 0.0))
            / rank.workers
            for batch in batches[rank.rank]
        }
        for rank in ranks
    ]
    common = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
    return np.array([[of[at] for of in by_rank] for at in common], dtype=np.float64).reshape(len(common), len(by_rank))
