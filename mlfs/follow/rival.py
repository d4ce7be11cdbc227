"""Rivals of the order by which a job is followed: other explanations of its reads, each of which is shown them.

Pure. In: reads, and what the order in force made of them. Out: whether a rival leads. Used by `mlfs.follow.job`, which
proposes them, and by `mlfs.follow.families`, which holds those about the reads of one family.

A rival is a hypothesis with a matcher, which was shown the reads that it is about. There are four kinds (`Claim`). One
rule says that one leads (`Rival.leads`): it has proved itself, and nothing speaks against its taking over. It is
forgotten when it has had its reads and does not lead; the next lost read proposes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from mlfs.follow.epoch_index import Match
from mlfs.follow.evidence import FEWEST_READ_BEFORE, PROVED_READS, PROVED_SHARE, bits
from mlfs.follow.matching import StreamMatcher


class Claim(Enum):
    """A rival's claim, in the words of the log. The first of these that leads is believed."""

    AS_REGISTERED = "it is read as registered; what others read before is nothing to it"
    """Somebody reads the job as it was registered, though another order was found to be what its script does."""
    JOINS = "a further family of processes reads for it"
    """It reads on where a rank is for which nobody reads: a rank, or workers, that nobody has seen yet."""
    FROM_START = "the script was started again from its first epoch"
    """Somebody reads the job from its beginning."""
    ONLY_READER = "one family among several reads it"
    """The reads of the others came between."""


class InForce(NamedTuple):
    """The explanation that is followed, and how it fares beside a rival.

    Attributes:
        matcher: has matched all reads that count for the job.
        is_silent: nobody reads by it since the rival was proposed.
        may_be_walk: who reads by the rival reads in the order of the directories, as far as is known.
        has_room: for a rank: whether a further family may read for it.
    """

    matcher: StreamMatcher
    is_silent: bool = False
    may_be_walk: bool = False
    has_room: Callable[[int], bool] = lambda rank_index: True


class Rival:
    """See the module.

    Args:
        of_family: it is about the reads of one family, and not about all that count for the job.
        is_kin: a process of the family whose read proposed it had read by the order in force.

    Attributes:
        matcher: what has matched the reads that it is about.
    """

    def __init__(self, claim: Claim, matcher: StreamMatcher, of_family: bool, is_kin: bool = False) -> None:
        self.claim = claim
        self.matcher = matcher
        self.of_family = of_family
        self.is_kin = is_kin
        self._read_before = 0  # reads that it takes for samples that were read already by the order in force

    def read(self, sample: int, process: int, parent: int) -> Match | None:
        """Show it a read that it is about."""
        return self.matcher.observe(sample, process, parent)[0]

    def compare(self, own: Match | None, theirs: Match | None, in_force: StreamMatcher) -> None:
        """Note what the order in force made of a read, and what this one did."""
        if self.claim is Claim.FROM_START and theirs is not None and theirs != own:  # another job has other ranks
            self._read_before += in_force.ranks[theirs.rank_index].is_done(theirs.position)

    @property
    def reads(self) -> int:
        """How many reads were counted for and against it."""
        return self.matcher.score.observed

    @property
    def share(self) -> float:
        """The share of these that came as it predicts."""
        return self.matcher.score.agreed / self.reads if self.reads else 0.0

    @property
    def fits_all(self) -> bool:
        """Whether it has predicted so many of its reads, whoever made them, that it is no chance."""
        return self.reads >= PROVED_READS and self.share >= PROVED_SHARE

    def has_proved(self, process: int) -> bool:
        """Whether it is no chance any more, by the reads of all or by those of the process that read last."""
        in_a_row = self.of_family and self.claim is not Claim.FROM_START
        return (in_a_row and self.matcher.follows(process)) or self.fits_all

    def leads(self, process: int, in_force: InForce) -> bool:
        """Whether it is to be believed from now on: the one rule for all kinds. Args: process: it has read last."""
        if not self.has_proved(process):
            return False
        if not self.of_family:  # both were shown the same reads: whoever predicts more of them
            begun_anew = self.claim is not Claim.FROM_START or self._read_before >= FEWEST_READ_BEFORE
            return begun_anew and self._bits() > self._bits_of(in_force.matcher)
        match self.claim:
            case Claim.AS_REGISTERED:
                # Who walks the directories reads as a job that does not shuffle, whatever he is.
                return in_force.is_silent or not in_force.may_be_walk
            case Claim.JOINS:
                return in_force.has_room(self.matcher.rank_of(process))
            case Claim.FROM_START:
                return in_force.is_silent
            case Claim.ONLY_READER:
                return True

    def _bits(self) -> float:
        return bits(self.matcher.score.agreed, self.reads, self._choices)

    def _bits_of(self, other: StreamMatcher) -> float:
        """The bits that as many reads, the last ones, say for another matcher that was shown the same."""
        return bits(other.score.agreement_of_last(self.reads) * self.reads, self.reads, self._choices)

    @property
    def _choices(self) -> int:
        return self.matcher.stream_length * len(self.matcher.ranks)
