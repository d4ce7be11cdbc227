"""Whether a family of processes, whose reads are no kin's of the job's readers, reads for the job after all.

Pure. In: its reads, matched by matchers of their own: one that begins where the ranks are, one that begins where the
job does, and, where the job was corrected, one for the job as it was registered. Out: a verdict. Used by
`mlfs.follow.strangers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from mlfs.follow.matching import StreamMatcher
from mlfs.follow.plain_order import PlainOrder
from mlfs.follow.score import Open

STRANGER_READS = 16
"""Reads that fit nothing before a family is called a stranger: two batches of eight; a reader of the job proves itself
with eight."""
TRIAL_READS = 64
"""Reads after which a trial begins anew where the ranks are by then. A second run of the script, which is known by its
first 32 reads, shows in one trial."""
EARLIER_READS = 512
"""Reads of a family from before its trial that are kept: some batches of each worker, which may prove to be the job's
with those of the trial. Where ranks have samples in common, it takes several trials to tell whose reads are whose."""
PROVED_OPENS, PROVED_SHARE = 32, 0.8
"""Opens of a family, and the share of them that must be predicted, where none of its processes reads for long: workers
of a loader with many workers and short epochs."""
HEIR_READS, HEIR_SILENCE_S = 32, 2.0
"""Reads of a family, and seconds, through which nobody else reads the job, before the family is taken for the job's
readers of today though it does not read as predicted: a script that was started again in another way."""

Key = tuple[int, str, int]
"""A family: the parent, 0 where it is not known; the name; the process where it is a family by itself, else 0."""


class Verdict(Enum):
    """What is known of a family that is on trial."""

    WAITS = auto()
    """Nothing yet."""
    JOINS = auto()
    """It reads for a rank that nobody else reads for."""
    AGAIN = auto()
    """It reads the job from its start, and nobody else reads the job any more."""
    AS_TOLD = auto()
    """It reads the job as it was registered, and the job is followed in another way."""
    INHERITS = auto()
    """Nobody else reads the job any more: its reads show what the script does now."""
    STRANGER = auto()
    """It is none of the job's."""


class Read(NamedTuple):
    """A read of the job's samples."""

    sample: int
    process: int
    parent: int
    at_s: float


class Family:
    """Processes of one parent and name that are not known to read for the job.

    Attributes:
        first_process: the one that was seen first. newest_process: the one that was seen last for the first time.
        processes: how many were seen. reads: how many reads. order: whether it is plain.
        is_stranger: whether it has been found to be one. is_second_run: whether it reads the job from its start.
        waiting: its last reads, which will be matched if they prove to be the job's. earlier: those before its trial.
        trial: see Trial; None while none is under way.
        again: what has followed it from the job's start, once it has proved to be a second run.
    """

    def __init__(self, key: Key, process: int) -> None:
        self.key = key
        self.first_process = self.newest_process = process
        self.processes = 1
        self.reads = 0
        self.order = PlainOrder()
        self.is_stranger = self.is_second_run = False
        self.waiting: deque[Read] = deque()
        self.earlier: deque[Read] = deque(maxlen=EARLIER_READS)
        self.trial: Trial | None = None
        self.again: StreamMatcher | None = None

    def read(self, read: Read) -> None:
        """One more read, which may prove to be the job's."""
        if read.process != self.newest_process and self.waiting and read.process != self.waiting[-1].process:
            self.newest_process = read.process
            self.processes += all(seen.process != read.process for seen in self.waiting)
        self.reads += 1
        self.order.read(read.sample, read.process)
        if len(self.waiting) == TRIAL_READS:
            self.earlier.append(self.waiting.popleft())
        self.waiting.append(read)

    def begin_trial(self, trial: Trial) -> None:
        """Only the last read, and those that follow, are on trial from now on."""
        last = self.waiting.pop()
        self.earlier += self.waiting
        self.waiting.clear()
        self.waiting.append(last)
        self.trial = trial

    def keep(self, reads: Iterable[Read]) -> None:
        """It made these reads before all others that are kept."""
        self.earlier = deque([*reads, *self.earlier], maxlen=EARLIER_READS)

    def end_trial(self) -> None:
        """No trial is under way any more."""
        self.trial = None

    def reads_again(self, matcher: StreamMatcher) -> None:
        """It has proved to be a second run of the job, which this matcher has followed."""
        self.again = matcher

    def call_stranger(self) -> None:
        """It has been found to be one."""
        self.is_stranger = True

    def call_second_run(self) -> None:
        """It was seen to read the job from its start. If others go on reading it, the script was started twice."""
        self.is_second_run = True

    def has_read(self, reads: int, order: PlainOrder | None = None) -> None:
        """It has made so many reads in all, and in this order if it was watched."""
        self.reads = reads
        self.order = order or self.order

    def note_earlier(self, opens: Sequence[Open]) -> None:
        """It made these reads before anybody knew that they were not the job's."""
        for seen in opens:
            self.order.read(seen.entry, seen.process)
        self.reads += len(opens)
        self.processes = max(self.processes, len({seen.process for seen in opens}))

    def take_back_read(self) -> None:
        """A read that was counted here will be told once more."""
        self.reads = max(0, self.reads - 1)


