"""Decides which processes read for a job, and which are strangers to it: a backup, a colleague's `cp -r`, another
script.

Pure. In: reads of processes that are not known to read for the job, and what the job's own matcher knows. Out: whose
each read is. Used by `mlfs.follow.job`, which matches what is the job's; what is a stranger's moves and judges nothing.

Evidence belongs to *families*: the processes of one parent and program. A family has a state, and the one table below
has all transitions with their causes. A process proves to read for the job when so many of its reads come as predicted
that it is no chance. Its family is proved with it, unless another hypothesis comes into force to which its reads are
nothing. A loader's workers are the family of those of the epoch before; the children of a proved process, and the
parent of one, are its kin, and read for the job until they show that they don't.

As long as nobody has proved himself, all reads are the job's: a registration that is wrong shows in them. Each family
is also seen alone where several read then. Afterwards the reads of all other families are on trial: rivals of their own
match them (`mlfs.follow.hypothesis`), and some of them are kept, in case they are the job's after all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from mlfs.follow.evidence import (
    ASTRAY_READS,
    EARLIER_READS,
    FITTING_READS,
    FITTING_SHARE,
    HEIR_READS,
    HEIR_SILENCE_S,
    ONLY_READER_READS,
    PROVED_READS,
    STRANGER_READS,
    TRIAL_READS,
    Read,
)
from mlfs.follow.hypothesis import Origin, Rival, Ruling, choose
from mlfs.follow.job_statistics import ReadersStatistics, Stranger
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.plain_order import PlainOrder
from mlfs.follow.score import Open

REMEMBERED_PROCESSES = 4096
"""Processes whose family is remembered, and those that have proved themselves: loaders start new workers each epoch, so
only the last ones matter."""
MOST_FAMILIES = 64
"""Families that are not the job's. The one that has not read for longest is forgotten first."""


class FamilyState(Enum):
    """The state of a family: whose its reads are."""

    UNKNOWN = auto()
    """The job's while nobody has proved himself; afterwards until a read does not fit."""
    PROVED = auto()
    """The job's: one of its processes has proved to read for it."""
    CHILDREN = auto()
    """The job's: its parent has proved to read for it."""
    HEIR = auto()
    """The job's for now: nobody else reads, and what it reads shows what the script does today."""
    ON_TRIAL = auto()
    """Nobody's yet."""
    STRANGER = auto()
    """Not the job's."""


class FamilyCause(Enum):
    """The reasons for which a family changes its state."""

    PROVES = auto()
    """One of its processes reads as predicted, so often that it is no chance."""
    PARENT_PROVES = auto()
    """Its parent does."""
    DOES_NOT_FIT = auto()
    """It reads what is not expected, somebody else has proved himself, and it is no kin of his."""
    NOTHING_FITS = auto()
    """A trial's reads fit no rival."""
    JOINS = auto()
    """It reads for a rank that nobody else reads for."""
    INHERITS = auto()
    """Nobody has read the job by its order for long, but this family reads it in another way."""
    OTHERS_COME_BACK = auto()
    """Those before an heir read as predicted again, or another heir has come."""
    GOES_ASTRAY = auto()
    """A kinsman reads something else while the others read as predicted: a family by itself, from now on."""
    WAS_NOT_THE_JOBS = auto()
    """Its reads from before anybody had proved himself don't fit, as somebody else's do."""
    WALKS = auto()
    """It walks the directories, nobody has proved himself, and another family reads in another order."""
    WALKS_NO_MORE = auto()
    """One of these three is over."""


