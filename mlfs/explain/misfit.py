"""Decides when a registered job's reads call for another explanation.

Pure. In: a job and its last opens, as they were counted. Out: yes or no, and which opens it is about. Called by
`mlfs.explain.correction`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from mlfs.follow.evidence import (
    HIT_WORTH,
    JUDGED_SAMPLES,
    JUMPS,
    READS_BEFORE,
    SEARCHED_READS,
    SEARCHED_SHARE,
    SURE_SHARE,
    UNFIT_READS,
)
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open

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
    if len(score.history) < UNFIT_READS or job.matcher.stream.length < JUDGED_SAMPLES:
        return False
    if score.agreement_of_last(SEARCHED_READS) >= SEARCHED_SHARE:
        return False
    return len(disagreeing(score.history)) >= UNFIT_READS


class Unexplained(NamedTuple):
    """Opens that another registration has to explain, and the epochs that they may be of, the likeliest first.

    If several epochs have the same order, the first that is tried is taken.

    Attributes:
        before: the last epoch that was read as predicted, as the job counts epochs; -1 for none.
        passes: how many epochs have been read since.
    """

    opens: list[Open]
    epochs: list[int]
    before: int = -1
    passes: int = 0


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
    return [Unexplained(opens, epochs, fitting if sure else -1, passes)]


def read_before(job: JobRun, epoch: int, opens: list[Open]) -> bool:
    """Whether an epoch's samples that `opens` are about had been read already: they are of a later epoch then."""
    index, ranks = job.epochs.at_hand.get(epoch), job.matcher.ranks
    own = {(seen.rank_index, seen.position) for seen in opens}  # what they were taken for themselves is no sign
    places = [divmod(code, index.length) for seen in opens for code in index.codes(seen.entry)] if index else []
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
        before = last.get(seen.process, seen.entry)
        if seen.entry != before and (owners.get(seen.entry) == seen.process or seen.entry == first):
            return False
        owners[seen.entry], last[seen.process] = seen.process, seen.entry
    last.clear()
    jumps = 0
    for seen in opens:
        before = last.get(seen.process, seen.entry)
        last[seen.process] = seen.entry
        jumped = range(before + 1, min(seen.entry, before + 1 + LONGEST_LOOK))
        jumps += any(owners.get(entry, seen.process) != seen.process for entry in jumped)
    return jumps < JUMPS
