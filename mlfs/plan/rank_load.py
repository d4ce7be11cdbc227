"""One rank's loader and its time, in figures: of one batch, and as means of its last batches.

Pure. In: numbers. Out: frozen records. Made by `mlfs.plan.scheduler.rank_loads` and `mlfs.plan.loader_load`, used by
`mlfs.plan.loader_limits`, by the advice on workers (`mlfs.plan.loader_workers`) and by whoever shows them. Source:
Lobster (Liu et al., ICPP'22), Sections 4.2 and 4.3: T_L is waiting here, T_P preprocessing, and T_train the time of the
other steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

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