# state -> cause -> next state. Any transition that is missing here is a bug.
TRANSITIONS: Final[dict[FamilyState, dict[FamilyCause, FamilyState]]] = {
    FamilyState.UNKNOWN: {
        FamilyCause.PROVES: FamilyState.PROVED,
        FamilyCause.PARENT_PROVES: FamilyState.CHILDREN,
        FamilyCause.DOES_NOT_FIT: FamilyState.ON_TRIAL,
        FamilyCause.GOES_ASTRAY: FamilyState.STRANGER,
        FamilyCause.WAS_NOT_THE_JOBS: FamilyState.STRANGER,
        FamilyCause.WALKS: FamilyState.STRANGER,
    },
    FamilyState.PROVED: {FamilyCause.WAS_NOT_THE_JOBS: FamilyState.STRANGER},
    FamilyState.CHILDREN: {FamilyCause.PROVES: FamilyState.PROVED, FamilyCause.WAS_NOT_THE_JOBS: FamilyState.STRANGER},
    FamilyState.HEIR: {
        FamilyCause.PROVES: FamilyState.PROVED,
        FamilyCause.PARENT_PROVES: FamilyState.CHILDREN,
        FamilyCause.OTHERS_COME_BACK: FamilyState.UNKNOWN,
        FamilyCause.GOES_ASTRAY: FamilyState.STRANGER,
        FamilyCause.WAS_NOT_THE_JOBS: FamilyState.STRANGER,
    },
    FamilyState.ON_TRIAL: {
        FamilyCause.PROVES: FamilyState.PROVED,
        FamilyCause.PARENT_PROVES: FamilyState.CHILDREN,
        FamilyCause.JOINS: FamilyState.UNKNOWN,
        FamilyCause.NOTHING_FITS: FamilyState.STRANGER,
        FamilyCause.WAS_NOT_THE_JOBS: FamilyState.STRANGER,
    },
    FamilyState.STRANGER: {
        FamilyCause.PROVES: FamilyState.PROVED,
        FamilyCause.PARENT_PROVES: FamilyState.CHILDREN,
        FamilyCause.JOINS: FamilyState.UNKNOWN,
        FamilyCause.INHERITS: FamilyState.HEIR,
        FamilyCause.WALKS_NO_MORE: FamilyState.UNKNOWN,
    },
}


class Key(NamedTuple):
    """A family: the parent, 0 where it is not known; the program's name; the process where it is a family by itself."""

    parent: int
    name: str
    single: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether what one of its processes proves holds for others of the same parent and program."""
        return bool(self.parent) and not self.single


NOBODYS = Key(0, "")
"""The family of processes that ended before anybody saw whose children they are."""


def no_name(process: int) -> str:
    """The name of a process where nobody knows names."""
    return ""


class Trial:
    """A family's reads as they would be to the job, from one of them on.

    Args:
        rivals: the first that leads is believed. matcher: the job's matcher. at_s: when it begins.
        readers_made: the reads of the job's readers by then, training (-1: they are known to read on) and evaluating.

    Attributes:
        reads: how many there were.
    """

    def __init__(
        self, rivals: Sequence[Rival], matcher: StreamMatcher, at_s: float, readers_made: tuple[int, int]
    ) -> None:
        self.reads = 0
        self._rivals = rivals
        self._began_s = at_s
        self._readers_made = readers_made
        self._frontiers = [rank.frontier for rank in matcher.ranks]

    def read(self, read: Read) -> None:
        self.reads += 1
        for rival in self._rivals:
            rival.read(read)

    def is_silent(self, readers_made: tuple[int, int]) -> bool:
        """Whether none of the job's readers has read since the trial began. Args: reads that they have made by now."""
        return readers_made == self._readers_made

    def leading(
        self,
        read: Read,
        matcher: StreamMatcher,
        readers_made: tuple[int, int],
        is_vacant: Callable[[int], bool],
        is_second_run: bool,
    ) -> Rival | None:
        """The rival that is to be believed after a read.

        Args:
            is_vacant: whether nobody reads for a rank. is_second_run: as the family has it.
        """
        is_silent, evaluates = self.is_silent(readers_made), readers_made[1] != self._readers_made[1]

        def leads(rival: Rival) -> bool:
            if rival.ruling(last=read.process) is not Ruling.INSTALL:
                return False
            if rival.origin is not Origin.JOINS:
                # A reader who walks the directories reads as a job that does not shuffle, whatever he is.
                return is_silent or (rival.origin is Origin.AS_REGISTERED and not rival.walks)
            rank = rival.matcher.rank_of(read.process)
            if rank < 0 or is_vacant(rank):
                return True
            if is_second_run and not is_silent:
                return False  # the first run still reads for that rank: the second one has overtaken it
            return (matcher.ranks[rank].frontier == self._frontiers[rank] and not evaluates) or not read.parent

        return choose(self._rivals, leads, self._frontiers)

    def is_long(self, at_s: float) -> bool:
        """Whether it has gone on for so long that, if nobody else reads, the family shows what the script does now."""
        return self.reads >= HEIR_READS and (at_s < 0 or at_s - self._began_s >= HEIR_SILENCE_S)

    @property
    def is_from_start(self) -> bool:
        """Whether the family reads the job from its start. If others go on reading it, it was started twice."""
        return any(one.origin is Origin.FROM_START and one.ruling() is Ruling.INSTALL for one in self._rivals)