class Trial:
    """What a family's reads would be to the job.

    Attributes:
        joins: matches them from where the ranks are. again: from the job's start. as_told: to the job as registered.
        observed, frontiers: of the job, when the trial began; -1 where it is known that others read the job.
    """

    def __init__(
        self,
        joins: StreamMatcher,
        again: StreamMatcher,
        as_told: StreamMatcher | None,
        own: StreamMatcher,
        at_s: float,
        others_read: bool,
    ) -> None:
        self.joins, self.again, self.as_told = joins, again, as_told
        self.reads = 0
        self.began_s = at_s
        self.observed = -1 if others_read else own.score.observed
        self.frontiers = [rank.frontier for rank in own.ranks]

    def observe(self, read: Read) -> None:
        """One more read."""
        self.reads += 1
        for matcher in dict.fromkeys((self.joins, self.again, self.as_told)):
            if matcher is not None:
                matcher.observe(read.sample, read.process, read.parent)

    def is_silent(self, own: StreamMatcher) -> bool:
        """Whether nobody has read the job since the trial began."""
        return own.score.observed == self.observed


def proves(matcher: StreamMatcher, process: int) -> bool:
    """Whether a process, or its family, reads as a matcher of a trial predicts."""
    return matcher.follows(process) or (matcher.score.observed >= PROVED_OPENS and share_of(matcher) >= PROVED_SHARE)


def reads_from_start(trial: Trial) -> bool:
    """Whether a family reads the job from its start."""
    return trial.again.score.observed >= PROVED_OPENS and share_of(trial.again) >= PROVED_SHARE


def share_of(matcher: StreamMatcher) -> float:
    """Share of all its reads that a matcher has predicted."""
    score = matcher.score
    return score.agreed / score.observed if score.observed else 0.0


def verdict_on(
    family: Family, trial: Trial, read: Read, own: StreamMatcher, is_vacant: Callable[[int], bool]
) -> Verdict:
    """What is known of a family after a read.

    Args:
        own: the job's matcher. is_vacant: whether nobody has proved to read for a rank.
    """
    process, joins, silent = read.process, trial.joins, trial.is_silent(own)
    # Who walks the directories reads as a job that does not shuffle, whatever he is: not while others read the job.
    if trial.as_told is not None and proves(trial.as_told, process) and (silent or not family.order.may_be_plain):
        return Verdict.AS_TOLD
    if proves(joins, process):
        rank = joins.rank_of(process)
        vacant = rank < 0 or is_vacant(rank) or own.ranks[rank].frontier == trial.frontiers[rank]
        if vacant or not read.parent:
            return Verdict.JOINS
    if silent and reads_from_start(trial):
        return Verdict.AGAIN
    long_enough = read.at_s < 0 or read.at_s - trial.began_s >= HEIR_SILENCE_S
    if silent and long_enough and trial.reads >= HEIR_READS and not family.order.is_plain:
        return Verdict.INHERITS
    if trial.reads >= STRANGER_READS or family.is_stranger:
        return Verdict.STRANGER
    return Verdict.WAITS
