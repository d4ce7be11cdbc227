"""One rank's loader and its time, in figures: of one batch, and as means of its last batches.

Pure. In: numbers. Out: frozen records. Made by `mlfs.plan.scheduler.rank_loads` and `mlfs.plan.loader_load`, used by
the advice on workers (`mlfs.plan.loader_workers`) and by whoever shows them. Source: Lobster (Liu et al., ICPP'22),
Sections 4.2 and 4.3: T_L is waiting here, T_P preprocessing, and T_train the time of the other steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from mlfs.plan.model import Floats

# With fewer batches of a rank nothing is said in words: the first ones of a run are slower than the rest.
FEWEST_BATCHES = 8


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


# Loaders that take less for a batch are those of a script that only reads: there is nothing to win for training.
NOTABLE_WORK_S = 0.01


class StepLimit(StrEnum):
    """The thing that a rank's steps wait for, seen from its loader."""

    UNKNOWN = "not known yet"
    READS = "reads"
    PREPROCESSING = "preprocessing"
    OTHER_RANKS = "other ranks"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One rank's loader and its time: means of its last batches, without pauses.

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

    rank: int = field(metadata={"key": None})
    workers: int
    batches: int
    batch_bytes: float = field(metadata={"digits": 0})
    waiting_s: float
    preprocess_s: float
    handing_s: float
    idle_s: float
    step_s: float
    next_s: float
    doubt_s: float = field(default=0.0, metadata={"key": None})
    limit: StepLimit = StepLimit.UNKNOWN
    knows_idling: bool = field(default=True, metadata={"key": None})
    surely_idles: bool = field(default=True, metadata={"key": None})
    reader_trains: bool = False

    @property
    def known_handing_s(self) -> float:
        """How long one process hands a batch over, as far as that is known: no idling, no training."""
        return self.handing_s if self.knows_idling and not self.reader_trains else 0.0

    @property
    def work_s(self) -> float:
        """The time that one process works for a batch, as far as that is known."""
        return self.preprocess_s + self.known_handing_s

    @property
    def own_s(self) -> float:
        """The time that all its processes together work for a batch."""
        return self.work_s / self.workers

    @property
    def load_s(self) -> float:
        """The time that loading a batch takes the rank, waiting included."""
        return self.own_s + self.waiting_s / self.workers

    @property
    def whole_s(self) -> float:
        """The whole time that one process spends for a batch."""
        return self.waiting_s + self.preprocess_s + self.handing_s + self.idle_s


# -- what limits a rank's loader
#
# In: figures of each rank. Out: a limit for each.
#
# A loader that is never idle is what its rank waits for: either reads or preprocessing, whichever takes longer. A
# loader that idles waits for the training loop, which trains, or waits for other ranks.

# A loader that is idle for less than this share of its time is the limit of its rank's steps: the times of batches
# scatter by about as much.
IDLE_SHARE = 0.1
# A loader surely idles if the rank sum of the times that follow its batches lies so many standard deviations above what
# handing over alone makes likely. A smaller number takes times that vary for idling in one case of ten; a larger one
# shows idling an epoch later only.
SURELY_LONGER = 1.75
# The same number where handing over was seen once. One time can lie 1.73 standard deviations off at most: that is where
# it is the shortest of very many.
ONE_SURELY_LONGER = 1.5
# A rank that is the slowest one in at least this part of an even share of the steps is itself what steps wait for.
FAIR_SHARE = 0.5


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


def limits_of(ranks: Sequence[RankLoad], load_s: Floats) -> list[StepLimit]:
    """The limit of each rank's steps.

    A loader that is idle waits until the training loop takes a batch. The training loop waits for other ranks if the
    slowest rank of each step loads for about as long as a step takes. If not, it is training that takes so long.

    Args:
        load_s: how long each rank loaded in the steps that all of them have read, shape (T, ranks).
    """
    share, loading_rules = np.ones(len(ranks)), False
    if len(ranks) > 1 and len(load_s) >= FEWEST_BATCHES:
        # While one process of a rank takes longer for a batch, its other processes go on. So it is the mean time of a
        # round, which is a batch of each process, that says how fast the rank is.
        a_round = min(len(load_s), max(rank.workers for rank in ranks))
        rounds_s = np.lib.stride_tricks.sliding_window_view(load_s, a_round, axis=0).mean(axis=-1)
        share = np.bincount(rounds_s.argmax(axis=1), minlength=len(ranks)) / len(rounds_s)
        usual_s = float(np.median([rank.step_s for rank in ranks]))
        loading_rules = float(rounds_s.max(axis=1).mean()) >= (1 - IDLE_SHARE) * usual_s
    return [
        limit_of(rank, loading_rules or rank.reader_trains, bool(of_steps >= FAIR_SHARE / len(ranks)))
        for rank, of_steps in zip(ranks, share, strict=True)
    ]


def limit_of(rank: RankLoad, others_load: bool, is_slowest: bool) -> StepLimit:
    """The limit of one rank's steps.

    Args:
        others_load: whether it is other ranks that it waits for while it is idle.
        is_slowest: whether it is the slowest one in a fair share of the steps.
    """
    if rank.batches < FEWEST_BATCHES or not rank.whole_s or not rank.knows_idling:
        return StepLimit.UNKNOWN
    idles = rank.surely_idles and rank.idle_s >= IDLE_SHARE * rank.whole_s
    if idles and not (others_load and is_slowest):
        return StepLimit.OTHER_RANKS if others_load else StepLimit.TRAINING
    if rank.reader_trains and rank.waiting_s + rank.preprocess_s < IDLE_SHARE * rank.whole_s:
        return StepLimit.TRAINING
    return StepLimit.READS if rank.waiting_s > rank.work_s else StepLimit.PREPROCESSING


# -- how unevenly GPUs load (Liu et al., ICPP'22, Section 5.3)
#
# In: how long each GPU's batch takes to load in each step, and how long a step computes. Out: two shares.


class Imbalance(NamedTuple):
    """How unevenly GPUs load.

    Attributes:
        apart: the mean over steps of (slowest - fastest) / slowest loading time.
        steps: the share of steps in which loading takes longer than computing on some GPUs and not on others.
    """

    apart: float = 0.0
    steps: float = 0.0


def imbalance(load_s: Floats, compute_s: Floats | float) -> Imbalance:
    """How unevenly GPUs load; nothing but zeros where there is no step.

    Args:
        load_s: shape (T, GPUs). compute_s: the same, or one number for all.
    """
    if not load_s.size:
        return Imbalance()
    slowest, fastest = load_s.max(axis=1), load_s.min(axis=1)
    late = load_s > compute_s
    apart = (slowest - fastest) / np.maximum(slowest, 1e-300)
    return Imbalance(float(apart.mean()), float((late.any(axis=1) & ~late.all(axis=1)).mean()))
