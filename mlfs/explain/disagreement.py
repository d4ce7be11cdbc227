"""A registered job's reads don't come as it says: which reads those are, of which epoch, and by whom.

Pure. In: a job while it runs, and the last opens that it has counted. Out: what a search is to explain. Used by
`mlfs.explain.correction`, which searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from mlfs.explain.chance import FEWEST_FITTING
from mlfs.explain.first_reads import MOST_FIRST_READS
from mlfs.explain.question import reads_needed
from mlfs.explain.screen import EpochBefore
from mlfs.follow.evidence import (
    HIT_WORTH,
    JUDGED_OPENS,
    JUDGED_SAMPLES,
    JUMPS,
    READS_BEFORE,
    SEARCHED_READS,
    SEARCHED_SHARE,
    SURE_SHARE,
    UNFIT_READS,
    Read,
    fits,
)
from mlfs.follow.families import Key
from mlfs.follow.hypothesis import Hypothesis
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.score import Cell

# -- whether reads call for another hypothesis, and which reads it is about

# How far a jump is looked through for files that another worker reads: the next batch begins right there.
LONGEST_LOOK = 64


def disagreeing(opens: Iterable[Open]) -> list[Open]:
    """The last opens, from where the prediction began to fail: the suffix with most misses beyond its hits.

    All opens where hardly any had agreed before: how an epoch begins says most of what is read.
    """
    listed = list(opens)
    worth, best, at = 0.0, 0.0, len(listed)
    for number in range(len(listed) - 1, -1, -1):
        worth += -HIT_WORTH if listed[number].agrees else 1
        if worth > best:
            best, at = worth, number
    had_agreed = sum(seen.agrees for seen in listed[:at])
    return listed if best and had_agreed < READS_BEFORE else listed[at:]


def disagrees(job: JobRun) -> bool:
    """Whether so many of the last opens were not predicted that it is worth finding out why."""
    score, again = job.score, job.rivals.from_start
    if again is not None and again.is_likely and not again.by_run_under_way:
        return False  # other processes than those before seem to read the job from its start: it will be followed
    if score.remembered < UNFIT_READS or job.matcher.stream.length < JUDGED_SAMPLES:
        return False
    if score.agreement_of_last(SEARCHED_READS) >= SEARCHED_SHARE:
        return False
    return len(disagreeing(score.history)) >= UNFIT_READS


class Unexplained(NamedTuple):
    """Opens that another registration has to explain, and the epochs that they may be of, the likeliest first.

    If several epochs have the same order, the first that is tried is taken.

    Attributes:
        before: the last epoch that was read as predicted; None for none.
    """

    opens: list[Open]
    epochs: list[int]
    before: EpochBefore | None = None


def unexplained(job: JobRun) -> list[Unexplained]:
    """The questions about a job whose reads disagree, one after the other.

    Opens of more than one epoch are cut to those of the last one: no epoch's order explains most of the others.
    """
    spec, opens = job.spec, disagreeing(job.score.history)
    before = [seen.cell.epoch for seen in list(job.score.history)[: -len(opens)] if seen.agrees]
    an_epoch = job.ranks.epoch_reads
    if len(before) < READS_BEFORE:  # nothing ever fitted: the script has just begun, or it began some epochs ago
        # It is the registered one, or the one that a run has begun anew.
        begun = job.begun_in
        asked = [Unexplained(opens, [begun])]
        passes = max(0, job.score.observed - UNFIT_READS) // an_epoch
        last = min(begun + passes, spec.epochs - 1)
        if last > begun:
            asked.append(Unexplained(opens[-(job.score.observed - passes * an_epoch) :], [last, last - 1]))
        return asked
    passes = max(0, len(opens) - UNFIT_READS) // an_epoch
    opens = opens[passes * an_epoch :]
    # Some of them may be another epoch's by chance: those of an epoch that was surely read are not.
    reads = Counter(before)
    sure = [epoch for epoch in before if reads[epoch] >= SEARCHED_READS]
    fitting = sure[-1] if sure else median_low(before[-READS_BEFORE:])
    last = fitting + passes
    epochs = list(range(min(last, spec.epochs - 1), min(last + 3, spec.epochs)))
    if len(epochs) > 1 and read_before(job, last, opens):
        epochs = [*epochs[1:], epochs[0]]
    return [Unexplained(opens, epochs, EpochBefore(fitting, passes) if sure else None)]


def read_before(job: JobRun, epoch: int, opens: list[Open]) -> bool:
    """Whether an epoch's samples that `opens` are about had been read already: they are of a later epoch then."""
    index, ranks = job.epochs.at_hand.get(epoch), job.matcher.ranks
    own = {(seen.rank_index, seen.position) for seen in opens}  # what they were taken for themselves is no sign
    places = [divmod(code, index.length) for seen in opens for code in index.codes(seen.sample)] if index else []
    if index is None or not places:
        return False
    read = [
        ranks[rank].is_done(index.base + offset) and (rank, index.base + offset) not in own for rank, offset in places
    ]
    return sum(read) >= SURE_SHARE * len(read)


def is_mere_walk(opens: Sequence[Open], first: int) -> bool:
    """Whether reads in the order of the directories may be those of `cp -r`, and not of a script that does not shuffle.

    A script shows itself by workers, each of which jumps over the batches of the others, or by a second pass of one
    process.

    Args:
        first: the file that a pass begins with.
    """
    owners: dict[int, int] = {}
    last: dict[int, int] = {}
    for seen in opens:
        before = last.get(seen.process, seen.sample)
        if seen.sample != before and (owners.get(seen.sample) == seen.process or seen.sample == first):
            return False
        owners[seen.sample], last[seen.process] = seen.process, seen.sample
    last.clear()
    jumps = 0
    for seen in opens:
        before = last.get(seen.process, seen.sample)
        last[seen.process] = seen.sample
        jumped = range(before + 1, min(seen.sample, before + 1 + LONGEST_LOOK))
        jumps += any(owners.get(entry, seen.process) != seen.process for entry in jumped)
    return jumps < JUMPS


