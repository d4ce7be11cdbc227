"""Advises how many workers a job's loaders should have, where preprocessing is what training waits for.

Pure. In: frozen figures (mlfs.plan.loader_load). Out: numbers, and a sentence. Called by mountd.status and
mountd.headline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlfs.follow.job_statistics import JobStatistics
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.loader_workers import Advice, Loader, advise, surely_loads
from mlfs.plan.rank_load import NOTABLE_WORK_S, RankLoad, StepLimit
from mlfs.units import format_duration

PREPROCESSING = "reads do not wait, but the loader does: {who} works all the time, {work} for a batch"
BY_ITSELF = "reads do not wait, but training does: {who} loads by itself, {work} for a batch"
SAYS_MORE = "{what}; {more}; mlfs advise workers --from-mount {mountpoint} says more"
# Where a training step's time is not known, the gain ends where training itself is the limit.
GAINS = "num_workers {workers} would make steps {up_to}{gain:.1f} times as fast"
GAINS_NOTHING = "more workers would gain nothing on {processors}"


class Advised(NamedTuple):
    """The advice for a job.

    Attributes:
        loaders: of its ranks, `rank` being the rank's number. busy: the rank of those that preprocess all the time that
            is slowest.
    """

    loaders: tuple[Loader, ...]
    advice: Advice
    busy: RankLoad


def advised(job: JobStatistics, load: JobLoad | None, processors: int) -> Advised | None:
    """How many workers the ranks should have; None where preprocessing is not what some rank's steps wait for.

    Nothing is said of one process that nobody called a worker (`surely_loads`).
    """
    workers = job.loader.num_workers.value
    ranks = load.ranks if load is not None else ()
    busy = [of for of in ranks if of.limit is StepLimit.PREPROCESSING and surely_loads(of.workers, workers)]
    slowest = max(busy, key=lambda of: of.next_s, default=None)
    if load is None or slowest is None or slowest.work_s < NOTABLE_WORK_S:
        return None
    loaders = tuple(
        replace(Loader.of(of), rank=job.ranks[of.rank].rank) for of in ranks if of.limit is not StepLimit.UNKNOWN
    )
    return Advised(loaders, advise(loaders, processors, load.pace), slowest)


def preprocessing_words(load: JobLoad | None, job: JobStatistics, mountpoint: str, processors: int) -> str:
    """A sentence where preprocessing is what the steps of some rank wait for: that it is, and what to do; else
    nothing."""
    of = advised(job, load, processors)
    if of is None or load is None or not load.reads_now:
        return ""
    by_itself, several = of.busy.reader_trains, len(job.ranks) > 1
    if by_itself:
        who = "the training process"
    else:
        who = f"each of the {of.busy.workers} workers" if of.busy.workers > 1 else "the one process"
    if several:
        who += f" of rank {job.ranks[of.busy.rank].rank}"
    elif not by_itself and of.busy.workers == 1:
        who += " that loads"
    what = (BY_ITSELF if by_itself else PREPROCESSING).format(who=who, work=format_duration(of.busy.work_s))
    return SAYS_MORE.format(what=what, more=_gain_words(of, processors), mountpoint=mountpoint)


def _gain_words(of: Advised, processors: int) -> str:
    """How many workers which rank should have, and what that gains."""
    if not of.advice.is_worth_it:
        return GAINS_NOTHING.format(processors=f"{processors} processor{'s' if processors > 1 else ''}")
    by_rank = list(zip(of.loaders, of.advice.workers, strict=True))
    if len({(count, loader.workers) for loader, count in by_rank}) == 1:
        loader, count = by_rank[0]
        workers = f"{count} (now {loader.workers})" if loader.workers else f"{count} beside it"
    else:
        each = [f"{count} for rank {loader.rank} (now {loader.workers})" for loader, count in by_rank]
        workers = f"{', '.join(each[:-1])} and {each[-1]}"
    up_to = "up to " if of.advice.train_s is None else ""
    return GAINS.format(workers=workers, up_to=up_to, gain=of.advice.gain)
