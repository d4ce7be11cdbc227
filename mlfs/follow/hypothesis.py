"""A hypothesis: a job as it may be, the evidence of reads for it, and the one rule that puts it in force or refutes it.

Pure. In: what generators propose, and how reads came. Out: rulings. Used by `mlfs.follow.job`, which proposes what else
may be true of a job with the specification in force, by `mlfs.follow.families`, and by all of `mlfs.explain`, which
proposes other specifications: variants of a registration (`screen`), the place in its generator's words at which an
epoch begins (`words`), the order of the files, a seed or another sampler (`hypotheses`), the epochs before
(`next_epoch`), another node. Generators propose the likeliest first, and pay in bits for the choice that they had.

A *rival* is a hypothesis with a matcher, which is shown the reads that it is about: those of one family, or all that
count for the job. The ruling on it is asked with each of these reads. An *alternative* has no matcher: it explains all
that was read as well as what is in force, and differs from it in what comes next.

A hypothesis pays in bits for the choice that its generator had (`CHOICE_BITS`). A registration has been vouched for: it
is in force before any read, and a hypothesis that is to take its place must be borne out by reads that it was not
searched with (`BARS`). Without a registration nothing is to be replaced: then a hypothesis is in force as soon as it is
no chance, and refuted by the reads that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, NamedTuple

from mlfs.follow.epoch_index import Match
from mlfs.follow.evidence import (
    FEWEST_READ_BEFORE,
    JUDGED_OPENS,
    LEAST_BITS,
    MISS_BITS,
    MOST_FURTHER_OPENS,
    PROVED_READS,
    READS_AGAIN,
    SURE_SHARE,
    Read,
    bits,
    fits,
)
from mlfs.follow.matching import Open, StreamMatcher
from mlfs.follow.plain_order import LONGEST_STEP
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams


class Origin(Enum):
    """The source of a hypothesis. The first six have the specification in force, or the registered one."""

    REGISTERED = auto()
    """Somebody has registered it."""

    AS_REGISTERED = auto()
    """Somebody reads the job as it was registered, though another order was found to be what its script does."""

    JOINS = auto()
    """A family reads on where a rank is for which nobody reads: a rank, or workers, that nobody has seen yet."""

    FROM_START = auto()
    """Somebody reads the job from its beginning."""

    EPOCH_ANEW = auto()
    """Somebody reads the epoch that is under way from its beginning, as a run that goes on from its last checkpoint."""

    ONLY_READER = auto()
    """One family reads the job, and the reads of the others came between."""

    VARIANT = auto()
    """Another registration, the best of some hundred that mistakes make."""

    PLACE = auto()
    """An epoch of a registered job that begins elsewhere in its generator's words; or the job with more ranks, for
    which strangers were found to read."""

    FILES = auto()
    """The order of the files."""

    SEARCH = auto()
    """A seed, or a sampler that is not torch's, of all that were tried."""

    EPOCH_BEFORE = auto()
    """What explained the epochs before goes on so."""

    NODE = auto()
    """What explains the reads of another node."""


SAME_JOB: Final = {
    Origin.AS_REGISTERED: "it is read as registered; what others read before is nothing to it",
    Origin.JOINS: "a further family of processes reads for it",
    Origin.FROM_START: "the script was started again from its first epoch",
    Origin.EPOCH_ANEW: "the script was started again, from the beginning of the epoch that was under way",
    Origin.ONLY_READER: "one family among several reads it",
}
"""The sentences of what may be true of a job with the specification in force, or with the registered one."""
ANEW: Final = (Origin.FROM_START, Origin.EPOCH_ANEW)
"""Those of a script that was started again, and reads samples that it had read."""
UNREGISTERED: Final = frozenset({Origin.FILES, Origin.SEARCH, Origin.EPOCH_BEFORE, Origin.NODE})
"""Those of jobs that nobody registered: nothing else is in force for their reads."""

CHOICE_BITS: Final = {
    # One of some hundred batch sizes and numbers of workers.
    Origin.PLACE: 10.0,
    # 2^32 seeds of a permutation and as many of generators, nearly 2^16 ways of reading it (`mlfs.explain.question`),
    # 2^10 batch sizes and numbers of workers.
    Origin.SEARCH: 33.0 + 17.0 + 10.0,
    # Some hundred hypotheses and epochs. For chance that would do; but a wrong choice costs an epoch, and thirteen
    # bits more cost one or two reads.
    Origin.EPOCH_BEFORE: 7.0 + 13.0,
}
"""The bits of what a generator chooses from, by the origin of what it proposes; none for others. The best of many fits
some reads by chance, so a hypothesis begins so far below none. The choice that differs from case to case comes off
besides."""