# -- the epoch that begins with the reads that disagree, and what each process read first in it

# A process that idles, and many processes with few reads each, are waited for this many times as many reads.
_PATIENCE = 8


class Beginning(NamedTuple):
    """The epoch that begins with the reads that disagree, and what each process read first in it.

    Attributes:
        opens: none where the epoch began before all that is remembered.
        heads: the first reads of each process, as entries, in the order in which the processes began.
        passes: how many epochs went by since the last one that came as predicted.
    """

    epoch: int
    opens: list[Open]
    heads: list[list[int]]
    passes: int = 0

    def processes_ready(self, n_samples: int) -> int:
        """How many processes have read enough to tell where the epoch begins, if they read from its beginning."""
        needed = reads_needed(n_samples)
        return sum(len(head) >= needed for head in self.heads)

    def is_enough(self, n_samples: int) -> bool:
        """Whether a process has read enough to tell where its epoch begins, or waiting for one is no use."""
        many = len(self.opens) >= _PATIENCE * reads_needed(n_samples)
        return many or self.processes_ready(n_samples) > 0


class Beginnings:
    """The beginnings of epochs whose order is not known: each as many opens after the other as an epoch has.

    Attributes:
        passes: of the last one that was asked for (`latest`).
    """

    def __init__(self) -> None:
        self.passes = 0
        self._first_unfit = (-1, 0)  # the first epoch that did not come as predicted, and how many opens were before it

    def latest(self, job: JobRun) -> Beginning:
        """The epoch that is being read, if the last one that came as predicted does not go on."""
        begun = self.peek(job)
        self.passes = begun.passes
        return begun

    def peek(self, job: JobRun) -> Beginning:
        """The same, which `another_began` does not take for asked."""
        epoch, opens = _after_last_fitting(job)
        if epoch != self._first_unfit[0]:
            self._first_unfit = epoch, job.score.observed - len(opens)
        passes, count = self._passed(job)
        if passes or count > job.score.remembered:
            opens = opens[-count:] if 0 < count <= len(opens) else []
        return Beginning(min(epoch + passes, job.spec.epochs - 1), opens, _heads(opens), passes)

    def another_began(self, job: JobRun, opens: int) -> bool:
        """Whether a later epoch than at the last time has so many opens by now. Asked for each few reads: cheap."""
        if self._first_unfit[0] < 0:
            return False
        passes, count = self._passed(job)
        return passes > self.passes and count >= opens

    def _passed(self, job: JobRun) -> tuple[int, int]:
        """Epochs that went by since the last one that came as predicted, and the opens of the one under way."""
        return divmod(job.score.observed - self._first_unfit[1], job.ranks.epoch_reads)


def _after_last_fitting(job: JobRun) -> tuple[int, list[Open]]:
    """The epoch after the last one that came as predicted, and what was read since that one's last open."""
    fitting = [
        epoch
        for (epoch, rank), cell in job.score.cells.items()
        if rank >= 0 and cell.agreed >= FEWEST_FITTING and fits(cell.observed, cell.agreed)
    ]
    history = list(job.score.history)
    if not fitting:
        return job.spec.start_epoch, history
    return min(max(fitting) + 1, job.spec.epochs - 1), history[_end_of(max(fitting), history) :]


def _heads(opens: list[Open]) -> list[list[int]]:
    heads: dict[int, list[int]] = {}
    for opened in opens:
        head = heads.setdefault(opened.process, [])
        if len(head) < MOST_FIRST_READS:
            head.append(opened.sample)
    return list(heads.values())


def _end_of(epoch: int, history: list[Open]) -> int:
    """The number of opens up to the last one of an epoch that came as predicted.

    One open of the next epoch may lie by chance where this one begins: so an open counts whose process had come as
    predicted just before, at an earlier position.
    """
    end = 0
    before: dict[int, Open] = {}
    for number, opened in enumerate(history, 1):
        last = before.get(opened.process)
        before[opened.process] = opened
        if last is None or not (opened.agrees and last.agrees and opened.cell.epoch == last.cell.epoch == epoch):
            continue
        if opened.position > last.position:
            end = number
    return end


def nobodys(reads: Iterable[Read], epoch: int) -> list[Open]:
    """Reads that no job has counted, as opens."""
    cell = Cell(epoch, -1)
    return [Open(read.sample, read.process, read.parent, cell, False, -1, -1) for read in reads]


# -- whose opens they are, while nobody has proved to read for the job


def explained_by(found: Hypothesis, job: JobRun, opens: Iterable[Open]) -> list[Open]:
    """Those of these opens that families made whose opens a hypothesis explains."""
    families, key_of = found.families, job.readers.key_of
    return [seen for seen in opens if families is None or key_of(seen.process, seen.parent) in families]


def fitting_families(job: JobRun, history: Iterable[Open]) -> frozenset[Key] | None:
    """The families most of whose opens came as predicted; None where that is true of all."""
    opens: dict[Key, list[bool]] = {}
    for opened in history:
        opens.setdefault(job.readers.key_of(opened.process, opened.parent), []).append(opened.agrees)
    fewest = JUDGED_OPENS // 2
    found = frozenset(one for one, agrees in opens.items() if len(agrees) >= fewest and fits(len(agrees), sum(agrees)))
    return None if len(found) == len(opens) else found