class Family:
    """Processes of one parent and program.

    Attributes:
        state: see FamilyState.
        first_process: the one that was seen first. newest_process: the one that was seen last for the first time.
        processes: how many were seen. reads: how many reads. order: whether it is plain. All three are of the time
            before anybody has proved himself, or of that since it is kept apart.
        last_read: the number of its last read among those before anybody has proved himself, 0 for none.
        is_second_run: whether it was seen to read the job from its start.
        waiting: its last reads, which will be matched if they prove to be the job's. earlier: those before its trial.
        trial: None while none is under way.
        only_reader: the rival that says that it is the only one of several families that reads the job; None before
            that is asked.
    """

    def __init__(self, key: Key, process: int, state: FamilyState) -> None:
        self.key = key
        self.state = state
        self.only_reader: Rival | None = None
        self.begin(process)
        self.last_read = 0

    def begin(self, process: int) -> None:
        """Whose its reads are is asked anew."""
        self.first_process = self.newest_process = process
        self.processes = 1
        self.reads = 0
        self.order = PlainOrder()
        self.is_second_run = False
        self.waiting: deque[Read] = deque()
        self.earlier: deque[Read] = deque(maxlen=EARLIER_READS)
        self.trial: Trial | None = None

    def move(self, cause: FamilyCause) -> None:
        """Change the family's state, as the table of transitions allows."""
        self.state = TRANSITIONS[self.state][cause]

    @property
    def is_apart(self) -> bool:
        """Whether its reads are kept apart from the job's."""
        return self.state is FamilyState.ON_TRIAL or self.state is FamilyState.STRANGER

    def read_first(self, read: Read, number: int) -> None:
        """One more read, before anybody has proved himself. Args: number: of the read among all."""
        if not self.last_read:  # what it read beside an earlier run says nothing
            self.begin(read.process)
        self.reads += 1
        self.last_read = number
        self.order.read(read.sample, read.process)

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

    def note_earlier(self, opens: Sequence[Open]) -> None:
        """It made these reads before anybody knew that they were not the job's."""
        for seen in opens:
            self.order.read(seen.sample, seen.process)
        self.reads += len(opens)
        self.processes = max(self.processes, len({seen.process for seen in opens}))

    def last_reads(self) -> list[Read]:
        """Those of its last reads that are kept, as many as a trial has: of the time before its trial, too."""
        return [*self.earlier, *self.waiting][-TRIAL_READS:]

    def keep(self, reads: Iterable[Read]) -> None:
        """It made these reads before all others that are kept."""
        self.earlier = deque([*reads, *self.earlier], maxlen=EARLIER_READS)


@dataclass(slots=True)
class Astray:
    """Kin that has not proved itself: how it does, and how many reads of others came as predicted until it began."""

    process: int
    parent: int
    agreed_before: int
    reads: int = 0
    agreed: int = 0


