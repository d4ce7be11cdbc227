"""Which processes read for a job, and which are strangers to it: a backup, a colleague's `cp -r`, another script.

Pure. In: reads of processes that are not known to read for the job, and what the job's own matcher knows. Out: whose
each read is. Used by `mlfs.follow.job`, which matches what is the job's; what is a stranger's moves and judges nothing.

Evidence belongs to processes and their kin. A process *proves* itself when so many of its reads come as predicted that
it is no chance (`StreamMatcher.follows`); from then on its reads are the job's, and so are those of its kin: processes
of the same parent and name, its children, its parent. A loader's workers are kin of those of the epoch before.

As long as nobody has proved himself, all reads are the job's: a registration that is wrong shows in them. After that,
the reads of a *family* (processes of one parent and name) that is no kin are on *trial*: they are matched as if they
were the job's, by matchers of their own (`mlfs.follow.trial`). Reads on trial are kept, a few of them, and are the
job's after all if the family proves itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from mlfs.follow.job_statistics import ReadersStatistics, Stranger
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.plain_order import PlainOrder
from mlfs.follow.score import Open
from mlfs.follow.trial import (
    PROVED_OPENS,
    STRANGER_READS,
    TRIAL_READS,
    Family,
    Key,
    Read,
    Trial,
    Verdict,
    proves,
    reads_from_start,
    share_of,
    verdict_on,
)

REMEMBERED_PROCESSES = 4096
"""Processes that have proved themselves. Loaders start new workers each epoch, so only the last ones matter."""
MOST_FAMILIES = 64
"""Families that are on trial, or strangers. The one that has not read for longest is forgotten first."""
FITTING_SHARE = 0.5
"""Share of a family's reads that are predicted from which on it is no stranger: the first reads of each worker may be
in doubt, chance makes far fewer."""
CLAIM_FITS = 6
"""Reads of a family, seen alone, before that share says anything."""
CLAIM_READS = 512
"""Reads of a family that has not proved itself after which it is seen anew, from where the job begins."""
ASTRAY_READS = 16
"""Reads of a process that is kin of the job's readers and reads something else while they read as predicted, before it
is a stranger all the same: another script of the same shell."""

NOBODYS: Key = (0, "", 0)
"""The family of processes whose parents are not known."""


def nameless(process: int) -> str:
    """The name of a process where nobody knows names."""
    return ""


class Astray:
    """Kin that has not proved itself: how it does, and how the others did meanwhile."""

    __slots__ = ("agreed", "agreed_before", "parent", "process", "reads")

    def __init__(self, process: int, parent: int, agreed_before: int) -> None:
        self.process, self.parent = process, parent
        self.reads = self.agreed = 0
        self.agreed_before = agreed_before


class FirstOrder:
    """How a family reads before anybody has proved himself.

    Attributes:
        last_read: the number of its last read, among all.
    """

    __slots__ = ("last_read", "order", "reads")

    def __init__(self) -> None:
        self.order = PlainOrder()
        self.reads = self.last_read = 0


class Readers:
    """See the module. One object is for one run of the script.

    Args:
        name_of: the name of a process's program, "" where it is not known.

    Attributes:
        own: the processes that have proved themselves, with the rank that each reads for.
    """

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self.own: OrderedDict[int, int] = OrderedDict()
        self._name_of = name_of
        self._names: OrderedDict[int, str] = OrderedDict()
        self._last_names: OrderedDict[int, str] = OrderedDict()  # by parent
        self._kin: OrderedDict[tuple[int, str], None] = OrderedDict()  # parent and name of those in `own`
        self._own_parents: OrderedDict[int, None] = OrderedDict()
        self._families: OrderedDict[Key, Family] = OrderedDict()
        self._alone: OrderedDict[int, None] = OrderedDict()  # processes that are families by themselves
        self._astray: OrderedDict[int, Astray] = OrderedDict()
        self._first: OrderedDict[Key, FirstOrder] = OrderedDict()  # see `walks_beside`
        self._first_reads = 0
        self._claims: OrderedDict[Key, StreamMatcher | None] = OrderedDict()  # see `claims`
        self._heir: Key | None = None
        self._heir_agreed = self._heir_since = 0

    # -- who is who

    def key_of(self, process: int, parent: int) -> Key:
        """The family of a process. Those that ended before anybody saw whose children they are count as one."""
        if not parent:
            return NOBODYS
        if process in self._alone:
            return parent, "", process
        name = self._names.get(process)
        if name is None:
            name = self._name_of(process) or self._last_names.get(parent, "")  # ended already: as its kin before it
            self._names[process] = self._last_names[parent] = name
            _bound(self._names, REMEMBERED_PROCESSES)
            _bound(self._last_names, REMEMBERED_PROCESSES)
        return parent, name, 0

    def name_of(self, process: int) -> str:
        """The name of a process's program, as it was when it read first."""
        return self._names.get(process) or self._name_of(process)

    def are_the_jobs(self, process: int, parent: int, own: StreamMatcher) -> bool:
        """Whether the reads of a process are the job's for now, though it may not have proved itself."""
        if not self.own or process in self.own:
            return True  # while nobody has proved himself, any family may show what the script does
        if self._is_kin(process, parent):
            return True
        return self.key_of(process, parent) == self._heir and self._inherits_still(own)

    def may_begin_a_rank(self, read: Read, own: StreamMatcher) -> bool:
        """Whether a process of which nothing is known may begin to read for a rank that nobody reads for."""
        if not self.own or self.is_apart(read.process, read.parent):
            return False
        vacant = any(self.is_vacant(index, own) for index in range(len(own.ranks)))
        return vacant and own.fits(read.sample, read.process)

    def _is_kin(self, process: int, parent: int) -> bool:
        """Whether a process is kin of those that have proved themselves."""
        key = self.key_of(process, parent)
        if key[2]:
            return False
        if not parent:
            return key not in self._families  # nobody knows: it has the benefit of the doubt
        return process in self._own_parents or parent in self.own or key[:2] in self._kin

    def is_apart(self, process: int, parent: int) -> bool:
        """Whether the reads of a process are kept apart from the job's."""
        return process not in self.own and self.key_of(process, parent) in self._families

    def is_on_trial(self, process: int, parent: int) -> bool:
        """Whether the reads of a process are kept apart, and may yet prove to be the job's."""
        family = self._families.get(self.key_of(process, parent))
        return process not in self.own and family is not None and not family.is_stranger

    def walks(self, process: int, parent: int) -> bool:
        """Whether a process is kept apart that reads in the order of the directories."""
        family = self._families.get(self.key_of(process, parent))
        return process not in self.own and family is not None and family.order.is_plain

    def prove(self, process: int, parent: int, rank_index: int) -> None:
        """A process reads as predicted, so often that it is no chance."""
        key = self.key_of(process, parent)
        self._families.pop(key, None)
        self._astray.pop(process, None)
        self.own[process] = rank_index
        _bound(self.own, REMEMBERED_PROCESSES)
        if parent and not key[2]:
            self._kin[key[:2]] = None
            self._own_parents[parent] = None
            _bound(self._kin, REMEMBERED_PROCESSES)
            _bound(self._own_parents, REMEMBERED_PROCESSES)

    def statistics(self) -> ReadersStatistics:
        """Frozen figures."""
        strangers = (
            Stranger(
                family.first_process, family.key[0], family.key[1] or self._names.get(family.first_process, ""),
                family.processes, family.reads, family.order.is_plain, family.is_second_run,
            )
            for family in self._families.values()
            if family.is_stranger
        )  # fmt: skip
        return ReadersStatistics(tuple(self.own), tuple(strangers))

    # -- before anybody has proved himself

    def walks_beside(self, read: Read) -> Family | None:
        """The reader's family, if it walks the directories while somebody else reads in another order.

        A script that does not shuffle walks the directories too. But nobody who walks them shows what the other does.
        """
        key = self.key_of(read.process, read.parent)
        first = self._first.get(key)
        if first is None:
            first = self._first[key] = FirstOrder()
            _bound(self._first, MOST_FAMILIES)
        self._first_reads += 1
        first.reads += 1
        first.last_read = self._first_reads
        first.order.read(read.sample, read.process)
        beside = first.order.is_plain and any(
            other.reads >= STRANGER_READS and not other.order.is_plain
            for other in self._first.values()
            if self._first_reads - other.last_read <= TRIAL_READS
        )
        if not beside:
            self._families.pop(key, None)
            return None
        family = self.family(read.process, read.parent)
        family.has_read(first.reads, first.order)
        family.call_stranger()
        return family

    def claims(
        self,
        read: Read,
        own: StreamMatcher,
        alone: Callable[[], StreamMatcher],
    ) -> bool:
        """Whether the reads of one family, seen alone, are those of the job, where several read.

        Args:
            own: the job's matcher, which has seen this read too. alone: makes one that expects the job from its start.
        """
        key = self.key_of(read.process, read.parent)
        if not self._claims:
            self._claims[key] = None  # while it is the only one, the job's own matcher sees it alone
        if len(self._claims) == 1 and key in self._claims:
            return False
        matcher = self._claims.get(key)
        if matcher is None or matcher.score.observed >= CLAIM_READS:
            before = [] if matcher is not None else own.opens()
            matcher = self._claims[key] = alone()
            _bound(self._claims, MOST_FAMILIES)
            for seen in before:
                if self.key_of(seen.process, seen.parent) == key:
                    matcher.observe(seen.entry, seen.process, seen.parent)
        else:
            matcher.observe(read.sample, read.process, read.parent)
        return proves(matcher, read.process)

    @property
    def are_alone(self) -> bool:
        """Whether no more than one family was seen before somebody proved himself."""
        return len(self._claims) < 2

    def fits_alone(self, opened: Open) -> bool:
        """Whether a read is of a family that, seen alone, reads as predicted."""
        matcher = self._claims.get(self.key_of(opened.process, opened.parent))
        return matcher is not None and matcher.score.observed >= CLAIM_FITS and share_of(matcher) >= FITTING_SHARE

    def begin_anew(self) -> Readers:
        """For another run of the script: the strangers stay known."""
        anew = Readers(self._name_of)
        anew._names, anew._last_names = self._names, self._last_names
        for key, family in self._families.items():
            if family.is_stranger:
                family.end_trial()
                anew._families[key] = family
        return anew

    def seen_again(self, opened: Open) -> None:
        """A read that may have been counted as a stranger's will be told once more."""
        family = self._families.get(self.key_of(opened.process, opened.parent))
        if family is not None:
            family.take_back_read()

    def note_strangers(self, opens: Iterable[Open]) -> list[Family]:
        """These reads turned out to be strangers'."""
        reads: dict[Key, list[Open]] = {}
        for seen in opens:
            reads.setdefault(self.key_of(seen.process, seen.parent), []).append(seen)
        found = []
        for of_family in reads.values():
            family = self.family(of_family[0].process, of_family[0].parent)
            family.note_earlier(of_family)
            family.call_stranger()
            found.append(family)
        return found

    def others_before(self, history: Iterable[Open]) -> list[Family]:
        """Families that read before anybody had proved himself, are no kin, and did not read as predicted."""
        reads: dict[Key, list[Open]] = {}
        for seen in history:
            if seen.process not in self.own and not self._is_kin(seen.process, seen.parent):
                reads.setdefault(self.key_of(seen.process, seen.parent), []).append(seen)
        unfit = [opens for opens in reads.values() if sum(seen.agrees for seen in opens) < FITTING_SHARE * len(opens)]
        return self.note_strangers(seen for opens in unfit for seen in opens)

    # -- kin that reads something else

    def kin_read(self, process: int, parent: int, agrees: bool, own: StreamMatcher) -> None:
        """A read of kin that has not proved itself was matched."""
        if not self.own:
            return
        who = process if parent else 0  # processes that ended before anybody saw whose they are count as one
        seen = self._astray.get(who)
        if seen is None:
            seen = self._astray[who] = Astray(process, parent, own.score.agreed - agrees)
            _bound(self._astray, MOST_FAMILIES)
        seen.reads += 1
        seen.agreed += agrees

    def gone_astray(self, own: StreamMatcher) -> list[Family]:
        """Kin that read something else than what is predicted, while others read as predicted: strangers all the same.

        Each process is a family by itself from now on.
        """
        found = []
        for who, seen in list(self._astray.items()):
            others = own.score.agreed - seen.agreed_before - seen.agreed
            if seen.reads < ASTRAY_READS or 2 * seen.agreed >= seen.reads or others < ASTRAY_READS:
                continue
            del self._astray[who]
            if not self._own_read_beside(seen, own.score.history):
                continue  # chance: in an order that nobody knows, some reads of all processes seem to come as predicted
            if seen.parent:
                self._alone[seen.process] = None
                _bound(self._alone, REMEMBERED_PROCESSES)
            family = self.family(seen.process, seen.parent)
            family.has_read(seen.reads)
            family.call_stranger()
            found.append(family)
        return found

    def _own_read_beside(self, seen: Astray, history: Iterable[Open]) -> bool:
        """Whether processes that have proved themselves read as predicted since the other one began."""
        opens = list(history)
        begun = next((at for at, opened in enumerate(opens) if opened.process == seen.process), 0)
        return sum(opened.agrees and opened.process in self.own for opened in opens[begun:]) >= ASTRAY_READS

    # -- trials

    def family(self, process: int, parent: int) -> Family:
        """The family of a process that is no kin of the job's readers."""
        key = self.key_of(process, parent)
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = Family(key, process)
            _bound(self._families, MOST_FAMILIES)
        self._families.move_to_end(key)
        return family

    def is_vacant(self, rank_index: int, own: StreamMatcher) -> bool:
        """Whether nobody has proved to read for a rank."""
        for process, known in self.own.items():
            if known < 0:  # it was not known yet when it proved itself
                self.own[process] = own.rank_of(process)
        return rank_index not in self.own.values()

    def try_read(
        self,
        family: Family,
        read: Read,
        own: StreamMatcher,
        begin: Callable[[], Trial],
    ) -> Verdict:
        """A read of a family that is on trial.

        Args:
            own: the job's matcher. begin: makes another trial.
        """
        family.read(read)
        trial = family.trial
        if trial is None or (trial.reads >= TRIAL_READS and not trial.is_silent(own)):
            trial = begin()
            family.begin_trial(trial)
        trial.observe(read)
        verdict = verdict_on(family, trial, read, own, lambda rank: self.is_vacant(rank, own))
        if reads_from_start(trial):
            family.call_second_run()
        if verdict in (Verdict.JOINS, Verdict.INHERITS):
            self._families.pop(family.key, None)
        if verdict is Verdict.INHERITS:
            self._heir, self._heir_agreed, self._heir_since = family.key, 0, own.score.agreed
        return verdict

    # -- heirs

    def heir_read(self, process: int, parent: int, agrees: bool) -> None:
        """A read of a process was matched: count it if the process is of the heirs."""
        if self._heir is not None and agrees and self.key_of(process, parent) == self._heir:
            self._heir_agreed += 1

    def _inherits_still(self, own: StreamMatcher) -> bool:
        """Whether those before the heirs have not come back."""
        if own.score.agreed - self._heir_since - self._heir_agreed < PROVED_OPENS:
            return True
        self._heir = None
        return False


def _bound(kept: OrderedDict[object, object] | OrderedDict, most: int) -> None:  # type: ignore[type-arg]
    if len(kept) > most:
        kept.popitem(last=False)