def beyond_chance(bits: float) -> bool:
    """Whether a hypothesis is none by chance, with the bits that it began with and those of its evidence."""
    return bits >= LEAST_BITS


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A job as it may be, from where its reads are.

    Attributes:
        spec: with the epoch and the step in which it begins. origin: where it comes from.
        streams: of the job, if somebody has made them already; those of a `PLACE` know what its specification cannot
            say.
        sentence: what the script does otherwise than is in force; "" where nobody registered a job.
        changes: fields that register it so; None for a field that is as it was registered after all.
        families: the families of readers whose opens it explains; None: all.
        choice_bits: log2 of what its generator chose it from, beside the choice that all of its origin have.
    """

    spec: JobSpec
    origin: Origin
    streams: JobStreams | None = None
    sentence: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    families: frozenset[Hashable] | None = None
    choice_bits: float = 0.0

    @property
    def prior_bits(self) -> float:
        """The bits with which it begins, before any read speaks for or against it."""
        return -(CHOICE_BITS.get(self.origin, 0.0) + self.choice_bits)


# -- the rule


class Fit(NamedTuple):
    """Reads, and how many of them came as a hypothesis says."""

    opens: int = 0
    fitting: int = 0


class Bar(NamedTuple):
    """The reads that a hypothesis needs before it may be in force; after `most` of them it is, or it is refuted.

    Attributes:
        or_in_a_row: of a hypothesis about one family, eight predicted reads in a row of one process are enough.
    """

    reads: int
    most: int
    or_in_a_row: bool = False


# Nothing was chosen, and the reads are shown to it as they come.
PROVED: Final = Bar(PROVED_READS, PROVED_READS, or_in_a_row=True)
BARS: Final = dict.fromkeys(SAME_JOB, PROVED) | {
    **dict.fromkeys(ANEW, PROVED._replace(or_in_a_row=False)),  # each worker's first reads may be in doubt
    Origin.VARIANT: Bar(JUDGED_OPENS, MOST_FURTHER_OPENS),
    Origin.PLACE: Bar(0, 0),  # no other of millions of orders has these reads: further ones have nothing to add
}


class Ruling(Enum):
    """The reads' answer to whether a hypothesis takes the place of what is in force."""

    WAITS = auto()
    INSTALL = auto()
    REFUTED = auto()
    OTHER_STANDS = auto()
    """What is in force predicts nearly all of the reads, and no fewer of them."""


def ruling(origin: Origin, shown: Fit, further: Fit, in_force: Fit | None) -> Ruling:
    """The one rule: whether a hypothesis takes the place of what is in force.

    Args:
        shown: of all reads, those included that the hypothesis was found by. further: of those since.
        in_force: of the same further reads, by what is in force; None where its count says nothing.
    """
    bar = BARS[origin]
    if not bar.reads:
        return Ruling.INSTALL if fits(*shown) else Ruling.REFUTED
    if further.opens < bar.reads:
        return Ruling.WAITS
    if in_force is not None and fits(*in_force) and further.fitting <= in_force.fitting:
        return Ruling.OTHER_STANDS  # where neither predicts anything, neither stands
    if fits(*further):
        return Ruling.INSTALL
    return Ruling.REFUTED if further.opens >= bar.most else Ruling.WAITS


def refuted(last: Fit) -> bool:
    """The rule that ends a job that nobody registered: nearly none of enough of its last reads came as it says."""
    return last.opens >= JUDGED_OPENS and fits(last.opens, last.opens - last.fitting)


# -- rivals: hypotheses that are shown reads as they come