class Families:
    """The families of processes that read, each with its state. One object is for one run of the script.

    Args:
        name_of: the name of a process's program, "" where it is not known.

    Attributes:
        proved: the processes that have proved themselves, with the rank that each reads for.
    """

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self.proved: OrderedDict[int, int] = OrderedDict()
        self._name_of = name_of
        self._keys: OrderedDict[int, Key] = OrderedDict()  # by process
        self._families: OrderedDict[Key, Family] = OrderedDict()  # whoever was kept apart, or read, last is last
        self._parents: OrderedDict[int, None] = OrderedDict()  # of those in `proved`: each is kin, whatever its family
        self._astray: OrderedDict[int, Astray] = OrderedDict()
        self._first_reads = self._first_families = 0  # before anybody has proved himself
        self._evaluated = 0  # reads of the job's readers that are none of the training's
        self._heir: Family | None = None
        self._heir_agreed = self._agreed_before_heir = 0

    def begin_anew(self) -> Families:
        """For another run of the script: the strangers stay known."""
        anew = Families(self._name_of)
        anew._keys.update((process, key._replace(single=0)) for process, key in self._keys.items())
        for key, family in self._families.items():
            if family.state is FamilyState.STRANGER:
                family.trial, family.only_reader, family.last_read = None, None, 0
                anew._families[key] = family
        return anew

    # -- who is who

    def key_of(self, process: int, parent: int) -> Key:
        """The family of a process. Its name is looked up once."""
        if not parent:
            return NOBODYS
        key = self._keys.get(process)
        if key is None or key.parent != parent:
            name = self._name_of(process) if key is None else key.name
            kin = (family.key for family in reversed(self._families.values()) if family.key.parent == parent)
            name = name or next((of_kin.name for of_kin in kin), "")  # ended already: as its kin before it
            key = self._keys[process] = Key(parent, name, 0 if key is None else key.single)
            _bound(self._keys, REMEMBERED_PROCESSES)
        return key

    def name_of(self, process: int) -> str:
        key = self._keys.get(process)
        return (key.name if key is not None else "") or self._name_of(process)

    def family_of(self, process: int, parent: int) -> Family:
        """The record of a process's family."""
        key = self.key_of(process, parent)
        family = self._families.get(key)
        if family is None:
            is_kin = key.is_whole and parent in self.proved
            family = self._families[key] = Family(key, process, FamilyState.CHILDREN if is_kin else FamilyState.UNKNOWN)
            self._forget_some()
        return family

    def _forget_some(self) -> None:
        strange = [
            family.key for family in self._families.values() if family.is_apart or family.state is FamilyState.UNKNOWN
        ]
        if len(strange) > MOST_FAMILIES:
            del self._families[strange[0]]
        _bound(self._families, REMEMBERED_PROCESSES)

    def are_the_jobs(self, process: int, parent: int) -> bool:
        """Whether the reads of a process are the job's for now, though it may not have proved itself."""
        if not self.proved or process in self.proved:
            return True
        return self.family_of(process, parent).state is FamilyState.HEIR or self._is_kin(process, parent)

    def evaluate(self) -> None:
        """The job's readers have made a read that is none of the training's, and so count as alive."""
        self._evaluated += 1

    @property
    def has_heir(self) -> bool:
        """Whether others than those that have proved themselves are taken for the job's readers of today."""
        return self._heir is not None

    def look_at_heir(self, matcher: StreamMatcher) -> None:
        """An heir is one no more once those before it read as predicted again."""
        heir = self._heir
        if heir is not None and matcher.score.agreed - self._agreed_before_heir - self._heir_agreed >= PROVED_READS:
            self._heir = None
            if heir.state is FamilyState.HEIR:
                heir.move(FamilyCause.OTHERS_COME_BACK)

    def _is_kin(self, process: int, parent: int) -> bool:
        """Whether a process is kin of those that have proved themselves."""
        family = self.family_of(process, parent)
        if not parent:
            return not family.is_apart  # nobody knows: it has the benefit of the doubt
        is_kin = family.state is FamilyState.PROVED or family.state is FamilyState.CHILDREN
        return is_kin or (family.key.is_whole and process in self._parents)

    def takes(self, read: Read, matcher: StreamMatcher) -> bool:
        """Whether a read of a process that has not proved itself counts for the job."""
        if not self.proved:
            return True
        family = self.family_of(read.process, read.parent)
        fits = matcher.fits(read.sample, read.process)
        may_begin = fits and not family.is_apart
        if may_begin and any(self.is_vacant(rank_index, matcher) for rank_index in range(len(matcher.ranks))):
            return True  # as somebody may begin to read for a rank that nobody reads for
        doubtful = not read.parent and not fits and family.state is not FamilyState.HEIR
        return not doubtful and self.are_the_jobs(read.process, read.parent)

    def is_vacant(self, rank_index: int, matcher: StreamMatcher) -> bool:
        """Whether nobody has proved to read for a rank."""
        ranks = self.proved.items()  # -1: it was not known yet when the process proved itself
        return all((matcher.rank_of(process) if known < 0 else known) != rank_index for process, known in ranks)

    def part_from_kin(self, process: int, parent: int) -> None:
        """A process is a family by itself from now on, if it would be the job's readers' for its parent and program."""
        if self._is_kin(process, parent):
            self._keys[process] = self.key_of(process, parent)._replace(single=process)

    def kept_apart(self, process: int, parent: int) -> Family | None:
        """The family of a process whose reads are kept apart from the job's; None where they are not."""
        family = None if process in self.proved else self._families.get(self.key_of(process, parent))
        return family if family is not None and family.is_apart else None

    def prove(self, process: int, parent: int, rank_index: int) -> None:
        """A process reads as predicted, so often that it is no chance."""
        family = self.family_of(process, parent)
        self._astray.pop(process, None)
        self.proved[process] = rank_index
        _bound(self.proved, REMEMBERED_PROCESSES)
        family.only_reader = None
        if family.key.is_whole:
            if family.state is not FamilyState.PROVED:
                family.move(FamilyCause.PROVES)
            self._parents[parent] = None
            _bound(self._parents, REMEMBERED_PROCESSES)
        elif family.is_apart:
            family.move(FamilyCause.JOINS)
        for other in self._families.values():
            is_child = other.key.is_whole and other.key.parent == process
            if is_child and other.state is not FamilyState.CHILDREN and other.state is not FamilyState.PROVED:
                other.move(FamilyCause.PARENT_PROVES)

    def statistics(self) -> ReadersStatistics:
        strangers = (
            Stranger(
                family.first_process, family.key.parent, family.key.name,
                family.processes, family.reads, family.order.is_plain, family.is_second_run,
            )
            for family in self._families.values()
            if family.state is FamilyState.STRANGER
        )  # fmt: skip
        return ReadersStatistics(tuple(self.proved), tuple(strangers))

    # -- before anybody has proved himself

    def read_first(self, read: Read) -> Family | None:
        """One more read. Returns the reader's family, if it walks the directories while others read in another order.

        A script that does not shuffle walks the directories too. But nobody who walks them shows what the other does.
        """
        family = self.family_of(read.process, read.parent)
        self._first_reads += 1
        self._first_families += not family.last_read
        family.read_first(read, self._first_reads)
        beside = family.order.is_plain and any(
            other.reads >= STRANGER_READS and not other.order.is_plain
            for other in self._families.values()
            if other.last_read and self._first_reads - other.last_read <= TRIAL_READS
        )
        if beside and not family.is_apart:
            family.move(FamilyCause.WALKS)
        elif not beside and family.is_apart:
            family.move(FamilyCause.WALKS_NO_MORE)
        self._families.move_to_end(family.key)
        return family if beside else None

    def read_by_one(self, read: Read, matcher: StreamMatcher, propose: Callable[[], Rival]) -> bool:
        """Show a read to the rival that says that its family alone reads the job, where several read. Whether it leads.

        Args:
            matcher: the job's matcher, which has seen this read too. propose: that the job is read from its start.
        """
        if self.one_family_read:
            return False  # the job's own matcher sees it alone
        family = self.family_of(read.process, read.parent)
        rival = family.only_reader
        if rival is None:
            rival = family.only_reader = propose()
            for seen in matcher.opens():
                if self.key_of(seen.process, seen.parent) == family.key:
                    rival.read(seen.read)
        else:
            if rival.reads >= ONLY_READER_READS:
                rival = family.only_reader = propose()
            rival.read(read)
        return rival.ruling(last=read.process) is Ruling.INSTALL

    @property
    def one_family_read(self) -> bool:
        """Whether no more than one family was seen before somebody proved himself."""
        return self._first_families < 2

    def fits_as_only_reader(self, opened: Open) -> bool:
        """Whether a read is of a family that, seen alone, reads as predicted."""
        family = self._families.get(self.key_of(opened.process, opened.parent))
        rival = family.only_reader if family is not None else None
        return rival is not None and rival.reads >= FITTING_READS and rival.share >= FITTING_SHARE

    def seen_again(self, opened: Open) -> None:
        """A read that may have been counted as a stranger's will be told once more."""
        family = self.kept_apart(opened.process, opened.parent)
        if family is not None and family.reads:
            family.reads -= 1

    def note_strangers(self, opens: Iterable[Open]) -> list[Family]:
        """These reads turned out to be strangers'."""
        reads: dict[Key, list[Open]] = {}
        for seen in opens:
            reads.setdefault(self.key_of(seen.process, seen.parent), []).append(seen)
        found = []
        for of_family in reads.values():
            family = self._stranger(of_family[0].process, of_family[0].parent, FamilyCause.WAS_NOT_THE_JOBS)
            family.note_earlier(of_family)
            found.append(family)
        return found

    def others_before(self, history: Iterable[Open]) -> list[Family]:
        """Families that read before anybody had proved himself, are no kin, and did not read as predicted."""
        reads: dict[Key, list[Open]] = {}
        for seen in history:
            if seen.process not in self.proved and not self._is_kin(seen.process, seen.parent):
                reads.setdefault(self.key_of(seen.process, seen.parent), []).append(seen)
        unfit = [opens for opens in reads.values() if sum(seen.agrees for seen in opens) < FITTING_SHARE * len(opens)]
        return self.note_strangers(seen for opens in unfit for seen in opens)

    def _stranger(self, process: int, parent: int, cause: FamilyCause) -> Family:
        family = self.family_of(process, parent)
        if not family.is_apart:
            family.begin(process)
        if family.state is not FamilyState.STRANGER:
            family.move(cause)
        self._families.move_to_end(family.key)
        return family

    # -- kin that reads something else

    def kin_read(self, process: int, parent: int, agrees: bool, matcher: StreamMatcher) -> None:
        """Count a matched read of kin that has not proved itself."""
        if not self.proved:
            return
        if self._heir is not None and agrees and self.key_of(process, parent) == self._heir.key:
            self._heir_agreed += 1
        who = process if parent else 0  # processes that ended before anybody saw whose they are count as one
        seen = self._astray.get(who)
        if seen is None:
            seen = self._astray[who] = Astray(process, parent, matcher.score.agreed - agrees)
            _bound(self._astray, MOST_FAMILIES)
        seen.reads += 1
        seen.agreed += agrees

    def gone_astray(self, matcher: StreamMatcher) -> list[Family]:
        """Kin that read something else than what is predicted, while others read as predicted: strangers all the same.

        Each process is a family by itself from now on.
        """
        found = []
        for who, seen in list(self._astray.items()):
            others = matcher.score.agreed - seen.agreed_before - seen.agreed
            if seen.reads < ASTRAY_READS or 2 * seen.agreed >= seen.reads or others < ASTRAY_READS:
                continue
            del self._astray[who]
            if not self._own_read_beside(seen, matcher.score.history):
                continue  # chance: in an order that nobody knows, some reads of all processes seem to come as predicted
            if seen.parent:
                self._keys[seen.process] = self.key_of(seen.process, seen.parent)._replace(single=seen.process)
            if self.kept_apart(seen.process, seen.parent) is None:
                family = self._stranger(seen.process, seen.parent, FamilyCause.GOES_ASTRAY)
                family.reads = seen.reads
                found.append(family)
        return found

    def _own_read_beside(self, seen: Astray, history: Iterable[Open]) -> bool:
        """Whether processes that have proved themselves read as predicted since the other one began."""
        opens = list(history)
        begun = next((at for at, opened in enumerate(opens) if opened.process == seen.process), 0)
        return sum(opened.agrees and opened.process in self.proved for opened in opens[begun:]) >= ASTRAY_READS

    # -- families that are kept apart

    def strangers_in_an_order(self) -> list[Family]:
        """Strangers that may read for ranks of which nobody said that they read here: they neither walk the directories
        nor read the job from its start."""
        return [
            family
            for family in self._families.values()
            if family.state is FamilyState.STRANGER and family.key.parent and not family.order.is_plain
            if not family.is_second_run
        ]

    def reads_alone(self, family: Family, matcher: StreamMatcher) -> bool:
        """Whether none of the job's readers has read since a stranger's trial began, or it is taken for their heir."""
        made = matcher.score.ever_observed, self._evaluated
        if family.state is FamilyState.HEIR:
            return True
        return family.trial is not None and family.trial.reads >= STRANGER_READS and family.trial.is_silent(made)

    def put_apart(self, process: int, parent: int) -> Family:
        """The family of a process that is no kin of the job's readers: on trial, if nothing was known of it."""
        family = self.family_of(process, parent)
        if family.state is FamilyState.UNKNOWN:
            family.begin(process)
            family.move(FamilyCause.DOES_NOT_FIT)
        self._families.move_to_end(family.key)
        return family

    def try_read(
        self, family: Family, read: Read, matcher: StreamMatcher, propose: Callable[[], Sequence[Rival]], before: bool
    ) -> Rival | None:
        """A read of a family that is kept apart. Returns the rival that leads by it. The family's state tells whose its
        reads are from now on.

        Args:
            matcher: the job's matcher. propose: what the family's reads may be from now on. before: it came earlier.
        """
        family.read(read)
        trial, made = family.trial, (matcher.score.ever_observed, self._evaluated)
        if trial is None or (trial.reads >= TRIAL_READS and not trial.is_silent(made)):
            trial = Trial(propose(), matcher, read.at_s, (-1, self._evaluated) if before else made)
            family.begin_trial(trial)
        trial.read(read)
        is_silent = trial.is_silent(made)
        family.is_second_run = family.is_second_run or trial.is_from_start
        leading = trial.leading(read, matcher, made, lambda rank: self.is_vacant(rank, matcher), family.is_second_run)
        if leading is not None and leading.origin is Origin.JOINS:
            family.move(FamilyCause.JOINS)
        elif leading is None and is_silent and trial.is_long(read.at_s) and not family.order.is_plain:
            family.move(FamilyCause.INHERITS)
            self._inherits(family, matcher)
        elif leading is None and trial.reads >= STRANGER_READS and family.state is FamilyState.ON_TRIAL:
            family.move(FamilyCause.NOTHING_FITS)
        return leading

    def _inherits(self, family: Family, matcher: StreamMatcher) -> None:
        before = self._heir
        if before is not None and before is not family and before.state is FamilyState.HEIR:
            before.move(FamilyCause.OTHERS_COME_BACK)
        self._heir, self._heir_agreed, self._agreed_before_heir = family, 0, matcher.score.agreed


def _bound(kept: OrderedDict[object, object] | OrderedDict, most: int) -> None:  # type: ignore[type-arg]
    if len(kept) > most:
        kept.popitem(last=False)
