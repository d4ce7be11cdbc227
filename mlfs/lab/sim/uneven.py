"""Says in words why many more of a job's steps are uneven than the simulator expects: what it does not know of.

Pure. In: what each rank's loader was seen to do, how unevenly they load, and what is expected of that. Out: a sentence.
Called by `mlfs.lab.commands.simulate_like`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfs.plan.imbalance import Imbalance
from mlfs.plan.rank_load import RankLoad
from mlfs.units import format_duration

# Loaders that take less for a batch are those of a script that only reads: there is nothing to win for training.
LEAST_WORK_S = 0.01
# So much larger a share of uneven steps than is expected is worth a sentence: over some tens of steps chance makes a
# difference of a tenth.
FAR_SHARE = 0.2
# Ranks whose loading times differ less are alike: what is late then is another one from step to step.
SLOWER = 1.25

UNEVEN = "more steps are uneven than the sizes of files and the places where they lie explain: {why}"
ALL_WAIT = "the workers of all ranks wait for reads longer than they work, and longer in some steps than in others"
WAITS = "reads of {slow} wait {long} for a batch, those of {fast} {short}"
SLOW_WORKERS = (
    "{who} of {slow} works {long} for a batch, that of {fast} {short}; its preprocessing may have more to do, or"
    " something else takes its cores"
)
FEWER_WORKERS = "{slow} has fewer workers than {fast}: {few} and {more}"
SCATTER = (
    "no rank is slower than others for long; the time of a batch changes with something else, such as what augmentation"
    " does to it, or other processes on the cores"
)


def uneven_words(ranks: Sequence[RankLoad], measured: Imbalance, expected: Imbalance) -> str:
    """The reason why more steps are uneven than simulated; empty where they agree, or where nothing is preprocessed.

    Args:
        ranks: `rank` being the rank's number.
    """
    if measured.steps - expected.steps < FAR_SHARE:
        return ""
    slow, fast = max(ranks, key=lambda rank: rank.load_s), min(ranks, key=lambda rank: rank.load_s)
    if slow.load_s < LEAST_WORK_S:
        return ""
    return UNEVEN.format(why=_why_slower(slow, fast, all(of.waiting_s > of.work_s for of in ranks)))


def _why_slower(slow: RankLoad, fast: RankLoad, all_wait: bool) -> str:
    """Why one rank loads for longer than another, in words: what makes most of the difference."""
    names = {"slow": f"rank {slow.rank}", "fast": f"rank {fast.rank}"}
    slower, works_longer_s = slow.load_s >= SLOWER * fast.load_s, slow.own_s - fast.own_s
    if slower and slow.load_s - fast.load_s > 2 * works_longer_s:
        return WAITS.format(**names, long=format_duration(slow.waiting_s), short=format_duration(fast.waiting_s))
    if all_wait:
        return ALL_WAIT
    if not slower:
        return SCATTER
    long_s, short_s = slow.work_s, fast.work_s
    if slow.workers < fast.workers and long_s < SLOWER * short_s:
        return FEWER_WORKERS.format(**names, few=slow.workers, more=fast.workers)
    who = "the training process" if slow.reader_trains else "a worker"
    return SLOW_WORKERS.format(**names, who=who, long=format_duration(long_s), short=format_duration(short_s))