class Rival:
    """A hypothesis, and what reads say for it.

    Args:
        matcher: what matches the reads that it is about. Those that it has seen are those that it was found by.
        by_run_under_way: whoever made the read for which it was proposed had read by the order in force.

    Attributes:
        ruled: the reads' answer. `WAITS` while there is none, and where it was withdrawn before.
    """

    def __init__(self, hypothesis: Hypothesis, matcher: StreamMatcher, by_run_under_way: bool = False) -> None:
        self.hypothesis = hypothesis
        self.origin = hypothesis.origin
        self.matcher = matcher
        self.by_run_under_way = by_run_under_way
        self.ruled = Ruling.WAITS
        self._found_by = Fit(matcher.score.observed, matcher.score.agreed)
        self._read_before = 0  # reads that it takes for samples that were read already by the order in force

    def is_about(self, seen: Open | Read) -> bool:
        """Whether it is about reads of whoever made this one."""
        return True

    def read(self, read: Read) -> Match | None:
        """Show it a read that it is about."""
        return self.matcher.observe(read.sample, read.process, read.parent)[0]

    def compare(self, own: Match | None, theirs: Match | None, in_force: StreamMatcher) -> None:
        """Note what the order in force made of a read, and what this one did."""
        if self.origin in ANEW and theirs is not None and theirs != own:  # another job has other ranks
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
    def is_likely(self) -> bool:
        """Whether its first reads fit, so that nothing else is to be looked for until it is ruled on."""
        return self.reads >= READS_AGAIN and self.share >= SURE_SHARE

    def bits(self, left_out: int = 0) -> float:
        """Those that it began with, and those of its reads. Args: left_out: reads that would have come before them."""
        choices = self.matcher.stream.length * len(self.matcher.ranks)
        evidence = bits(self.matcher.score.agreed, self.reads, choices) - left_out * MISS_BITS
        return self.hypothesis.prior_bits + evidence

    def firsts(self) -> dict[int, int]:
        """By rank, the first position that its reads are of."""
        firsts: dict[int, int] = {}
        for seen in self.matcher.score.history:
            if seen.agrees:
                firsts[seen.rank_index] = min(seen.position, firsts.get(seen.rank_index, seen.position))
        return firsts

    @property
    def further(self) -> Fit:
        """Its reads since those that it was found by."""
        return Fit(self.reads - self._found_by.opens, self.matcher.score.agreed - self._found_by.fitting)

    def ruling(self, in_force: StreamMatcher | None = None, last: int | None = None) -> Ruling:
        """The rule, asked of all its reads.

        Args:
            in_force: has been shown the same reads. last: the process that made the last one, where all are a family's.
        """
        if last is not None and BARS[self.origin].or_in_a_row and self.matcher.follows(last):
            return Ruling.INSTALL
        further, other = self.further, None
        # The reads of threads agree within a wide bound, in another order too: that says nothing for another order.
        if in_force is not None and (self.origin in SAME_JOB or in_force.shape.slack == 1):
            same = (seen.agrees for seen in reversed(in_force.score.history) if self.is_about(seen))
            other = Fit(further.opens, sum(islice(same, further.opens)))
        self.ruled = ruling(self.origin, Fit(self.reads, self.matcher.score.agreed), further, other)
        begun_anew = self.origin not in ANEW or self._read_before >= FEWEST_READ_BEFORE
        if self.ruled is Ruling.INSTALL and in_force is not None and not begun_anew:
            self.ruled = Ruling.REFUTED
        return self.ruled

    @property
    def walks(self) -> bool:
        """Whether most of the reads that it predicts came in the order of the directories."""
        steps, last = list[bool](), dict[int, int]()
        for seen in self.matcher.score.history:
            if seen.agrees:
                steps.append(0 < seen.sample - last.get(seen.process, seen.sample) <= LONGEST_STEP)
                last[seen.process] = seen.sample
        return 2 * sum(steps) >= len(steps)


def _likeliness(rival: Rival) -> tuple[bool, int]:
    return rival.is_likely, rival.reads


def choose(rivals: Sequence[Rival], leads: Callable[[Rival], bool], frontiers: Sequence[int]) -> Rival | None:
    """The one that takes the job's place, of those about one family: the first that leads, unless another is likelier.

    Reads that seem to join a rank in a later epoch are of the script's start as well, where it does not call set_epoch.
    But to join there the family would have left out much of the epoch before, which costs bits.

    Args:
        leads: says of a rival that the rule installs whether the job's readers leave it room. frontiers: by rank, where
            it was when the first of these reads came.
    """
    found = next(filter(leads, rivals), None)
    again = next((one for one in rivals if one.origin is Origin.FROM_START), None)
    if again is None or found is None or found.origin is not Origin.JOINS:
        return found
    shape = found.matcher.shape
    a_round = max(shape.batch, found.matcher.stream.batch) * max(1, shape.workers)  # left out of each epoch, maybe
    begun = again.firsts() if again.share >= SURE_SHARE else {}
    joined = ((rank, at) for rank, at in found.firsts().items() if begun.get(rank, at) + a_round < at)
    left_out = sum(max(0, at - frontiers[rank]) for rank, at in joined)
    if left_out <= a_round or again.bits() <= found.bits(left_out):
        return found
    return again if leads(again) else None if again.ruling() is Ruling.WAITS else found


