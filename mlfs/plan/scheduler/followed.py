"""The contract between the scheduler and a followed job: where its ranks are, and what its streams are.

Pure. `mlfs.follow.job.JobRun` fulfils it; the scheduler knows no more of a job than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mlfs.served.refill import Refill

Given = tuple[int, int]
"""Positions that are given up: the first, and the one after the last."""

NAMELESS = -1
"""Stands for the process of readers whom the kernel does not name, as they are in another pid namespace. No process has
that number, and 0 is one in simulated nodes."""


class Match(NamedTuple):
    """A position of a stream: local rank index, linear position (the epoch's base plus the index in the stream)."""

    rank_index: int
    position: int


class EpochStreams(Protocol):
    """One epoch's streams of the local ranks."""

    @property
    def epoch(self) -> int:
        """The epoch's number."""

    @property
    def base(self) -> int:
        """Linear position of its first sample."""

    @property
    def length(self) -> int:
        """How many samples each rank reads."""

    @property
    def ids(self) -> Sequence[npt.NDArray[np.int32]]:
        """Each local rank's stream: sample numbers, below 0 for a file that the mount does not have."""

    @property
    def refill(self) -> Refill | None:
        """What is fetched in the order of the tree, a round ahead; None where all is fetched in the order of need."""


class RankAt(Protocol):
    """How far a rank is."""

    @property
    def frontier(self) -> int:
        """The linear position that it reads next."""

    def is_done(self, position: int) -> bool:
        """Whether a position was read or given up."""


class Seen(NamedTuple):
    """What the job made of a read.

    Attributes:
        match: the position that the read was matched to, None for none.
        given: positions that are given up by it, by local rank.
        restarted: the read fits the job's first epoch, and not the one that the job was in.
        apart: a stranger made the read, which is nothing to the job.
        coming: what the stranger reads next, where his order is plain.
    """

    match: Match | None
    given: Sequence[tuple[int, Given]] = ()
    restarted: bool = False
    apart: bool = False
    coming: Sequence[int] = ()


class FollowedEpochs(Protocol):
    """The epochs of a job that is followed."""

    @property
    def at_hand(self) -> Mapping[int, EpochStreams]:
        """The epochs whose order is known and still needed, by number."""

    @property
    def first_length(self) -> int:
        """How many samples each rank reads in the first epoch."""

    @property
    def end(self) -> int:
        """Linear position after the last epoch."""

    def index_at(self, position: int) -> EpochStreams | None:
        """The epoch at hand that a linear position lies in."""

    def epoch_of(self, position: int) -> int:
        """The epoch of a linear position."""

    def asked(self, epoch: int) -> None:
        """An epoch's order is being computed."""

    def failed(self, epoch: int) -> None:
        """An epoch's order could not be computed."""


class FollowedRanks(Protocol):
    """The local ranks of a job that is followed."""

    @property
    def progress(self) -> Sequence[RankAt]:
        """How far each of them is."""

    @property
    def silent(self) -> Iterable[int]:
        """Indexes of the ranks for which nobody reads on this node."""

    def newly_silent(self) -> list[int]:
        """Ranks that turned out to be silent since this was last asked."""

    def epochs_begun(self) -> range:
        """Epochs that the fastest rank has come to since this was last asked."""

    def epochs_ended(self) -> range:
        """Epochs that all ranks have left since this was last asked."""


class FollowedLoader(Protocol):
    """What is known of a job's loader by now: as it was registered, until reads tell something else."""

    @property
    def batch_files(self) -> int:
        """Samples of a rank's batch."""

    @property
    def hands_ahead(self) -> bool:
        """Whether a worker is given another batch before the training loop has taken the one before."""

    @property
    def reader_trains(self) -> bool:
        """Whether the process that reads for a rank is the one that trains."""


class HasLoader(Protocol):
    """A job, as far as it is its loader that counts."""

    @property
    def name(self) -> str:
        """As registered; one job of a name at a time."""

    @property
    def loader(self) -> FollowedLoader:
        """Its loader. When more is known of the job there may be another object for it."""


class FollowedJob(HasLoader, Protocol):
    """A job that is followed. All methods are pure computing on the job's own state."""

    @property
    def member(self) -> bytearray:
        """By sample: whether the job reads it."""

    @property
    def batch_files(self) -> int:
        """Samples of a rank's batch, as it was registered."""

    @property
    def predicting(self) -> bool:
        """Whether its predictions are believed."""

    @property
    def finished(self) -> bool:
        """Whether all its ranks have read their whole streams."""

    @property
    def given_up(self) -> bool:
        """Whether following it failed."""

    @property
    def observed(self) -> int:
        """Reads that were counted."""

    @property
    def epochs(self) -> FollowedEpochs:
        """Its epochs."""

    @property
    def ranks(self) -> FollowedRanks:
        """Its ranks on this node. When the script is started again there is another object for them."""

    def observe(self, sample: int, process: int, parent: int, at_s: float, others: Iterable[Any]) -> Seen:
        """Match a read; `others` are the other jobs of the node."""

    def release_held(self, others: Iterable[Any]) -> list[Seen]:
        """Match the reads that waited for an epoch's order; what the job made of each."""

    def wanted_epochs(self) -> list[int]:
        """Epochs whose order must be computed now, as it is needed next."""

    def add_epoch(self, index: Any) -> list[int]:
        """Take an epoch's order; returns the epochs that are not needed any more."""

    def judge(self, now_s: float) -> list[str]:
        """Judge the prediction. Returns sentences about changes that a person should know."""

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Count bytes that came from the source for an epoch."""

    def give_up(self) -> None:
        """Predict nothing any more, as following the job failed."""

    def resized(self, sample: int, more_bytes: int) -> None:
        """A sample has changed its size."""
