"""Tells what each rank's steps wait for, from how its loader spends its time.

Pure. In: figures of each rank (`mlfs.plan.rank_load`). Out: a limit for each. Called by `mlfs.plan.loader_load`.

A loader that is never idle is what its rank waits for: either reads or preprocessing, whichever takes longer. A loader
that idles waits for the training loop, which trains, or waits for other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlfs.plan.model import Floats
from mlfs.plan.rank_load import FEWEST_BATCHES, BatchTimes, RankLoad, StepLimit

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