# -- the list of them


class Rivals:
    """The one list of what may be true of a job instead of what is in force. Generators propose to it.

    It shows a rival the reads that it is about, and asks the rule. The one that leads is put in force by
    `mlfs.follow.job.JobRun.follow_leading`, and by nothing else. Rivals about one family alone stand with that family
    (`mlfs.follow.families.Trial`), which asks the same rule, until one of them leads here.

    Args:
        is_doubtful: says of a rival that the rule would install whether a search might find something likelier.

    Attributes:
        leading: the one that is to be put in force, None while there is none. leads_of: the family that its reads are
            of, None where it is about all that count for the job.
        by_origin: those about all these reads: one of each kind, in the order in which they came.
        alternatives: hypotheses that explain all that was read as well as the one in force, itself included, the
            likeliest first; none where somebody has registered the job. They differ in what comes next: the first reads
            of the next epoch choose. was_chosen: whether an epoch's reads have chosen from them the one in force.
    """

    def __init__(self, is_doubtful: Callable[[Rival, StreamMatcher], bool]) -> None:
        self.alternatives: Sequence[Hypothesis] = ()
        self.was_chosen = False
        self._is_doubtful = is_doubtful
        self._search_may_come = False
        self.withdraw_all()

    def withdraw_all(self) -> None:
        """Another run of the script has begun: what was proposed was about the one before."""
        self.leading: Rival | None = None
        self.leads_of: object = None
        self.by_origin: dict[Origin, Rival] = {}

    def learn(self, alternatives: Sequence[Hypothesis], was_chosen: bool = False) -> None:
        """Take note of what else explains all that was read."""
        self.alternatives, self.was_chosen = alternatives, self.was_chosen or was_chosen

    def await_search(self, may_come: bool) -> None:
        """Whether a search may yet find what the script does otherwise than registered."""
        self._search_may_come = may_come

    @property
    def from_start(self) -> Rival | None:
        """The one that says that the script was started again, while it may be so."""
        found = (self.leading, *(self.by_origin.get(origin) for origin in ANEW))
        return max((one for one in found if one is not None and one.origin in ANEW), key=_likeliness, default=None)

    def propose(self, rival: Rival) -> None:
        """It is shown all reads that count for the job, until it is ruled on or withdrawn."""
        self.by_origin[rival.origin] = rival

    def withdraw(self, rival: Rival) -> None:
        """It is refuted, or something else explains the reads that it is about."""
        if self.by_origin.get(rival.origin) is rival:
            del self.by_origin[rival.origin]
        if self.leading is rival:
            self.leading = self.leads_of = None

    def let_lead(self, rival: Rival, family: object = None) -> None:
        """It is to be put in force. Args: family: see `leads_of`."""
        if family is not None:
            self.by_origin.pop(rival.origin, None)
        self.leading, self.leads_of = rival, family

    def show(self, read: Read, match: Match | None, in_force: StreamMatcher) -> bool:
        """Show a read, which the order in force matched so. Returns whether one leads by now."""
        if self.leads_of is not None and self.leading is not None and self.leading.origin in ANEW:
            self.withdraw(self.leading)  # those before it still read
        about = [rival for rival in self.by_origin.values() if rival.is_about(read)]
        for rival in about:
            rival.compare(match, rival.read(read), in_force)
        return self.rule(about, in_force)

    def rule(self, about: Iterable[Rival], in_force: StreamMatcher) -> bool:
        """Ask the rule about some, the likeliest first as they began. Returns whether one leads."""
        for rival in sorted(about, key=lambda one: -one.hypothesis.prior_bits):
            found = rival.ruling(in_force)
            if found is Ruling.INSTALL and not (self._search_may_come and self._is_doubtful(rival, in_force)):
                self.let_lead(rival)
                return True
            if found is not Ruling.WAITS:
                self.withdraw(rival)
        return False
